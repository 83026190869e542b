#include "tls.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace gigl {

// Functions of OpenSSL 1.1.1 and 3, with prototypes of our own: the wheel is built without its headers.
struct OpenSsl {
  const void* (*tls_server_method)();
  const void* (*tls_client_method)();
  void* (*ctx_new)(const void*);
  void (*ctx_free)(void*);
  long (*ctx_ctrl)(void*, int, long, void*);
  uint64_t (*ctx_set_options)(void*, uint64_t);
  int (*ctx_set_cipher_list)(void*, const char*);
  int (*ctx_set_ciphersuites)(void*, const char*);
  int (*ctx_set_num_tickets)(void*, size_t);
  void (*ctx_set_read_buffer)(void*, size_t);
  int (*ctx_use_certificate)(void*, void*);
  int (*ctx_use_key)(void*, void*);
  int (*ctx_check_key)(const void*);
  void (*ctx_set_verify)(void*, int, void*);
  void* (*ctx_cert_store)(const void*);
  int (*ctx_add_client_ca)(void*, void*);
  int (*store_add_cert)(void*, void*);
  void* (*ssl_new)(void*);
  void (*ssl_free)(void*);
  void (*ssl_set_msg_callback)(void*, void (*)(int, int, int, const void*, size_t, void*, void*));
  void (*ssl_set_bio)(void*, void*, void*);
  void (*ssl_accept_state)(void*);
  void (*ssl_connect_state)(void*);
  void (*ssl_set_shutdown)(void*, int);
  int (*ssl_handshake)(void*);
  int (*ssl_read)(void*, void*, int);
  int (*ssl_write)(void*, const void*, int);
  int (*ssl_get_error)(const void*, int);
  int (*ssl_has_pending)(const void*);
  long (*ssl_ctrl)(void*, int, long, void*);
  void* (*ssl_get0_param)(void*);
  long (*ssl_verify_result)(const void*);
  void* (*ssl_peer_certificate)(const void*);
  int (*param_set_host)(void*, const char*, size_t);
  int (*param_set_ip)(void*, const char*);
  void (*param_set_hostflags)(void*, unsigned);
  int (*param_set_flags)(void*, unsigned long);
  const char* (*verify_text)(long);
  void* (*mem_bio)(const void*, int);
  int (*bio_free)(void*);
  void* (*bio_meth_new)(int, const char*);
  int (*bio_meth_set_write)(void*, int (*)(void*, const char*, int));
  int (*bio_meth_set_read)(void*, int (*)(void*, char*, int));
  int (*bio_meth_set_ctrl)(void*, long (*)(void*, int, long, void*));
  void* (*bio_new)(const void*);
  void (*bio_set_data)(void*, void*);
  void* (*bio_get_data)(void*);
  void (*bio_set_init)(void*, int);
  void (*bio_set_flags)(void*, int);
  void (*bio_clear_flags)(void*, int);
  void* (*pem_certificate)(void*, void*, void*, void*);
  void* (*pem_key)(void*, void*, void*, void*);
  void (*x509_free)(void*);
  int (*x509_to_der)(void*, unsigned char**);
  void (*key_free)(void*);
  unsigned long (*err_get)();
  void (*err_clear)();
  const char* (*err_reason)(unsigned long);
  void* socket_method;
};

