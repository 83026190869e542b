// Declarations of the OpenSSL of this machine, versions 1.1.1 and 3. It is loaded when a first context is made, and the
// wheel is built without its headers. tests/native/openssl_declarations.cc compares these declarations with them.
#pragma once

#include <cstddef>
#include <cstdint>

struct bio_method_st;
struct bio_st;
struct evp_pkey_st;
struct ssl_ctx_st;
struct ssl_method_st;
struct ssl_st;
struct x509_st;
struct x509_store_ctx_st;
struct x509_store_st;
struct X509_VERIFY_PARAM_st;

namespace gigl {

using PasswordCallback = int(char*, int, int, void*);

// Each function that is called: X(result, name, parameters).
#define GIGL_OPENSSL_FUNCTIONS(X) \
  X(const ssl_method_st*, TLS_server_method, ()) \
  X(const ssl_method_st*, TLS_client_method, ()) \
  X(ssl_ctx_st*, SSL_CTX_new, (const ssl_method_st*)) \
  X(void, SSL_CTX_free, (ssl_ctx_st*)) \
  X(long, SSL_CTX_ctrl, (ssl_ctx_st*, int, long, void*)) \
  X(uint64_t, SSL_CTX_set_options, (ssl_ctx_st*, uint64_t)) \
  X(int, SSL_CTX_set_cipher_list, (ssl_ctx_st*, const char*)) \
  X(int, SSL_CTX_set_ciphersuites, (ssl_ctx_st*, const char*)) \
  X(int, SSL_CTX_set_num_tickets, (ssl_ctx_st*, size_t)) \
  X(void, SSL_CTX_set_default_read_buffer_len, (ssl_ctx_st*, size_t)) \
  X(int, SSL_CTX_use_certificate, (ssl_ctx_st*, x509_st*)) \
  X(int, SSL_CTX_use_PrivateKey, (ssl_ctx_st*, evp_pkey_st*)) \
  X(int, SSL_CTX_check_private_key, (const ssl_ctx_st*)) \
  X(void, SSL_CTX_set_verify, (ssl_ctx_st*, int, int (*)(int, x509_store_ctx_st*))) \
  X(x509_store_st*, SSL_CTX_get_cert_store, (const ssl_ctx_st*)) \
  X(int, SSL_CTX_add_client_CA, (ssl_ctx_st*, x509_st*)) \
  X(int, X509_STORE_add_cert, (x509_store_st*, x509_st*)) \
  X(ssl_st*, SSL_new, (ssl_ctx_st*)) \
  X(void, SSL_free, (ssl_st*)) \
  X(void, SSL_set_msg_callback, (ssl_st*, void (*)(int, int, int, const void*, size_t, ssl_st*, void*))) \
  X(void, SSL_set_bio, (ssl_st*, bio_st*, bio_st*)) \
  X(void, SSL_set_accept_state, (ssl_st*)) \
  X(void, SSL_set_connect_state, (ssl_st*)) \
  X(void, SSL_set_shutdown, (ssl_st*, int)) \
  X(int, SSL_do_handshake, (ssl_st*)) \
  X(int, SSL_read, (ssl_st*, void*, int)) \
  X(int, SSL_write, (ssl_st*, const void*, int)) \
  X(int, SSL_get_error, (const ssl_st*, int)) \
  X(int, SSL_has_pending, (const ssl_st*)) \
  X(long, SSL_ctrl, (ssl_st*, int, long, void*)) \
  X(X509_VERIFY_PARAM_st*, SSL_get0_param, (ssl_st*)) \
  X(long, SSL_get_verify_result, (const ssl_st*)) \
  X(x509_st*, SSL_get1_peer_certificate, (const ssl_st*)) \
  X(int, X509_VERIFY_PARAM_set1_host, (X509_VERIFY_PARAM_st*, const char*, size_t)) \
  X(int, X509_VERIFY_PARAM_set1_ip_asc, (X509_VERIFY_PARAM_st*, const char*)) \
  X(void, X509_VERIFY_PARAM_set_hostflags, (X509_VERIFY_PARAM_st*, unsigned)) \
  X(int, X509_VERIFY_PARAM_set_flags, (X509_VERIFY_PARAM_st*, unsigned long)) \
  X(const char*, X509_verify_cert_error_string, (long)) \
  X(bio_st*, BIO_new_mem_buf, (const void*, int)) \
  X(int, BIO_free, (bio_st*)) \
  X(bio_method_st*, BIO_meth_new, (int, const char*)) \
  X(int, BIO_meth_set_write, (bio_method_st*, int (*)(bio_st*, const char*, int))) \
  X(int, BIO_meth_set_read, (bio_method_st*, int (*)(bio_st*, char*, int))) \
  X(int, BIO_meth_set_ctrl, (bio_method_st*, long (*)(bio_st*, int, long, void*))) \
  X(bio_st*, BIO_new, (const bio_method_st*)) \
  X(void, BIO_set_data, (bio_st*, void*)) \
  X(void*, BIO_get_data, (bio_st*)) \
  X(void, BIO_set_init, (bio_st*, int)) \
  X(void, BIO_set_flags, (bio_st*, int)) \
  X(void, BIO_clear_flags, (bio_st*, int)) \
  X(x509_st*, PEM_read_bio_X509, (bio_st*, x509_st**, PasswordCallback*, void*)) \
  X(evp_pkey_st*, PEM_read_bio_PrivateKey, (bio_st*, evp_pkey_st**, PasswordCallback*, void*)) \
  X(void, X509_free, (x509_st*)) \
  X(int, i2d_X509, (const x509_st*, unsigned char**)) \
  X(void, EVP_PKEY_free, (evp_pkey_st*)) \
  X(unsigned long, ERR_get_error, ()) \
  X(void, ERR_clear_error, ()) \
  X(const char*, ERR_reason_error_string, (unsigned long))

struct OpenSsl {
#define GIGL_DECLARE(result, name, parameters) result(*name) parameters;
  GIGL_OPENSSL_FUNCTIONS(GIGL_DECLARE)
#undef GIGL_DECLARE

