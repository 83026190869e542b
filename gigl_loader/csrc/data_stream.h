// One connection of the data port: a socket, plain or with TLS, whose waits have deadlines and can be cancelled.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "listening.h"
#include "tls.h"

namespace gigl {

using Clock = std::chrono::steady_clock;

// A connection is of no use any more. The text is one line.
class StreamError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
class StreamClosed : public StreamError {
 public:
  using StreamError::StreamError;
};
class StreamTimedOut : public StreamError {
 public:
  using StreamError::StreamError;
};
class StreamCancelled : public StreamError {
 public:
  using StreamError::StreamError;
};

// How long a transfer may take: until `deadline`, and never longer than `stall` without a byte.
struct Patience {
  Clock::time_point deadline;
  Clock::duration stall;

  static Patience Of(double total_s, double stall_s);

  // With more time for a payload, which a slow network may share with many others.
  Patience ForPayload(uint64_t nbytes) const;
};

// Of a payload, at least: a connection that carries fewer bytes for long counts as broken.
inline constexpr uint64_t kLeastBytesPerSecond = 256 << 10;

// One thread uses a stream at a time; any thread may cancel it.
class DataStream {
 public:
  // `socket` is connected, or connecting, and does not block. With a context, TLS comes first.
  DataStream(Descriptor socket, std::shared_ptr<const TlsContext> tls, const std::string& host);
  DataStream(const DataStream&) = delete;

  int fd() const { return socket_.get(); }
  bool encrypted() const { return tls_ != nullptr; }

  // One step that does not wait. `got` is 0 unless the step is kDone. Throws StreamError.
  Step TryHandshake();
  Step TryRead(std::span<std::byte> out, size_t& got);
  // Sends at most `most` bytes of `pieces`, and removes what was sent. kDone with pieces left: `most` were sent.
  Step TrySend(std::span<iovec>& pieces, size_t most);

  // Waits until connect() has ended.
  void AwaitConnected(const Patience& patience);
  // Waits for some bytes, at least one.
  void ReadSome(std::span<std::byte> out, size_t& got, const Patience& patience);
  // Waits for the handshake, for all of `out`, or until all of `pieces` are sent (and changes them).
  // Continues `crc`, if there is one, with the bytes, while they are in the caches.
  void Handshake(const Patience& patience);
  void Read(std::span<std::byte> out, const Patience& patience, uint32_t* crc = nullptr);
  void Write(std::span<iovec> pieces, const Patience& patience);

  // Sends as Write does, until received bytes lie ready. Returns whether all was sent.
  bool WriteUnlessAnswered(std::span<iovec> pieces, const Patience& patience);

  // Ends transfers under way, and all later ones, with StreamCancelled.
  void Cancel();

  void Rest() {
    if (tls_) tls_->Rest();
  }
  bool HasPending() const { return tls_ && tls_->HasPending(); }
  // Bytes received since the handshake that carried no data; 0 without TLS.
  uint64_t overhead() const { return tls_ ? tls_->overhead() : 0; }
  std::string PeerCertificate() const { return tls_ ? tls_->PeerCertificate() : std::string(); }

 private:
  Step TryWrite(std::span<iovec>& pieces, size_t& sent);
  // Returns the events that came; throws where none came in time.
  short Wait(short events, const Patience& patience, Clock::time_point since);
  bool Send(std::span<iovec> pieces, const Patience& patience, bool unless_answered);

  const Descriptor socket_;
  std::unique_ptr<TlsSession> tls_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace gigl