namespace {

constexpr int kCtrlReadAhead = 41, kCtrlMode = 33, kCtrlSessionCache = 44, kCtrlHostName = 55;
constexpr int kCtrlChainCert = 89, kCtrlMinVersion = 123, kCtrlMessageArgument = 16, kBioFlush = 11;
constexpr int kHandshakeMessage = 22, kRecordHeader = 256;  // content types that the callback of messages is told
constexpr long kTls12 = 0x0303;
constexpr long kPartialWrite = 1, kMovingBuffer = 2, kReleaseBuffers = 16;
constexpr uint64_t kNoCompression = 1 << 17, kNoTicket = 1 << 14, kNoRenegotiation = 1 << 30;
constexpr uint64_t kServerPreference = 1 << 22;
constexpr int kVerifyPeer = 1, kVerifyRequired = 2;
constexpr unsigned long kPartialChain = 0x80000, kTrustedFirst = 0x8000;
constexpr unsigned kNoPartialWildcards = 4;
constexpr int kReceivedShutdown = 2;
constexpr int kErrorWantRead = 2, kErrorWantWrite = 3, kErrorSyscall = 5, kErrorClosed = 6;
constexpr int kRetryRead = 1 | 8, kRetryWrite = 2 | 8, kRetryAll = 15;
constexpr size_t kReadAheadBytes = 128 << 10;  // of a client: eight records come out of the kernel at once
constexpr size_t kSendBytes = 128 << 10;       // records are sent once so many bytes of them are ready
constexpr size_t kKeptBytes = 16 << 10, kMaxRecord = 16 << 10;
constexpr size_t kStepBytes = kMaxRecord + 5 + 256;  // the largest record of TLS 1.3
constexpr size_t kGreetingBytes = 32 << 10;  // of a caller, with its certificates; OpenSSL would keep 128 KiB of it
constexpr size_t kAnswerBytes = 16 << 10;    // of a server to messages without data, which its caller does not read
constexpr int kMaxDataless = 32;             // BoringSSL's kMaxKeyUpdates

// Hardware has AES; 128 bits cost a fifth less than 256.
constexpr char kSuites[] = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
constexpr char kCiphers[] =
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:"
    "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";

template <typename Function>
void Find(void* library, Function*& function, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    if (function != nullptr) return;
  }
  throw TlsUnusable(std::string("the OpenSSL of this machine has no ") + *names.begin() +
                    ": install OpenSSL 3 (libssl3), or 1.1.1");
}

}  // namespace

// Reads and writes of OpenSSL. Its flags tell it that the socket is not ready.
struct SocketBio {
  static const OpenSsl& Api();

  static int Read(void* bio, char* out, int size) {
    const OpenSsl& api = Api();
    auto& session = *static_cast<TlsSession*>(api.bio_get_data(bio));
    api.bio_clear_flags(bio, kRetryAll);
    if (!session.established_ && session.context_->is_server_ && session.received_bytes_ > kGreetingBytes) {
      session.io_errno_ = EMSGSIZE;
      return -1;
    }
    if (session.step_bytes_ >= kStepBytes) {
      api.bio_set_flags(bio, kRetryRead);
      return -1;
    }
    ssize_t got;
    do got = recv(session.fd_, out, size, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) api.bio_set_flags(bio, kRetryRead);
      else session.io_errno_ = errno;
    } else {
      session.step_bytes_ += static_cast<size_t>(got);
      session.received_bytes_ += static_cast<uint64_t>(got);
    }
    return static_cast<int>(got);
  }

  static int Write(void* bio, const char* data, int size) {
    const OpenSsl& api = Api();
    auto& session = *static_cast<TlsSession*>(api.bio_get_data(bio));
    api.bio_clear_flags(bio, kRetryAll);
    if (session.unsent() >= kSendBytes && session.Flush() != Step::kDone) {
      if (session.io_errno_ == 0) api.bio_set_flags(bio, kRetryWrite);
      return -1;
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(data);
    try {
      session.out_.insert(session.out_.end(), bytes, bytes + size);
    } catch (const std::exception&) {  // no exception may cross the frames of OpenSSL, which are C
      session.io_errno_ = ENOMEM;
      return -1;
    }
    return size;
  }

  // Counts what is received after the handshake. OpenSSL calls it with the head of each record, before that one is
  // opened, and with each message of a record that carries no data.
  static void Count(int sent, int, int type, const void*, size_t, void* ssl, void* argument) {
    auto& session = *static_cast<TlsSession*>(argument);
    if (sent != 0 || !session.established_) return;
    if (type == kRecordHeader) {
      ++session.dataless_records_;
      session.Charge();  // the data of the records before it was delivered
    }
    if (type == kHandshakeMessage) ++session.dataless_messages_;
    // The record that begins may carry data.
    if (session.dataless_records_ <= kMaxDataless + 1 && session.dataless_messages_ <= kMaxDataless) return;
    session.io_errno_ = EPROTO;
    // OpenSSL opens one record more. Without this it goes on until it has no bytes left: a client reads 128 KiB ahead,
    // which fit 5,000 updates of keys.
    Api().ssl_set_shutdown(ssl, kReceivedShutdown);
  }

  static long Control(void*, int command, long, void*) { return command == kBioFlush ? 1 : 0; }
};

