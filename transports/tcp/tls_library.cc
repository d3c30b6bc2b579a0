#include "transports/tcp/tls_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <new>

namespace tutti {
namespace {

constexpr const char* kFile = "libssl.so.3";
constexpr std::uint64_t kNoCleanupAtExit = 0x00080000;  // OPENSSL_INIT_NO_ATEXIT: threads may still be calling then

Error missing(const std::string& why) {
  return {ErrorCode::kConfig, ErrorScope::kCommunicator, -1,
          fmt::format("TUTTI_ENCRYPT=1 needs OpenSSL 3's libssl.so.3, which cannot be used here ({}): install the "
                      "package libssl3 (Debian, Ubuntu) or openssl-libs (Fedora), or set TUTTI_ENCRYPT=0 on all ranks",
                      why)};
}

// Loads every function; the name of the first that is missing, or null.
class Loader {
 public:
  explicit Loader(void* handle) : handle_(handle) {}
  template <class Function>
  Loader& load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr && missing_ == nullptr) missing_ = name;
    return *this;
  }
  const char* missing() const { return missing_; }

 private:
  void* handle_;
  const char* missing_ = nullptr;
};

const char* load_all(void* handle, TlsLibrary& tls) {
  Loader loader(handle);
  loader.load(tls.init, "OPENSSL_init_ssl")
      .load(tls.client_method, "TLS_client_method")
      .load(tls.server_method, "TLS_server_method")
      .load(tls.context_new, "SSL_CTX_new")
      .load(tls.context_ctrl, "SSL_CTX_ctrl")
      .load(tls.context_set_ciphersuites, "SSL_CTX_set_ciphersuites")
      .load(tls.context_set_num_tickets, "SSL_CTX_set_num_tickets")
      .load(tls.context_set_verify, "SSL_CTX_set_verify")
      .load(tls.context_set_psk_use_session_callback, "SSL_CTX_set_psk_use_session_callback")
      .load(tls.context_set_psk_find_session_callback, "SSL_CTX_set_psk_find_session_callback")
      .load(tls.ssl_new, "SSL_new")
      .load(tls.ssl_free, "SSL_free")
      .load(tls.set_bio, "SSL_set_bio")
      .load(tls.set_connect_state, "SSL_set_connect_state")
      .load(tls.set_accept_state, "SSL_set_accept_state")
      .load(tls.set_ex_data, "SSL_set_ex_data")
      .load(tls.get_ex_data, "SSL_get_ex_data")
      .load(tls.do_handshake, "SSL_do_handshake")
      .load(tls.read_ex, "SSL_read_ex")
      .load(tls.write_ex, "SSL_write_ex")
      .load(tls.shutdown, "SSL_shutdown")
      .load(tls.get_error, "SSL_get_error")
      .load(tls.key_update, "SSL_key_update")
      .load(tls.session_reused, "SSL_session_reused")
      .load(tls.session_new, "SSL_SESSION_new")
      .load(tls.session_free, "SSL_SESSION_free")
      .load(tls.session_set1_master_key, "SSL_SESSION_set1_master_key")
      .load(tls.session_set_cipher, "SSL_SESSION_set_cipher")
      .load(tls.session_set_protocol_version, "SSL_SESSION_set_protocol_version")
      .load(tls.cipher_find, "SSL_CIPHER_find")
      .load(tls.meth_new, "BIO_meth_new")
      .load(tls.meth_set_write, "BIO_meth_set_write")
      .load(tls.meth_set_read, "BIO_meth_set_read")
      .load(tls.meth_set_ctrl, "BIO_meth_set_ctrl")
      .load(tls.bio_new, "BIO_new")
      .load(tls.bio_set_data, "BIO_set_data")
      .load(tls.bio_get_data, "BIO_get_data")
      .load(tls.bio_set_init, "BIO_set_init")
      .load(tls.bio_set_flags, "BIO_set_flags")
      .load(tls.bio_clear_flags, "BIO_clear_flags")
      .load(tls.err_get_error, "ERR_get_error")
      .load(tls.err_clear_error, "ERR_clear_error");
  return loader.missing();
}

Result<const TlsLibrary*> load() {
  void* const handle = dlopen(kFile, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* why = dlerror();
    return missing(why == nullptr ? "no reason given" : why);
  }
  alignas(TlsLibrary) static std::byte memory[sizeof(TlsLibrary)];  // never destroyed
  auto* const tls = new (memory) TlsLibrary();
  if (const char* lacks = load_all(handle, *tls); lacks != nullptr) return missing(fmt::format("it has no {}", lacks));
  if (tls->init(kNoCleanupAtExit, nullptr) != 1) return missing("it does not start: is its configuration file sound?");
  return static_cast<const TlsLibrary*>(tls);
}

}  // namespace

Result<const TlsLibrary*> TlsLibrary::open() {
  static const Result<const TlsLibrary*> opened = load();
  return opened;
}

}  // namespace tutti
