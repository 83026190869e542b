// Connections to the data port: accepted, counted, waited for in one epoll, and ended when their time is over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "data_stream.h"
#include "listening.h"

namespace gigl {

// What a connection may take before its caller has shown a token, and how long connections may rest.
struct DataLimits {
  size_t strangers = 256;       // connections that have shown no token; beyond it one of them ends
  size_t per_address = 4096;    // connections of one address (IPv6: of its /64)
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

// One accepted connection. Its fields belong to the thread that took it; those below the line to whoever holds
// the mutex of the connections.
struct DataConnection {
  DataConnection(Descriptor socket, std::shared_ptr<const TlsContext> tls, Peer peer);

  DataStream stream;
  const Peer peer;
  uint64_t id = 0;
  bool handshaken = false;
  bool lingers = false;  // was refused; what it still sends is dropped
  size_t lingered = 0;
  std::vector<std::byte> head;  // that came so far, at most 4 KiB until it is complete
  std::string certificate;
  // ---
  bool resting = true;  // in the epoll
  bool trusted = false;
  Clock::time_point deadline;  // for what is waited for
};

using HeldConnection = std::shared_ptr<DataConnection>;

// All connections of one server. Thread-safe.
//
// A connection either rests in the epoll, or belongs to the thread that took it, until that one lets it rest
// again or drops it. Resting connections take no thread.
class DataConnections {
 public:
  // Listens at all addresses of `host`; port 0 takes a free one. Throws std::runtime_error.
  DataConnections(const std::string& host, uint16_t port, std::shared_ptr<const TlsContext> tls,
                  const DataLimits& limits);
  DataConnections(const DataConnections&) = delete;

  const DataLimits limits;

  uint16_t port() const { return port_; }

  // Uses another context for new connections.
  void Renew(std::shared_ptr<const TlsContext> tls);

  // Accepts connections until one is ready for a step, and takes it. Null after the time, or once stopped.
  HeldConnection Take(Clock::time_point until);

  // Lets a connection rest until `events`, within the deadline that it has. One whose deadline has passed, while
  // its caller kept a thread busy, ends.
  void Rest(const HeldConnection& connection, uint32_t events);

  // Lets a connection rest after a call: for the next one, or, where it `closes`, until its caller has read the
  // reply. Closed at once, unread bytes would have the kernel discard what is on its way.
  void EndCall(const HeldConnection& connection, bool closes);

  // Ends a connection. With a reason, it is told by the next Sweep.
  void Drop(const HeldConnection& connection, const std::string& reason);

  // Says that the caller has shown a token that is good.
  void Trust(DataConnection& connection);

  // Says that a request has begun: its head has to follow soon.
  void BeginHead(DataConnection& connection);

  // Ends connections whose time is over, and accepts again where there was no memory or descriptor for it.
  // Returns those that ended since the last call, except in good order.
  std::vector<DroppedConnection> Sweep();

  // Stops listening, ends resting connections and all waits of Take.
  void Stop();

  // Cancels what threads do with connections, and returns the number of connections.
  size_t CancelAll();

  size_t size() const;
  size_t num_strangers() const;

 private:
  void Watch(int fd, uint64_t id, uint32_t events, int operation) const;
  void Accept(uint64_t listener);
  bool RefuseOne(int listener);
  void Admit(Descriptor socket, const sockaddr_storage& address);
  HeldConnection TakeReady(uint64_t id);
  void RestLocked(const HeldConnection& connection, uint32_t events);
  void DropLocked(const HeldConnection& connection, const std::string& reason);
  void DropStranger(const std::string& reason);
  void Note(const Peer& peer, const std::string& reason);
  std::string Overdue(const DataConnection& connection) const;

  Descriptor poller_;
  Descriptor waker_;
  uint16_t port_;

  std::mutex accepting_;  // guards the two below; taken before `mutex_`
  std::vector<Descriptor> listeners_;
  Descriptor reserve_;  // closed for a moment, to accept and refuse a connection when descriptors have run out

  mutable std::mutex mutex_;  // guards what follows
  bool stopped_ = false;
  uint64_t next_id_;
  std::unordered_map<uint64_t, HeldConnection> connections_;
  std::unordered_map<std::string, size_t> per_network_;
  std::map<uint64_t, HeldConnection> strangers_;  // oldest first
  std::shared_ptr<const TlsContext> tls_;
  std::vector<DroppedConnection> dropped_;
};

}  // namespace gigl
