// What the fuzz targets of the data port share: a reader of their input, and a server that is stepped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "../../gigl_loader/csrc/data_server.h"

namespace gigl {

#define FUZZ_CHECK(condition)                                                            \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);       \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

constexpr size_t kMaxFuzzBody = 64 << 10;

// Fields out of the bytes of one input. Past their end all fields are 0.
class Input {
 public:
  explicit Input(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }

  template <typename Field>
  Field Take() {
    Field field = 0;
    for (size_t i = 0; i < sizeof field && !bytes_.empty(); ++i) {
      field = static_cast<Field>(field | static_cast<Field>(Field{bytes_.front()} << (8 * i)));
      bytes_ = bytes_.subspan(1);
    }
    return field;
  }

  // A number below `bound`, of one byte.
  size_t Below(size_t bound) { return Take<uint8_t>() % bound; }

  std::span<const std::byte> Bytes(size_t count) {
    const auto taken = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return std::as_bytes(taken);
  }

 private:
  std::span<const uint8_t> bytes_;
};

using Buffer = std::vector<std::byte>;

// Appends the bytes of a request with a right checksum. `announced` is the length of its body by its head.
void AppendRequest(Buffer& out, std::span<const std::byte> text, std::span<const std::byte> body, uint64_t announced,
                   uint16_t version, uint16_t flags);

// The bytes of a reply with a right checksum. `announced` is the length of its payload by its head.
void AppendReply(Buffer& out, std::span<const std::byte> payload, uint64_t announced, uint8_t status, uint8_t flags,
                 uint16_t version);

// A raw caller of a server in this process, whose bytes come in the pieces that the target chooses.
class RawSocket {
 public:
  static RawSocket ConnectTo(uint16_t port);
  explicit RawSocket(Descriptor socket);
  RawSocket(RawSocket&&) = default;

  int fd() const { return socket_.get(); }
  // Sends what the kernel takes at once: the buffers of the loopback hold more than an input.
  void Send(std::span<const std::byte> bytes);
  // Appends what lies ready to `received`.
  void Receive();
  // Whether the other side ended the connection; bytes may lie ready all the same.
  bool HasEnd() const;
  // Whether the server, of this process, has received all that was sent.
  bool IsTaken() const;
  // Says that somebody else sent so many bytes on this socket.
  void NoteSent(uint64_t count) { taken_at_end_ += count; }
  void EndOfBytes();
  // Closes so that neither side keeps the port in TIME_WAIT.
  void Reset();

  Buffer received;

 private:
  Descriptor socket_;
  uint64_t taken_at_end_;
};

// One server for the whole run: inputs are independent, because each ends with no connection left. Its strangers
// have the server's own thread, its calls the one that steps.
class SteppedServer {
 public:
  // `answer` takes each call that came.
  SteppedServer(std::shared_ptr<const TlsContext> tls, std::shared_ptr<const AcceptedTokens> tokens,
                std::function<void(DataCall&)> answer);

  // A caller that the server has accepted. There is one at a time: `Settle` waits for the end of it.
  RawSocket Connect();

  // Runs the server until it has received all that this caller sent, or ended the connection, or has answered.
  void Step(const RawSocket& caller);

  // Runs the server until a call was answered, which has to come.
  void Expect();

  // Runs the server until no connection is left.
  void Settle();

 private:
  bool Answer(double timeout_s);

  DataServer server_;
  const std::function<void(DataCall&)> answer_;
};

// Bytes that this process has allocated; 0 where the sanitizer does not count them.
size_t AllocatedBytes();

// Inputs to begin with, made by the target. libFuzzer finds them in the first folder of its command line.
std::vector<std::vector<uint8_t>> Seeds();

}  // namespace gigl