namespace {

OpenSsl Load() {
  void* library = nullptr;
  for (const char* name : {"libssl.so.3", "libssl.so.1.1"}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    throw TlsUnusable("TLS needs OpenSSL, which this machine does not have: install libssl3 (or openssl-libs)");
  }
  OpenSsl api{};
  Find(library, api.tls_server_method, {"TLS_server_method"});
  Find(library, api.tls_client_method, {"TLS_client_method"});
  Find(library, api.ctx_new, {"SSL_CTX_new"});
  Find(library, api.ctx_free, {"SSL_CTX_free"});
  Find(library, api.ctx_ctrl, {"SSL_CTX_ctrl"});
  Find(library, api.ctx_set_options, {"SSL_CTX_set_options"});
  Find(library, api.ctx_set_cipher_list, {"SSL_CTX_set_cipher_list"});
  Find(library, api.ctx_set_ciphersuites, {"SSL_CTX_set_ciphersuites"});
  Find(library, api.ctx_set_num_tickets, {"SSL_CTX_set_num_tickets"});
  Find(library, api.ctx_set_read_buffer, {"SSL_CTX_set_default_read_buffer_len"});
  Find(library, api.ctx_use_certificate, {"SSL_CTX_use_certificate"});
  Find(library, api.ctx_use_key, {"SSL_CTX_use_PrivateKey"});
  Find(library, api.ctx_check_key, {"SSL_CTX_check_private_key"});
  Find(library, api.ctx_set_verify, {"SSL_CTX_set_verify"});
  Find(library, api.ctx_cert_store, {"SSL_CTX_get_cert_store"});
  Find(library, api.ctx_add_client_ca, {"SSL_CTX_add_client_CA"});
  Find(library, api.store_add_cert, {"X509_STORE_add_cert"});
  Find(library, api.ssl_new, {"SSL_new"});
  Find(library, api.ssl_free, {"SSL_free"});
  Find(library, api.ssl_set_msg_callback, {"SSL_set_msg_callback"});
  Find(library, api.ssl_set_bio, {"SSL_set_bio"});
  Find(library, api.ssl_accept_state, {"SSL_set_accept_state"});
  Find(library, api.ssl_connect_state, {"SSL_set_connect_state"});
  Find(library, api.ssl_set_shutdown, {"SSL_set_shutdown"});
  Find(library, api.ssl_handshake, {"SSL_do_handshake"});
  Find(library, api.ssl_read, {"SSL_read"});
  Find(library, api.ssl_write, {"SSL_write"});
  Find(library, api.ssl_get_error, {"SSL_get_error"});
  Find(library, api.ssl_has_pending, {"SSL_has_pending"});
  Find(library, api.ssl_ctrl, {"SSL_ctrl"});
  Find(library, api.ssl_get0_param, {"SSL_get0_param"});
  Find(library, api.ssl_verify_result, {"SSL_get_verify_result"});
  Find(library, api.ssl_peer_certificate, {"SSL_get1_peer_certificate", "SSL_get_peer_certificate"});
  Find(library, api.param_set_host, {"X509_VERIFY_PARAM_set1_host"});
  Find(library, api.param_set_ip, {"X509_VERIFY_PARAM_set1_ip_asc"});
  Find(library, api.param_set_hostflags, {"X509_VERIFY_PARAM_set_hostflags"});
  Find(library, api.param_set_flags, {"X509_VERIFY_PARAM_set_flags"});
  Find(library, api.verify_text, {"X509_verify_cert_error_string"});
  Find(library, api.mem_bio, {"BIO_new_mem_buf"});
  Find(library, api.bio_free, {"BIO_free"});
  Find(library, api.bio_meth_new, {"BIO_meth_new"});
  Find(library, api.bio_meth_set_write, {"BIO_meth_set_write"});
  Find(library, api.bio_meth_set_read, {"BIO_meth_set_read"});
  Find(library, api.bio_meth_set_ctrl, {"BIO_meth_set_ctrl"});
  Find(library, api.bio_new, {"BIO_new"});
  Find(library, api.bio_set_data, {"BIO_set_data"});
  Find(library, api.bio_get_data, {"BIO_get_data"});
  Find(library, api.bio_set_init, {"BIO_set_init"});
  Find(library, api.bio_set_flags, {"BIO_set_flags"});
  Find(library, api.bio_clear_flags, {"BIO_clear_flags"});
  Find(library, api.pem_certificate, {"PEM_read_bio_X509"});
  Find(library, api.pem_key, {"PEM_read_bio_PrivateKey"});
  Find(library, api.x509_free, {"X509_free"});
  Find(library, api.x509_to_der, {"i2d_X509"});
  Find(library, api.key_free, {"EVP_PKEY_free"});
  Find(library, api.err_get, {"ERR_get_error"});
  Find(library, api.err_clear, {"ERR_clear_error"});
  Find(library, api.err_reason, {"ERR_reason_error_string"});
  api.socket_method = api.bio_meth_new(0x0400 | 0x80 | 100, "gigl socket");  // a source and sink of our own
  if (api.socket_method == nullptr || api.bio_meth_set_write(api.socket_method, &SocketBio::Write) != 1 ||
      api.bio_meth_set_read(api.socket_method, &SocketBio::Read) != 1 ||
      api.bio_meth_set_ctrl(api.socket_method, &SocketBio::Control) != 1) {
    throw TlsUnusable("the OpenSSL of this machine takes no sockets of ours");
  }
  return api;
}

const OpenSsl& Library() {
  static const OpenSsl api = Load();  // a failed load is tried again by the next context
  return api;
}

// Refuses a password: OpenSSL would ask the terminal for it.
int NoPassword(char*, int, int, void*) { return -1; }

// Takes the oldest reason from the queue of errors, and empties it.
std::string Reason(const OpenSsl& api) {
  const unsigned long code = api.err_get();
  const char* text = code != 0 ? api.err_reason(code) : nullptr;
  api.err_clear();
  return text != nullptr ? text : "unknown reason";
}

// Calls `use` with each certificate of `pem`, which still belongs to this function. Returns their number.
template <typename Use>
size_t ForEachCertificate(const OpenSsl& api, std::string_view pem, Use use) {
  void* const bio = api.mem_bio(pem.data(), static_cast<int>(pem.size()));
  if (bio == nullptr) throw std::bad_alloc();
  size_t count = 0;
  bool works = true;
  while (works) {
    void* const certificate = api.pem_certificate(bio, nullptr, reinterpret_cast<void*>(&NoPassword), nullptr);
    if (certificate == nullptr) break;
    works = use(certificate, count++);
    api.x509_free(certificate);
  }
  api.bio_free(bio);
  if (!works) throw TlsUnusable("a certificate cannot be used: " + Reason(api));
  api.err_clear();
  return count;
}

bool IsAddress(const std::string& host) {
  unsigned char parsed[16];
  return inet_pton(AF_INET, host.c_str(), parsed) == 1 || inet_pton(AF_INET6, host.c_str(), parsed) == 1;
}

}  // namespace

