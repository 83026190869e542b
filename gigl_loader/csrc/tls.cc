#include "tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "openssl.h"

namespace gigl {
namespace {

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

}  // namespace

// Reads and writes of OpenSSL. Its flags tell it that the socket is not ready.
struct SocketBio {
  static int Read(bio_st* bio, char* out, int size) {
    const OpenSsl& api = OpenSsl::Library();
    auto& session = *static_cast<TlsSession*>(api.BIO_get_data(bio));
    api.BIO_clear_flags(bio, kRetryAll);
    if (!session.established_ && session.context_->is_server_ && session.received_bytes_ > kGreetingBytes) {
      session.io_errno_ = EMSGSIZE;
      return -1;
    }
    if (session.step_bytes_ >= kStepBytes) {
      api.BIO_set_flags(bio, kRetryRead);
      return -1;
    }
    ssize_t got;
    do got = recv(session.fd_, out, size, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) api.BIO_set_flags(bio, kRetryRead);
      else session.io_errno_ = errno;
    } else {
      session.step_bytes_ += static_cast<size_t>(got);
      session.received_bytes_ += static_cast<uint64_t>(got);
    }
    return static_cast<int>(got);
  }

  static int Write(bio_st* bio, const char* data, int size) {
    const OpenSsl& api = OpenSsl::Library();
    auto& session = *static_cast<TlsSession*>(api.BIO_get_data(bio));
    api.BIO_clear_flags(bio, kRetryAll);
    if (session.unsent() >= kSendBytes && session.Flush() != Step::kDone) {
      if (session.io_errno_ == 0) api.BIO_set_flags(bio, kRetryWrite);
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
  static void Count(int sent, int, int type, const void*, size_t, ssl_st* ssl, void* argument) {
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
    OpenSsl::Library().SSL_set_shutdown(ssl, kReceivedShutdown);
  }

  // Says nothing of the end of a connection (BIO_CTRL_EOF): it is an error of the system without a number.
  static long Control(bio_st*, int command, long, void*) { return command == kBioFlush ? 1 : 0; }
};

namespace {

// The sockets of sessions, as OpenSSL knows them.
const bio_method_st* SocketMethod() {
  static const bio_method_st* const made = [] {
    const OpenSsl& api = OpenSsl::Library();
    bio_method_st* const method = api.BIO_meth_new(kBioSourceSink | 0x80 | 100, "gigl socket");  // a type of our own
    if (method == nullptr || api.BIO_meth_set_write(method, &SocketBio::Write) != 1 ||
        api.BIO_meth_set_read(method, &SocketBio::Read) != 1 ||
        api.BIO_meth_set_ctrl(method, &SocketBio::Control) != 1) {
      throw TlsUnusable("the OpenSSL of this machine takes no sockets of ours");
    }
    return method;
  }();
  return made;
}

// Refuses a password: OpenSSL would ask the terminal for it.
int NoPassword(char*, int, int, void*) { return -1; }

// Takes the oldest reason from the queue of errors, and empties it.
std::string Reason(const OpenSsl& api) {
  const unsigned long code = api.ERR_get_error();
  const char* text = code != 0 ? api.ERR_reason_error_string(code) : nullptr;
  api.ERR_clear_error();
  return text != nullptr ? text : "unknown reason";
}

// Reads PEM out of `text`, which has to stay.
Owned<bio_st> NewReader(const OpenSsl& api, std::string_view text) {
  Owned<bio_st> made(api.BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  if (!made) throw std::bad_alloc();
  return made;
}

// Calls `use` with each certificate of `pem`, which still belongs to this function. Returns their number.
template <typename Use>
size_t ForEachCertificate(const OpenSsl& api, std::string_view pem, Use use) {
  const auto reader = NewReader(api, pem);
  size_t count = 0;
  while (const Owned<x509_st> certificate{api.PEM_read_bio_X509(reader.get(), nullptr, &NoPassword, nullptr)}) {
    if (!use(certificate.get(), count++)) throw TlsUnusable("a certificate cannot be used: " + Reason(api));
  }
  api.ERR_clear_error();
  return count;
}

bool IsAddress(const std::string& host) {
  unsigned char parsed[16];
  return inet_pton(AF_INET, host.c_str(), parsed) == 1 || inet_pton(AF_INET6, host.c_str(), parsed) == 1;
}

}  // namespace

void Free::operator()(ssl_ctx_st* each) const { OpenSsl::Library().SSL_CTX_free(each); }
void Free::operator()(ssl_st* each) const { OpenSsl::Library().SSL_free(each); }
void Free::operator()(bio_st* each) const { OpenSsl::Library().BIO_free(each); }
void Free::operator()(x509_st* each) const { OpenSsl::Library().X509_free(each); }
void Free::operator()(evp_pkey_st* each) const { OpenSsl::Library().EVP_PKEY_free(each); }

TlsContext::TlsContext(bool is_server)
    : api_(OpenSsl::Library()), is_server_(is_server) {
  api_.ERR_clear_error();
  context_.reset(api_.SSL_CTX_new(is_server ? api_.TLS_server_method() : api_.TLS_client_method()));
  if (!context_) throw TlsUnusable("OpenSSL cannot make a context: " + Reason(api_));
  api_.SSL_CTX_ctrl(context_.get(), kCtrlMinVersion, kTls12, nullptr);
  api_.SSL_CTX_ctrl(context_.get(), kCtrlMode, kPartialWrite | kMovingBuffer | (is_server ? kReleaseBuffers : 0), nullptr);
  api_.SSL_CTX_ctrl(context_.get(), kCtrlSessionCache, 0, nullptr);
  api_.SSL_CTX_set_options(context_.get(), kNoCompression | kNoTicket | kNoRenegotiation | kServerPreference);
  api_.SSL_CTX_set_num_tickets(context_.get(), 0);
  if (api_.SSL_CTX_set_cipher_list(context_.get(), kCiphers) != 1 || api_.SSL_CTX_set_ciphersuites(context_.get(), kSuites) != 1) {
    throw TlsUnusable("OpenSSL has none of the ciphers: " + Reason(api_));
  }
}

std::shared_ptr<const TlsContext> TlsContext::Server(std::string_view chain, std::string_view key,
                                                     std::string_view client_roots) {
  std::shared_ptr<TlsContext> made(new TlsContext(true));
  made->UsePair(chain, key);
  if (!client_roots.empty()) {
    made->Trust(client_roots);
    made->api_.SSL_CTX_set_verify(made->context_.get(), kVerifyPeer | kVerifyRequired, nullptr);
  }
  return made;
}

std::shared_ptr<const TlsContext> TlsContext::Client(std::string_view roots, std::string_view chain,
                                                     std::string_view key) {
  std::shared_ptr<TlsContext> made(new TlsContext(false));
  made->Trust(roots);
  if (!chain.empty()) made->UsePair(chain, key);
  made->api_.SSL_CTX_set_verify(made->context_.get(), kVerifyPeer, nullptr);
  // Replies are large: several records are read from the socket at once.
  made->api_.SSL_CTX_ctrl(made->context_.get(), kCtrlReadAhead, 1, nullptr);
  made->api_.SSL_CTX_set_default_read_buffer_len(made->context_.get(), kReadAheadBytes);
  return made;
}

void TlsContext::UsePair(std::string_view chain, std::string_view key) {
  const size_t count = ForEachCertificate(api_, chain, [&](x509_st* certificate, size_t index) {
    if (index == 0) return api_.SSL_CTX_use_certificate(context_.get(), certificate) == 1;
    return api_.SSL_CTX_ctrl(context_.get(), kCtrlChainCert, 1, certificate) == 1;  // 1: takes a reference of its own
  });
  if (count == 0) throw TlsUnusable("the certificate is no PEM");
  const Owned<evp_pkey_st> parsed(api_.PEM_read_bio_PrivateKey(NewReader(api_, key).get(), nullptr, &NoPassword, nullptr));
  if (!parsed) throw TlsUnusable("the key is no PEM, or has a password: " + Reason(api_));
  const bool fits = api_.SSL_CTX_use_PrivateKey(context_.get(), parsed.get()) == 1 && api_.SSL_CTX_check_private_key(context_.get()) == 1;
  if (!fits) throw TlsUnusable("the key does not fit the certificate: " + Reason(api_));
}

void TlsContext::Trust(std::string_view roots) {
  x509_store_st* const store = api_.SSL_CTX_get_cert_store(context_.get());
  const size_t count = ForEachCertificate(api_, roots, [&](x509_st* certificate, size_t) {
    if (is_server_ && api_.SSL_CTX_add_client_CA(context_.get(), certificate) != 1) return false;
    return api_.X509_STORE_add_cert(store, certificate) == 1;
  });
  if (count == 0) throw TlsUnusable("the authority to trust is no PEM");
}

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, int fd, const std::string& host)
    : context_(std::move(context)),
      api_(context_->api_),
      fd_(fd),
      session_(api_.SSL_new(context_->context_.get())) {
  Owned<bio_st> bio(api_.BIO_new(SocketMethod()));
  if (!session_ || !bio) throw std::bad_alloc();
  api_.BIO_set_data(bio.get(), this);
  api_.BIO_set_init(bio.get(), 1);
  api_.SSL_set_bio(session_.get(), bio.get(), bio.get());
  static_cast<void>(bio.release());  // of the session now, which takes one reference where both are the same
  api_.SSL_set_msg_callback(session_.get(), &SocketBio::Count);
  api_.SSL_ctrl(session_.get(), kCtrlMessageArgument, 0, this);
  if (context_->is_server_) {
    api_.SSL_set_accept_state(session_.get());
    return;
  }
  api_.SSL_set_connect_state(session_.get());
  X509_VERIFY_PARAM_st* const rules = api_.SSL_get0_param(session_.get());
  // A self-signed certificate, or an intermediate one, may be the root itself.
  api_.X509_VERIFY_PARAM_set_flags(rules, kPartialChain | kTrustedFirst);
  api_.X509_VERIFY_PARAM_set_hostflags(rules, kNoPartialWildcards);
  const bool address = IsAddress(host);
  const int set = address ? api_.X509_VERIFY_PARAM_set1_ip_asc(rules, host.c_str()) : api_.X509_VERIFY_PARAM_set1_host(rules, host.data(), host.size());
  if (set != 1) throw std::runtime_error("TLS: " + host + " is no name that a certificate can have");
  if (!address) api_.SSL_ctrl(session_.get(), kCtrlHostName, 0, const_cast<char*>(host.c_str()));
}

Step TlsSession::StepOf(int result, const char* what) {
  const int error = api_.SSL_get_error(session_.get(), result);
  if (error == kErrorWantRead) return Step::kWantRead;
  if (error == kErrorWantWrite) return Step::kWantWrite;
  if (error == kErrorClosed || (error == kErrorSyscall && io_errno_ == 0)) return Step::kClosed;
  if (error == kErrorSyscall && (io_errno_ == ECONNRESET || io_errno_ == EPIPE)) return Step::kClosed;
  if (error == kErrorSyscall) throw std::runtime_error(std::string(what) + ": " + std::generic_category().message(io_errno_));
  const long verified = api_.SSL_get_verify_result(session_.get());
  const std::string reason = Reason(api_);
  if (verified != kVerified) throw std::runtime_error(std::string(what) + ": " + api_.X509_verify_cert_error_string(verified));
  throw std::runtime_error(std::string(what) + ": " + reason);
}

Step TlsSession::Handshake() {
  api_.ERR_clear_error();
  step_bytes_ = 0;
  const int result = api_.SSL_do_handshake(session_.get());
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
  api_.ERR_clear_error();
  step_bytes_ = 0;
  const int size = static_cast<int>(std::min<size_t>(out.size(), 1 << 30));
  const Step step = StepOfRead(api_.SSL_read(session_.get(), out.data(), size), got);
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
    api_.ERR_clear_error();
    const int size = static_cast<int>(std::min(data.size() - taken, kMaxRecord));
    const int result = api_.SSL_write(session_.get(), data.data() + taken, size);
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

bool TlsSession::HasPending() const { return api_.SSL_has_pending(session_.get()) == 1; }

std::string TlsSession::PeerCertificate() const {
  const Owned<x509_st> certificate(api_.SSL_get1_peer_certificate(session_.get()));
  if (!certificate) return {};
  std::string der(static_cast<size_t>(std::max(api_.i2d_X509(certificate.get(), nullptr), 0)), '\0');
  auto* end = reinterpret_cast<unsigned char*>(der.data());
  api_.i2d_X509(certificate.get(), &end);
  return der;
}

}  // namespace gigl
