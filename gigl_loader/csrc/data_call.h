// One request to the data port, whose head has come, and its reply.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data_connections.h"
#include "data_stream.h"
#include "data_wire.h"
#include "mutex.h"

namespace gigl {

// Any thread may read its body and send its reply, one thread at a time. A call that ends without a reply takes its
// connection with it.
class DataCall {
 public:
  DataCall(std::shared_ptr<DataConnections> connections, HeldConnection connection);
  DataCall(const DataCall&) = delete;
  ~DataCall();

  const RequestHead& head() const { return head_; }
  std::string_view header() const { return header_; }
  const std::string& address() const { return subject_->peer.address; }
  uint16_t port() const { return subject_->peer.port; }
  // The certificate that the caller showed (DER), or nothing.
  const std::string& certificate() const { return subject_->certificate; }

  // Receives the body, of head().body_bytes. Returns whether it matches its checksum. Throws StreamError.
  bool ReadBody(std::span<std::byte> out, const Patience& patience);

  // Sends a reply of these pieces, and hands the connection back to the server. `crc` is the checksum of the
  // pieces; without one it is computed while they are sent, unless the caller does not look at it.
  void Reply(const std::vector<std::span<const std::byte>>& pieces, const uint32_t* crc, uint64_t membership,
             const Patience& patience);

  // Sends a refusal instead. The connection ends where the body was not read, or `closes`. After a reply that was
  // begun and failed, the connection has ended: this throws, and sends nothing into the middle of the payload.
  void Refuse(std::span<const std::byte> record, bool closes, const Patience& patience);

  // Lets the call wait for its reply without a thread, once its body was read. Then come Post or PostRefusal, from any
  // thread; or Next tells that the caller is gone.
  void Wait();

  // Sends a reply of these pieces, or a refusal, without waiting: the server sends on what the socket does not take.
  // `memory` keeps the pieces until they were sent. Does nothing where the caller is gone.
  void Post(const std::vector<std::span<const std::byte>>& pieces, std::shared_ptr<const void> memory, uint64_t membership,
            double seconds);
  void PostRefusal(std::string record, double seconds);

  // Ends the connection of a posted reply that its caller does not read. Returns false, and does nothing, where the
  // reply was sent, or a part of it is being sent just now.
  bool CutReply(std::string_view reason);

  // Tells this call from others of the server, while it waits.
  uint64_t id() const { return subject_->id; }

  // Whether the caller has closed its side of the connection, or the connection was reset. Any thread may look.
  bool Gone() const;

  // Ends transfers of this call with StreamCancelled. Returns false, and does nothing, once the connection was handed
  // back: it may carry the caller's next call by then. Any thread may cancel.
  bool Cancel();

 private:
  ReplyHead NewHead(const std::vector<std::span<const std::byte>>& pieces, uint8_t status, uint64_t membership,
                    bool closes) const;
  void PostPieces(const std::vector<std::span<const std::byte>>& pieces, std::shared_ptr<const void> memory,
                  uint8_t status, uint64_t membership, double seconds);
  void Send(const std::vector<std::span<const std::byte>>& pieces, uint8_t status, const uint32_t* crc, uint64_t membership,
            bool closes, const Patience& patience);
  void SendPieces(ReplyHead& head, const std::vector<std::span<const std::byte>>& pieces, const uint32_t* crc,
                  const Patience& patience);
  HeldConnection Release();

  const std::shared_ptr<DataConnections> connections_;
  Mutex releasing_;            // held while `connection_` is released, and by Cancel
  HeldConnection connection_;  // null once it was handed back
  const HeldConnection subject_;
  const RequestHead head_;
  const std::string header_;
  std::vector<std::byte> early_;  // of the body, which came with the head
  bool body_taken_ = false;
  bool body_read_;
  std::atomic<const PostedReply*> posted_ = nullptr;  // told from others of the connection by its address
};

}  // namespace gigl
