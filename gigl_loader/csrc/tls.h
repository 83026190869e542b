// TLS by the OpenSSL of this machine, which is loaded when a first context is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

struct bio_st;
struct evp_pkey_st;
struct ssl_ctx_st;
struct ssl_st;
struct x509_st;

namespace gigl {

// No OpenSSL, or PEM that cannot be used. The text is one line.
class TlsUnusable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Outcome of a step that does not wait.
enum class Step { kDone, kWantRead, kWantWrite, kClosed };

struct OpenSsl;

// Owns what OpenSSL has made.
struct Free {
  void operator()(ssl_ctx_st* each) const;
  void operator()(ssl_st* each) const;
  void operator()(bio_st* each) const;
  void operator()(x509_st* each) const;
  void operator()(evp_pkey_st* each) const;
};
template <typename Made>
using Owned = std::unique_ptr<Made, Free>;

// Certificates, key and rules of a side. TLS 1.2 and later, without renegotiation, compression, session
// tickets and early data. Immutable: any number of threads and connections share one.
class TlsContext {
 public:
  // A server with a certificate chain and its key. With `client_roots`, callers must show a certificate that
  // one of these authorities signed. All are PEM.
  static std::shared_ptr<const TlsContext> Server(std::string_view chain, std::string_view key,
                                                  std::string_view client_roots);

  // A client that trusts `roots`, which may be self-signed certificates of servers, and shows `chain`, if it
  // is not empty.
  static std::shared_ptr<const TlsContext> Client(std::string_view roots, std::string_view chain,
                                                  std::string_view key);

  TlsContext(const TlsContext&) = delete;

 private:
  friend class TlsSession;
  friend struct SocketBio;
  TlsContext(bool is_server);
  void UsePair(std::string_view chain, std::string_view key);
  void Trust(std::string_view roots);

  const OpenSsl& api_;
  const bool is_server_;
  Owned<ssl_ctx_st> context_;
};

// TLS on one non-blocking socket. Throws std::runtime_error with OpenSSL's reason. Not thread-safe.
//
// A step of Handshake or Read takes no more than one record's bytes out of the socket, then says kWantRead. A server's
// handshake takes 32 KiB of its caller at most. Afterwards, more than 32 records or messages in a row without data
// (of TLS 1.3: updates of keys; of 1.2: offers to renegotiate) end the session: each costs the receiver far more than
// its sender, and BoringSSL allows as many. Answers to them are sent by the step that reads them; while 16 KiB of
// answers are unsent, a server reads no further.
class TlsSession {
 public:
  // `host` is the name or the address that a server's certificate must have; unused at a server.
  TlsSession(std::shared_ptr<const TlsContext> context, int fd, const std::string& host);
  TlsSession(const TlsSession&) = delete;

  Step Handshake();
  Step Read(std::span<std::byte> out, size_t& got);
  // Encrypts all of `data` or a part, which may stay in memory until Flush.
  Step Write(std::span<const std::byte> data, size_t& taken);
  Step Flush();

  // Bytes that a server received since the handshake that carried no data: heads of records, padding, messages of TLS.
  // As of the last whole record.
  uint64_t overhead() const { return overhead_; }

  // Frees memory that a connection does not need until its next message.
  void Rest();

  // Whether received bytes wait that were not read.
  bool HasPending() const;
  // The certificate that the other side showed (DER), or nothing.
  std::string PeerCertificate() const;

 private:
  friend struct SocketBio;
  Step StepOf(int result, const char* what);
  Step StepOfRead(int result, size_t& got);
  void Charge() { overhead_ = received_bytes_ - delivered_bytes_; }
  size_t unsent() const { return out_.size() - out_begin_; }

  std::shared_ptr<const TlsContext> context_;
  const OpenSsl& api_;
  const int fd_;
  Owned<ssl_st> session_;
  std::vector<std::byte> out_;  // records that were not sent yet, from out_begin_ on
  size_t out_begin_ = 0;
  size_t step_bytes_ = 0;  // received in this step
  bool established_ = false;
  uint64_t received_bytes_ = 0;   // of the handshake, then since it was done
  uint64_t delivered_bytes_ = 0;  // data that Read returned
  uint64_t overhead_ = 0;
  int dataless_records_ = 0, dataless_messages_ = 0;  // since the last data
  int io_errno_ = 0;
};

}  // namespace gigl
