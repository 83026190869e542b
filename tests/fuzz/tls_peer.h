// The other side of TLS in tests: OpenSSL up to the end of the handshake, then records of any kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gigl {

struct KeyPair {
  std::string certificate;  // PEM, self-signed, for 127.0.0.1 and localhost
  std::string key;          // PEM
};

KeyPair NewKeyPair();

enum class TlsVersion { k12, k13 };

// TLS on a non-blocking socket, which it does not own. It verifies no certificate, offers AES-128-GCM with SHA-256
// only, and learns the secrets of its session. OpenSSL makes the handshake and opens received records; `Seal`
// makes the records to send, also those that OpenSSL would not.
class TlsPeer {
 public:
  // Without `pair` a client; with it a server.
  TlsPeer(int fd, TlsVersion version, const KeyPair* pair);
  TlsPeer(const TlsPeer&) = delete;
  ~TlsPeer();

  // One step. Returns whether the handshake is done.
  bool Handshake();

  // Bytes that OpenSSL has sent: those of the handshake.
  uint64_t written() const;

  // Returns one record, sealed under the next sequence number. Its plain text may have any length: a record over
  // 16 KiB breaks the protocol. `padding` counts zeros after the content, of TLS 1.3.
  std::vector<std::byte> Seal(uint8_t type, std::span<const std::byte> text, size_t padding = 0);

  // The next record gets a number that is higher by `count`.
  void Skip(uint64_t count) { sequence_ += count; }

  // Derives the sending keys that follow an update of keys.
  void NextKeys();

  // Opens what was received and returns the number of bytes put into `out`; 0: none, or the end.
  size_t Read(std::span<std::byte> out);

 private:
  static void Learn(const void* session, const char* line);
  void DeriveFromSecret();
  void DeriveFromMaster();

  const TlsVersion version_;
  const bool is_server_;
  void* context_;
  void* session_;
  std::vector<uint8_t> secret_;  // TLS 1.3: of this side's records; TLS 1.2: the master secret
  std::vector<uint8_t> key_;
  std::vector<uint8_t> salt_;  // the whole IV of TLS 1.3, the first four bytes of TLS 1.2
  uint64_t sequence_ = 0;
};

}  // namespace gigl
