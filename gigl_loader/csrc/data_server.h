// The listening side of the data port: connections rest in one epoll until a request's head has come.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data_stream.h"
#include "data_wire.h"

namespace gigl {

// What a connection may take before its caller has shown a token, and how long connections may rest.
struct DataLimits {
  size_t strangers = 256;       // connections that have shown no token; beyond it the oldest one ends
  size_t per_address = 4096;    // connections of one address
  double stranger_s = 15.0;     // from the connection to a head whose token was accepted
  double idle_s = 300.0;        // between two calls of a caller
  double linger_s = 2.0;        // in which a refused caller may take note of its refusal
  size_t linger_bytes = 1 << 20;  // that are read and dropped meanwhile
};

// A connection that the server ended, and why.
struct DroppedConnection {
  std::string address;
  uint16_t port;
  std::string reason;
};

struct DataServerCore;
struct DataConnection;

// A request whose head has come. Any thread may read its body and send its reply, one thread at a time. A call
// that ends without a reply takes its connection with it.
class DataCall {
 public:
  DataCall(std::shared_ptr<DataServerCore> core, std::shared_ptr<DataConnection> connection);
  DataCall(const DataCall&) = delete;
  ~DataCall();

  const RequestHead& head() const;
  std::string_view header() const;
  const std::string& address() const;
  uint16_t port() const;
  // The certificate that the caller showed (DER), or nothing.
  const std::string& certificate() const;

  // Says that the caller has shown a token that is good: its connection counts as a stranger's no more.
  void Trust();

  // Receives the body, of head().body_bytes. Returns whether it matches its checksum. Throws StreamError.
  bool ReadBody(std::span<std::byte> out, const Patience& patience);

  // Sends a reply of these pieces, and hands the connection back to the server. `crc` is the checksum of the
  // pieces; without one it is computed while they are sent, unless the caller does not look at it.
  void Reply(std::vector<std::span<const std::byte>> pieces, const uint32_t* crc, uint64_t membership,
             const Patience& patience);

  // Sends a refusal instead. The connection ends where the body was not read, or `closes`.
  void Refuse(std::span<const std::byte> record, bool closes, const Patience& patience);

  // Ends transfers of this call with StreamCancelled.
  void Cancel();

 private:
  void Send(std::vector<std::span<const std::byte>> pieces, uint8_t status, const uint32_t* crc, uint64_t membership,
            bool closes, const Patience& patience);

  const std::shared_ptr<DataServerCore> core_;
  std::shared_ptr<DataConnection> connection_;  // null once it was handed back
  const std::shared_ptr<DataConnection> subject_;
  const RequestHead head_;
  const std::string header_;
  std::vector<std::byte> early_;  // of the body, which came with the head
  bool body_taken_ = false;
  bool body_read_;
};

// Any number of threads call Next; whichever wakes accepts, makes a step of a handshake or reads a head. No thread
// belongs to a connection whose head has not come.
class DataServer {
 public:
  // Listens at all addresses of `host`; port 0 takes a free one. Throws std::runtime_error.
  DataServer(const std::string& host, uint16_t port, std::shared_ptr<const TlsContext> tls, const DataLimits& limits);
  ~DataServer();

  uint16_t port() const;

  // Uses another context for new connections.
  void Renew(std::shared_ptr<const TlsContext> tls);

  // Waits for a call. Null after the time, or once the server was stopped.
  std::unique_ptr<DataCall> Next(double timeout_s);

  // Ends connections whose time is over. Returns those that ended since the last call, except in good order.
  std::vector<DroppedConnection> Sweep();

  // Stops listening, ends resting connections and all waits of Next. Calls under way go on.
  void Stop();

  // Cancels the calls under way, and returns their number.
  size_t CutAll();

  size_t num_connections() const;
  size_t num_strangers() const;

 private:
  const std::shared_ptr<DataServerCore> core_;
};

}  // namespace gigl