const OpenSsl& SocketBio::Api() { return Library(); }

TlsContext::TlsContext(bool is_server)
    : ssl_(Library()), is_server_(is_server), context_(nullptr, ssl_.ctx_free) {
  ssl_.err_clear();
  context_.reset(ssl_.ctx_new(is_server ? ssl_.tls_server_method() : ssl_.tls_client_method()));
  if (context_ == nullptr) throw TlsUnusable("OpenSSL cannot make a context: " + Reason(ssl_));
  ssl_.ctx_ctrl(context_.get(), kCtrlMinVersion, kTls12, nullptr);
  ssl_.ctx_ctrl(context_.get(), kCtrlMode, kPartialWrite | kMovingBuffer | (is_server ? kReleaseBuffers : 0), nullptr);
  ssl_.ctx_ctrl(context_.get(), kCtrlSessionCache, 0, nullptr);
  ssl_.ctx_set_options(context_.get(), kNoCompression | kNoTicket | kNoRenegotiation | kServerPreference);
  ssl_.ctx_set_num_tickets(context_.get(), 0);
  if (ssl_.ctx_set_cipher_list(context_.get(), kCiphers) != 1 || ssl_.ctx_set_ciphersuites(context_.get(), kSuites) != 1) {
    throw TlsUnusable("OpenSSL has none of the ciphers: " + Reason(ssl_));
  }
}

