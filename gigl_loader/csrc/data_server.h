// The listening side of the data port: threads wait for calls, and advance connections until a request's head has
// come.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data_call.h"
#include "data_connections.h"
#include "tls.h"

namespace gigl {

// Any number of threads call Next; whichever wakes accepts, makes a step of a handshake or reads a head. No thread
// belongs to a connection whose head has not come.
class DataServer {
 public:
  // Listens at all addresses of `host`; port 0 takes a free one. Throws std::runtime_error.
  DataServer(const std::string& host, uint16_t port, std::shared_ptr<const TlsContext> tls, const DataLimits& limits);
  ~DataServer();

  uint16_t port() const { return connections_->port(); }

  // Uses another context for new connections.
  void Renew(std::shared_ptr<const TlsContext> tls) { connections_->Renew(std::move(tls)); }

  // Waits for a call. Null after the time, or once the server was stopped.
  std::unique_ptr<DataCall> Next(double timeout_s);

  // Ends connections whose time is over, and accepts again where there was no memory or descriptor for it: to be
  // called every second. Returns connections that ended since the last call, except in good order.
  std::vector<DroppedConnection> Sweep() { return connections_->Sweep(); }

  // Stops listening, ends resting connections and all waits of Next. Calls under way go on.
  void Stop() { connections_->Stop(); }

  // Cancels the calls under way, and returns their number.
  size_t CutAll() { return connections_->CancelAll(); }

  size_t num_connections() const { return connections_->size(); }
  size_t num_strangers() const { return connections_->num_strangers(); }

 private:
  std::unique_ptr<DataCall> Advance(const HeldConnection& connection);
  Step ReadHeads(DataConnection& connection);
  Step Linger(DataConnection& connection) const;

  const std::shared_ptr<DataConnections> connections_;
};

}  // namespace gigl
