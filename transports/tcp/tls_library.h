// TlsLibrary: OpenSSL's libssl.so.3, opened with dlopen() when it is first needed.
//
// The program is not linked with OpenSSL, and the build does not need the headers of OpenSSL. The prototypes are
// declared here, and the constants of OpenSSL in tls.cc and tls_library.cc. Both were compared with the headers of
// OpenSSL 3.0. Any thread may use the functions.
//
// It has more than 40 members, because each member is a function of OpenSSL that Tutti calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/result.h"

namespace tutti {

// Types of OpenSSL of which only pointers are used.
struct OpenSslContext;     // SSL_CTX
struct OpenSsl;            // SSL
struct OpenSslSession;     // SSL_SESSION
struct OpenSslCipher;      // SSL_CIPHER
struct OpenSslDigest;      // EVP_MD
struct OpenSslMethod;      // SSL_METHOD
struct OpenSslPipe;        // BIO
struct OpenSslPipeMethod;  // BIO_METHOD

struct TlsLibrary {
  // Functions of libssl, and of libcrypto, which is loaded with it. The names of the members are shortened: for
  // example, read_ex is SSL_read_ex(), context_new is SSL_CTX_new() and bio_new is BIO_new(). find_all() in
  // tls_library.cc lists the full names.
  int (*init)(std::uint64_t options, const void* settings) = nullptr;
  const OpenSslMethod* (*client_method)() = nullptr;
  const OpenSslMethod* (*server_method)() = nullptr;
  OpenSslContext* (*context_new)(const OpenSslMethod*) = nullptr;
  long (*context_ctrl)(OpenSslContext*, int command, long number, void* pointer) = nullptr;
  int (*context_set_ciphersuites)(OpenSslContext*, const char* names) = nullptr;
  int (*context_set_num_tickets)(OpenSslContext*, std::size_t count) = nullptr;
  void (*context_set_verify)(OpenSslContext*, int mode, int (*callback)(int, void*)) = nullptr;
  using UseSession = int (*)(OpenSsl*, const OpenSslDigest*, const unsigned char** identity, std::size_t* bytes,
                             OpenSslSession**);
  using FindSession = int (*)(OpenSsl*, const unsigned char* identity, std::size_t bytes, OpenSslSession**);
  void (*context_set_psk_use_session_callback)(OpenSslContext*, UseSession) = nullptr;
  void (*context_set_psk_find_session_callback)(OpenSslContext*, FindSession) = nullptr;
  OpenSsl* (*ssl_new)(OpenSslContext*) = nullptr;
  void (*ssl_free)(OpenSsl*) = nullptr;
  void (*set_bio)(OpenSsl*, OpenSslPipe* read, OpenSslPipe* write) = nullptr;
  void (*set_connect_state)(OpenSsl*) = nullptr;
  void (*set_accept_state)(OpenSsl*) = nullptr;
  int (*set_ex_data)(OpenSsl*, int index, void* data) = nullptr;
  void* (*get_ex_data)(const OpenSsl*, int index) = nullptr;
  int (*do_handshake)(OpenSsl*) = nullptr;
  int (*read_ex)(OpenSsl*, void* to, std::size_t bytes, std::size_t* read) = nullptr;
  int (*write_ex)(OpenSsl*, const void* from, std::size_t bytes, std::size_t* written) = nullptr;
  int (*shutdown)(OpenSsl*) = nullptr;
  int (*get_error)(const OpenSsl*, int result) = nullptr;
  int (*key_update)(OpenSsl*, int type) = nullptr;
  int (*session_reused)(const OpenSsl*) = nullptr;
  OpenSslSession* (*session_new)() = nullptr;
  void (*session_free)(OpenSslSession*) = nullptr;
  int (*session_set1_master_key)(OpenSslSession*, const unsigned char* key, std::size_t bytes) = nullptr;
  int (*session_set_cipher)(OpenSslSession*, const OpenSslCipher*) = nullptr;
  int (*session_set_protocol_version)(OpenSslSession*, int version) = nullptr;
  const OpenSslCipher* (*cipher_find)(OpenSsl*, const unsigned char* code) = nullptr;
  OpenSslPipeMethod* (*meth_new)(int type, const char* name) = nullptr;
  int (*meth_set_write)(OpenSslPipeMethod*, int (*)(OpenSslPipe*, const char*, int)) = nullptr;
  int (*meth_set_read)(OpenSslPipeMethod*, int (*)(OpenSslPipe*, char*, int)) = nullptr;
  int (*meth_set_ctrl)(OpenSslPipeMethod*, long (*)(OpenSslPipe*, int, long, void*)) = nullptr;
  OpenSslPipe* (*bio_new)(const OpenSslPipeMethod*) = nullptr;
  void (*bio_set_data)(OpenSslPipe*, void* data) = nullptr;
  void* (*bio_get_data)(OpenSslPipe*) = nullptr;
  void (*bio_set_init)(OpenSslPipe*, int ready) = nullptr;
  void (*bio_set_flags)(OpenSslPipe*, int flags) = nullptr;
  void (*bio_clear_flags)(OpenSslPipe*, int flags) = nullptr;
  unsigned long (*err_get_error)() = nullptr;
  void (*err_clear_error)() = nullptr;

  // Returns the table of functions. The first call opens the library, which stays open; later calls return the same
  // result. Errors: kConfig if the library cannot be opened, lacks a function or cannot be initialised; the message
  // names the package to install.
  static Result<const TlsLibrary*> open();
};

}  // namespace tutti