std::shared_ptr<const TlsContext> TlsContext::Server(std::string_view chain, std::string_view key,
                                                     std::string_view client_roots) {
  std::shared_ptr<TlsContext> made(new TlsContext(true));
  made->UsePair(chain, key);
  if (!client_roots.empty()) {
    made->Trust(client_roots);
    made->ssl_.ctx_set_verify(made->context_.get(), kVerifyPeer | kVerifyRequired, nullptr);
  }
  return made;
}

std::shared_ptr<const TlsContext> TlsContext::Client(std::string_view roots, std::string_view chain,
                                                     std::string_view key) {
  std::shared_ptr<TlsContext> made(new TlsContext(false));
  made->Trust(roots);
  if (!chain.empty()) made->UsePair(chain, key);
  made->ssl_.ctx_set_verify(made->context_.get(), kVerifyPeer, nullptr);
  // Replies are large: several records are read from the socket at once.
  made->ssl_.ctx_ctrl(made->context_.get(), kCtrlReadAhead, 1, nullptr);
  made->ssl_.ctx_set_read_buffer(made->context_.get(), kReadAheadBytes);
  return made;
}

void TlsContext::UsePair(std::string_view chain, std::string_view key) {
  const size_t count = ForEachCertificate(ssl_, chain, [&](void* certificate, size_t index) {
    if (index == 0) return ssl_.ctx_use_certificate(context_.get(), certificate) == 1;
    return ssl_.ctx_ctrl(context_.get(), kCtrlChainCert, 1, certificate) == 1;  // 1: takes a reference of its own
  });
  if (count == 0) throw TlsUnusable("the certificate is no PEM");
  void* const bio = ssl_.mem_bio(key.data(), static_cast<int>(key.size()));
  if (bio == nullptr) throw std::bad_alloc();
  void* const parsed = ssl_.pem_key(bio, nullptr, reinterpret_cast<void*>(&NoPassword), nullptr);
  ssl_.bio_free(bio);
  if (parsed == nullptr) throw TlsUnusable("the key is no PEM, or has a password: " + Reason(ssl_));
  const bool fits = ssl_.ctx_use_key(context_.get(), parsed) == 1 && ssl_.ctx_check_key(context_.get()) == 1;
  ssl_.key_free(parsed);
  if (!fits) throw TlsUnusable("the key does not fit the certificate: " + Reason(ssl_));
}

void TlsContext::Trust(std::string_view roots) {
  void* const store = ssl_.ctx_cert_store(context_.get());
  const size_t count = ForEachCertificate(ssl_, roots, [&](void* certificate, size_t) {
    if (is_server_ && ssl_.ctx_add_client_ca(context_.get(), certificate) != 1) return false;
    return ssl_.store_add_cert(store, certificate) == 1;
  });
  if (count == 0) throw TlsUnusable("the authority to trust is no PEM");
}

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, int fd, const std::string& host)
    : context_(std::move(context)),
      api_(context_->ssl_),
      fd_(fd),
      session_(api_.ssl_new(context_->context_.get()), api_.ssl_free) {
  void* const bio = session_ ? api_.bio_new(api_.socket_method) : nullptr;
  if (bio == nullptr) throw std::bad_alloc();
  api_.bio_set_data(bio, this);
  api_.bio_set_init(bio, 1);
  api_.ssl_set_bio(session_.get(), bio, bio);
  api_.ssl_set_msg_callback(session_.get(), &SocketBio::Count);
  api_.ssl_ctrl(session_.get(), kCtrlMessageArgument, 0, this);
  if (context_->is_server_) {
    api_.ssl_accept_state(session_.get());
    return;
  }
  api_.ssl_connect_state(session_.get());
  void* const rules = api_.ssl_get0_param(session_.get());
  // A self-signed certificate, or an intermediate one, may be the root itself.
  api_.param_set_flags(rules, kPartialChain | kTrustedFirst);
  api_.param_set_hostflags(rules, kNoPartialWildcards);
  const bool address = IsAddress(host);
  const int set = address ? api_.param_set_ip(rules, host.c_str()) : api_.param_set_host(rules, host.data(), host.size());
  if (set != 1) throw std::runtime_error("TLS: " + host + " is no name that a certificate can have");
  if (!address) api_.ssl_ctrl(session_.get(), kCtrlHostName, 0, const_cast<char*>(host.c_str()));
}

