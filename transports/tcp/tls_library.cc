#include "transports/tcp/tls_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <new>

#include "base/shared_library.h"

namespace tutti {
namespace {

constexpr const char* kFile = "libssl.so.3";
// The value of OPENSSL_INIT_NO_ATEXIT: OpenSSL must not clean up at exit, because other threads may still call it
// then.
constexpr std::uint64_t kNoCleanupAtExit = 0x00080000;

Error missing(const std::string& why) {
  return {ErrorCode::kConfig, ErrorScope::kCommunicator, -1,
          fmt::format("TUTTI_ENCRYPT=1 needs OpenSSL 3's libssl.so.3, which cannot be used here ({}): install the "
                      "package libssl3 (Debian, Ubuntu) or openssl-libs (Fedora), or set TUTTI_ENCRYPT=0 on all ranks",
                      why)};
}

void find_all(SharedLibrary& library, TlsLibrary& tls) {
  library.find(tls.init, "OPENSSL_init_ssl");
  library.find(tls.client_method, "TLS_client_method");
  library.find(tls.server_method, "TLS_server_method");
  library.find(tls.context_new, "SSL_CTX_new");
  library.find(tls.context_ctrl, "SSL_CTX_ctrl");
  library.find(tls.context_set_ciphersuites, "SSL_CTX_set_ciphersuites");
  library.find(tls.context_set_num_tickets, "SSL_CTX_set_num_tickets");
  library.find(tls.context_set_verify, "SSL_CTX_set_verify");
  library.find(tls.context_set_psk_use_session_callback, "SSL_CTX_set_psk_use_session_callback");
  library.find(tls.context_set_psk_find_session_callback, "SSL_CTX_set_psk_find_session_callback");
  library.find(tls.ssl_new, "SSL_new");
  library.find(tls.ssl_free, "SSL_free");
  library.find(tls.set_bio, "SSL_set_bio");
  library.find(tls.set_connect_state, "SSL_set_connect_state");
  library.find(tls.set_accept_state, "SSL_set_accept_state");
  library.find(tls.set_ex_data, "SSL_set_ex_data");
  library.find(tls.get_ex_data, "SSL_get_ex_data");
  library.find(tls.do_handshake, "SSL_do_handshake");
  library.find(tls.read_ex, "SSL_read_ex");
  library.find(tls.write_ex, "SSL_write_ex");
  library.find(tls.shutdown, "SSL_shutdown");
  library.find(tls.get_error, "SSL_get_error");
  library.find(tls.key_update, "SSL_key_update");
  library.find(tls.session_reused, "SSL_session_reused");
  library.find(tls.session_new, "SSL_SESSION_new");
  library.find(tls.session_free, "SSL_SESSION_free");
  library.find(tls.session_set1_master_key, "SSL_SESSION_set1_master_key");
  library.find(tls.session_set_cipher, "SSL_SESSION_set_cipher");
  library.find(tls.session_set_protocol_version, "SSL_SESSION_set_protocol_version");
  library.find(tls.cipher_find, "SSL_CIPHER_find");
  library.find(tls.meth_new, "BIO_meth_new");
  library.find(tls.meth_set_write, "BIO_meth_set_write");
  library.find(tls.meth_set_read, "BIO_meth_set_read");
  library.find(tls.meth_set_ctrl, "BIO_meth_set_ctrl");
  library.find(tls.bio_new, "BIO_new");
  library.find(tls.bio_set_data, "BIO_set_data");
  library.find(tls.bio_get_data, "BIO_get_data");
  library.find(tls.bio_set_init, "BIO_set_init");
  library.find(tls.bio_set_flags, "BIO_set_flags");
  library.find(tls.bio_clear_flags, "BIO_clear_flags");
  library.find(tls.err_get_error, "ERR_get_error");
  library.find(tls.err_clear_error, "ERR_clear_error");
}

Result<const TlsLibrary*> load() {
  auto library = SharedLibrary::open(kFile, RTLD_NODELETE);
  if (!library) return missing(library.error().message);
  // The object in `memory` is never destroyed, because other threads may use it at exit.
  alignas(TlsLibrary) static std::byte memory[sizeof(TlsLibrary)];
  auto* const tls = new (memory) TlsLibrary();
  find_all(*library, *tls);
  if (library->missing() != nullptr) return missing(fmt::format("it lacks the function {}", library->missing()));
  if (tls->init(kNoCleanupAtExit, nullptr) != 1)
    return missing("its initialisation failed: is its configuration file valid?");
  return static_cast<const TlsLibrary*>(tls);
}

}  // namespace

Result<const TlsLibrary*> TlsLibrary::open() {
  static const Result<const TlsLibrary*> opened = load();
  return opened;
}

}  // namespace tutti