  // Loads the library, once. Throws TlsUnusable; a failed load is tried again by the next call.
  static const OpenSsl& Library();
};

// Constants of OpenSSL's headers: X(name, value, name in the headers).
#define GIGL_OPENSSL_CONSTANTS(X) \
  X(kCtrlMessageArgument, 16, SSL_CTRL_SET_MSG_CALLBACK_ARG) \
  X(kCtrlMode, 33, SSL_CTRL_MODE) \
  X(kCtrlReadAhead, 41, SSL_CTRL_SET_READ_AHEAD) \
  X(kCtrlSessionCache, 44, SSL_CTRL_SET_SESS_CACHE_MODE) \
  X(kCtrlHostName, 55, SSL_CTRL_SET_TLSEXT_HOSTNAME) \
  X(kCtrlChainCert, 89, SSL_CTRL_CHAIN_CERT) \
  X(kCtrlMinVersion, 123, SSL_CTRL_SET_MIN_PROTO_VERSION) \
  X(kTls12, 0x0303, TLS1_2_VERSION) \
  X(kHandshakeMessage, 22, SSL3_RT_HANDSHAKE) \
  X(kRecordHeader, 256, SSL3_RT_HEADER) \
  X(kPartialWrite, 1, SSL_MODE_ENABLE_PARTIAL_WRITE) \
  X(kMovingBuffer, 2, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER) \
  X(kReleaseBuffers, 16, SSL_MODE_RELEASE_BUFFERS) \
  X(kNoCompression, 1 << 17, SSL_OP_NO_COMPRESSION) \
  X(kNoTicket, 1 << 14, SSL_OP_NO_TICKET) \
  X(kNoRenegotiation, 1 << 30, SSL_OP_NO_RENEGOTIATION) \
  X(kServerPreference, 1 << 22, SSL_OP_CIPHER_SERVER_PREFERENCE) \
  X(kVerifyPeer, 1, SSL_VERIFY_PEER) \
  X(kVerifyRequired, 2, SSL_VERIFY_FAIL_IF_NO_PEER_CERT) \
  X(kTrustedFirst, 0x8000, X509_V_FLAG_TRUSTED_FIRST) \
  X(kPartialChain, 0x80000, X509_V_FLAG_PARTIAL_CHAIN) \
  X(kNoPartialWildcards, 4, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS) \
  X(kVerified, 0, X509_V_OK) \
  X(kReceivedShutdown, 2, SSL_RECEIVED_SHUTDOWN) \
  X(kErrorWantRead, 2, SSL_ERROR_WANT_READ) \
  X(kErrorWantWrite, 3, SSL_ERROR_WANT_WRITE) \
  X(kErrorSyscall, 5, SSL_ERROR_SYSCALL) \
  X(kErrorClosed, 6, SSL_ERROR_ZERO_RETURN) \
  X(kBioFlush, 11, BIO_CTRL_FLUSH) \
  X(kBioSourceSink, 0x0400, BIO_TYPE_SOURCE_SINK) \
  X(kRetryRead, 1 | 8, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY) \
  X(kRetryWrite, 2 | 8, BIO_FLAGS_WRITE | BIO_FLAGS_SHOULD_RETRY) \
  X(kRetryAll, 15, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY)

#define GIGL_DEFINE(name, value, original) constexpr int name = value;
GIGL_OPENSSL_CONSTANTS(GIGL_DEFINE)
#undef GIGL_DEFINE

}  // namespace gigl