Step TlsSession::StepOf(int result, const char* what) {
  const int error = api_.ssl_get_error(session_.get(), result);
  if (error == kErrorWantRead) return Step::kWantRead;
  if (error == kErrorWantWrite) return Step::kWantWrite;
  if (error == kErrorClosed || (error == kErrorSyscall && io_errno_ == 0)) return Step::kClosed;
  if (error == kErrorSyscall && (io_errno_ == ECONNRESET || io_errno_ == EPIPE)) return Step::kClosed;
  if (error == kErrorSyscall) throw std::runtime_error(std::string(what) + ": " + std::strerror(io_errno_));
  const long verified = api_.ssl_verify_result(session_.get());
  const std::string reason = Reason(api_);
  if (verified != 0) throw std::runtime_error(std::string(what) + ": " + api_.verify_text(verified));
  if (reason == "unexpected eof while reading") return Step::kClosed;
  throw std::runtime_error(std::string(what) + ": " + reason);
}

Step TlsSession::Handshake() {
  api_.err_clear();
  step_bytes_ = 0;
  const int result = api_.ssl_handshake(session_.get());
  if (result == 1) {
    if (!std::exchange(established_, true)) received_bytes_ = 0;
    return Flush();
  }
  Step step;
  try {
    step = StepOf(result, "TLS handshake");
  } catch (...) {
    if (io_errno_ == 0) Flush();  // the alert that tells the other side why
    throw;
  }
  const Step sent = Flush();
  return sent == Step::kDone ? step : sent;
}

Step TlsSession::Read(std::span<std::byte> out, size_t& got) {
  got = 0;
  if (context_->is_server_ && unsent() >= kAnswerBytes && Flush() == Step::kWantWrite) return Step::kWantWrite;
  api_.err_clear();
  step_bytes_ = 0;
  const int size = static_cast<int>(std::min<size_t>(out.size(), 1 << 30));
  const Step step = StepOfRead(api_.ssl_read(session_.get(), out.data(), size), got);
  if (step == Step::kWantRead && !HasPending()) Charge();  // whole records without data
  if (unsent() > 0) Flush();  // answers; an error of the socket comes again with the next step
  return step;
}

Step TlsSession::StepOfRead(int result, size_t& got) {
  if (result <= 0 && io_errno_ == EPROTO) {
    throw std::runtime_error("TLS: more than " + std::to_string(kMaxDataless) + " records without data");
  }
  if (result <= 0) return StepOf(result, "TLS");
  got = static_cast<size_t>(result);
  delivered_bytes_ += got;
  dataless_records_ = dataless_messages_ = 0;
  return Step::kDone;
}

Step TlsSession::Write(std::span<const std::byte> data, size_t& taken) {
  taken = 0;
  while (taken < data.size()) {
    api_.err_clear();
    const int size = static_cast<int>(std::min(data.size() - taken, kMaxRecord));
    const int result = api_.ssl_write(session_.get(), data.data() + taken, size);
    if (result <= 0) {
      const Step step = StepOf(result, "TLS");
      return taken > 0 && step != Step::kClosed ? Step::kDone : step;
    }
    taken += static_cast<size_t>(result);
  }
  return Step::kDone;
}

Step TlsSession::Flush() {
  while (out_begin_ < out_.size()) {
    const ssize_t sent = send(fd_, out_.data() + out_begin_, out_.size() - out_begin_, MSG_NOSIGNAL);
    if (sent >= 0) {
      out_begin_ += static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Step::kWantWrite;
    } else if (errno != EINTR) {
      io_errno_ = errno;
      return Step::kClosed;
    }
  }
  out_.clear();  // its memory is kept for the next piece of the message
  out_begin_ = 0;
  return Step::kDone;
}

void TlsSession::Rest() {
  if (out_.empty() && out_.capacity() > kKeptBytes) std::vector<std::byte>().swap(out_);
}

bool TlsSession::HasPending() const { return api_.ssl_has_pending(session_.get()) == 1; }

std::string TlsSession::PeerCertificate() const {
  void* const certificate = api_.ssl_peer_certificate(session_.get());
  if (certificate == nullptr) return {};
  std::string der(static_cast<size_t>(std::max(api_.x509_to_der(certificate, nullptr), 0)), '\0');
  auto* end = reinterpret_cast<unsigned char*>(der.data());
  api_.x509_to_der(certificate, &end);
  api_.x509_free(certificate);
  return der;
}

}  // namespace gigl
