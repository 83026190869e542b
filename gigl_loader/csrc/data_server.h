// The listening side of the data port: threads wait for calls, and advance connections until a request's head has
// come.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "data_call.h"
#include "data_connections.h"
#include "mutex.h"
#include "tls.h"

namespace gigl {

// Tokens that callers may show. Immutable; cleared from memory at its end.
class AcceptedTokens {
 public:
  // `shown` has the values of the header `authorization` that are accepted; without one, every caller is. `refusal`
  // is the record that a caller gets which shows none of them.
  AcceptedTokens(std::vector<std::string> shown, std::string refusal);
  AcceptedTokens(const AcceptedTokens&) = delete;
  ~AcceptedTokens();

  // Returns whether the header text of a request has one line `authorization`, with an accepted value. The time
  // depends on the text only.
  bool Accept(std::string_view header) const;

  const std::string& refusal() const { return refusal_; }

 private:
  std::vector<std::string> shown_;
  const std::string refusal_;
};

// Strangers, who have shown no token, are served by one thread of the server's own: it accepts connections, makes
// handshakes, reads heads, and refuses those without an accepted token. Any number of threads call Next, which serves
// callers that have shown one; no thread belongs to a connection whose head has not come.
class DataServer {
 public:
  // Listens at all addresses of `host`; port 0 takes a free one. Without tokens, every caller is accepted. Throws
  // std::runtime_error.
  DataServer(const std::string& host, uint16_t port, std::shared_ptr<const TlsContext> tls, const DataLimits& limits,
             std::shared_ptr<const AcceptedTokens> tokens = nullptr);
  DataServer(const DataServer&) = delete;
  ~DataServer();

  uint16_t port() const { return connections_->port(); }

  // Uses another context for new connections.
  void Renew(std::shared_ptr<const TlsContext> tls) { connections_->Renew(std::move(tls)); }

  // Accepts other tokens of strangers from now on. Connections that have shown one stay.
  void Accept(std::shared_ptr<const AcceptedTokens> tokens);

  // Waits for a call, and meanwhile sends on what was posted. Null after the time, once the server was stopped, and when
  // the caller of a waiting call is gone.
  std::unique_ptr<DataCall> Next(double timeout_s);

  // Returns the waiting calls (DataCall::id) whose callers are gone, each once.
  std::vector<uint64_t> TakeGone() { return connections_->TakeGone(); }

  // Ends connections whose time is over, and accepts again where there was no memory or descriptor for it: to be
  // called every second. Returns connections that ended since the last call, except in good order.
  std::vector<DroppedConnection> Sweep() { return connections_->Sweep(); }

  // Stops listening, ends resting connections and all waits of Next. Calls under way go on.
  void Stop();

  // Cancels the calls under way, and returns their number.
  size_t CutAll() { return connections_->CancelAll(); }

  size_t num_connections() const { return connections_->size(); }
  size_t num_strangers() const { return connections_->num_strangers(); }
  size_t num_networks() const { return connections_->num_networks(); }

 private:
  void ServeStrangers();
  void AcceptOrRefuse(const HeldConnection& connection);
  bool Advance(const HeldConnection& connection);
  Step ReadHeads(DataConnection& connection);
  Step Linger(DataConnection& connection) const;

  const std::shared_ptr<DataConnections> connections_;
  Mutex accepting_;
  std::shared_ptr<const AcceptedTokens> tokens_ GUARDED_BY(accepting_);
  const pid_t process_;
  Mutex stopping_;
  std::thread strangers_ GUARDED_BY(stopping_);
};

}  // namespace gigl
