// A caller's connection to the data port of one server.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data_stream.h"
#include "data_wire.h"
#include "mutex.h"

namespace gigl {

// One call at a time; any thread may cancel. After a StreamError, or a call that was not read to its end, the
// connection is of no further use.
class DataClient {
 public:
  // Without a context, plain text. `host` is a name or an address, `name` what the certificate must name, if
  // that is another.
  DataClient(std::string host, uint16_t port, std::shared_ptr<const TlsContext> tls, const std::string& name = "");
  ~DataClient();

  // Resolves the name anew, and tries its addresses one after the other. Throws StreamError.
  void Connect(double timeout_s);

  // Sends a request and returns the head of its reply. The whole call has `timeout_s`, and the time that a payload
  // takes at kLeastBytesPerSecond; no byte for `timeout_s` ends it, too. Throws StreamError, and StreamClosed where the
  // server closed the connection before its reply.
  // `flags` say what the body is (kSample).
  ReplyHead Call(std::string_view header, std::span<const std::byte> body, double timeout_s, uint16_t flags = 0);

  // Ends the call where no byte comes for so long. Until then, silence may last as long as the call.
  void ExpectWithin(double seconds);

  // Reads the next bytes of the payload, whose length is that of `out`. Throws std::length_error beyond its end.
  void Read(std::span<std::byte> out);

  // Reads what follows the payload. Returns whether the checksum matches, which TLS makes sure of.
  bool Finish();

  // Whether a further call can be made.
  bool reusable() const { return reusable_; }
  uint64_t left() const { return left_; }

  // Ends what is under way, with StreamCancelled, and everything later. Before Connect: the connection never begins.
  void Cancel();

  // Whether the server has closed this idle connection, or sent what it should not have.
  bool IsStale();

 private:
  void Receive(std::span<std::byte> out, uint32_t* crc);

  const std::string host_;
  const uint16_t port_;
  const std::shared_ptr<const TlsContext> tls_;
  const std::string name_;
  Mutex mutex_;  // held while `stream_` is replaced, and by Cancel
  std::unique_ptr<DataStream> stream_;
  bool cancelled_ GUARDED_BY(mutex_) = false;
  Patience patience_{};
  std::unique_ptr<std::byte[]> received_;  // bytes that came with the head
  size_t begin_ = 0;
  size_t end_ = 0;
  uint64_t left_ = 0;
  uint32_t crc_ = 0;
  bool reusable_ = false;
  bool closes_ = false;
};

}  // namespace gigl
