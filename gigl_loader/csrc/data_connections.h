// Connections to the data port: accepted, counted, waited for in two epolls, and ended when their time is over.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data_stream.h"
#include "data_wire.h"
#include "listening.h"
#include "mutex.h"

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

// Connections of one address that the server ended for one reason.
struct DroppedConnection {
  std::string address;
  uint16_t port;  // of the first of them
  std::string reason;
  bool refused = false;  // for its token; else it was cut
  size_t count = 1;
};

// Number of connections of each network. Thread-safe.
class NetworkCounts : public std::enable_shared_from_this<NetworkCounts> {
 public:
  // One connection, while it lives.
  class Place {
   public:
    explicit Place(std::string network) : network_(std::move(network)) {}
    Place(const Place&) = delete;
    ~Place();

   private:
    friend class NetworkCounts;
    const std::string network_;
    std::shared_ptr<NetworkCounts> counts_;  // null until it counts
  };

  explicit NetworkCounts(size_t most) : most_(most) {}

  // Null where the network has `most` connections.
  std::unique_ptr<const Place> Take(const std::string& network);

  // Number of networks that have connections.
  size_t size() const;

 private:
  const size_t most_;
  mutable Mutex mutex_;
  std::unordered_map<std::string, size_t> counts_ GUARDED_BY(mutex_);
};

// A reply that is sent as the socket takes it, by whichever thread of Next finds it ready. No thread waits for it.
struct PostedReply {
  ReplyHead head{};
  uint32_t trailer = 0;
  bool sums = false;  // the caller looks at the checksum
  std::vector<std::span<const std::byte>> pieces;  // of the payload
  size_t begun = 0, taken = 0;  // pieces of which all was made ready, and bytes of the next one
  std::vector<iovec> ready;     // summed, and not sent yet: those of `unsent`
  std::span<iovec> unsent;
  bool whole = false;  // all was made ready, with the trailer
  bool closes = false;
  Clock::duration stall{};    // in which the caller has to read a part
  Clock::time_point overdue;  // when it has to be read

  // Makes the next part ready to be sent, and sums it while it is in the cache.
  void MakeReady(size_t most);

  // Keeps the payload. Its end may wait for the interpreter's lock, whose holder may wait for a mutex of this server:
  // it is never destroyed under one.
  std::shared_ptr<const void> memory;
  std::unique_ptr<PostedReply> next;  // among those that ended
};

enum class Phase : uint8_t {
  kGreeting,   // TLS handshake
  kHead,       // until a head is complete: of the first call, or of the next one
  kReady,      // the head is complete and its token accepted; no thread has begun the call
  kServing,    // a thread has the call
  kWaiting,    // for a reply that is made elsewhere: only the end of the connection is looked at
  kSending,    // the posted reply
  kLingering,  // after a refusal: what still comes is dropped
};

// Which phases may follow each. A connection may end in any.
constexpr bool MayFollow(Phase phase, Phase next) {
  using enum Phase;
  constexpr auto bit = [](auto... phases) { return static_cast<uint8_t>((0 | ... | (1 << static_cast<int>(phases)))); };
  constexpr std::array<uint8_t, 7> kNext{
      /* kGreeting  */ bit(kHead),
      /* kHead      */ bit(kReady, kServing, kLingering),  // a stranger is ready or refused, a caller served
      /* kReady     */ bit(kServing),
      /* kServing   */ bit(kWaiting, kHead, kLingering),
      /* kWaiting   */ bit(kSending),
      /* kSending   */ bit(kHead, kLingering),
      /* kLingering */ bit(),
  };
  return (kNext[static_cast<size_t>(phase)] >> static_cast<int>(next) & 1) != 0;
}

// One accepted connection. Its fields belong to the thread that took it; those below the line to whoever holds
// the mutex of its epoll. The phase is changed by the thread that took it, and read under that mutex, too.
class DataConnection {
 public:
  DataConnection(Descriptor socket, std::shared_ptr<const TlsContext> tls, Peer peer,
                 std::unique_ptr<const NetworkCounts::Place> place);

  Phase phase() const { return phase_; }
  // Throws std::logic_error where `next` may not follow.
  void Enter(Phase next);

  const std::unique_ptr<const NetworkCounts::Place> place;
  DataStream stream;
  const Peer peer;
  uint64_t id = 0;
  bool trusted = false;  // its caller has shown a token: it rests in the epoll of callers
  uint64_t lingered = 0, linger_end = 0;  // bytes that were dropped, and TLS around them, and where they end
  std::vector<std::byte> head;  // that came so far, at most 4 KiB until it is complete
  std::string certificate;
  std::unique_ptr<PostedReply> posted;  // what is being sent
  // ---
  bool resting = true;  // in its epoll: no thread has it
  Clock::time_point deadline;  // for what is waited for

 private:
  std::atomic<Phase> phase_;
};

using HeldConnection = std::shared_ptr<DataConnection>;

// All connections of one server. Thread-safe.
//
// A connection either rests in an epoll, or belongs to the thread that took it, until that one lets it rest again or
// drops it. Resting connections take no thread. Strangers, who have shown no token, have an epoll, a thread and a
// lock of their own: however many there are, and whatever they send, no call of anybody else waits for them.
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

  // Accepts connections, and calls `advance` with each stranger that is ready for a step, until stopped. One thread
  // does so. Connections that wait to be accepted go first: a full queue would have the kernel turn callers away.
  // Networks have steps in turn: who comes with many connections delays its own.
  void ServeStrangers(const std::function<void(const HeldConnection&)>& advance);

  // Takes the connection of a caller that is ready for a step. Null after the time, or once stopped.
  HeldConnection Take(Clock::time_point until);

  // Lets a connection rest until `events`, within the deadline that it has. One whose deadline has passed, while
  // its caller kept a thread busy, ends.
  void Rest(const HeldConnection& connection, uint32_t events);

  // Lets a connection rest after a call: for the next one, or, where it `closes`, until its caller has read the
  // reply. Closed at once, unread bytes would have the kernel discard what is on its way.
  void EndCall(const HeldConnection& connection, bool closes);

  // Lets a connection rest until its reply is posted. Take returns it, marked as waiting, once its caller is gone.
  void Wait(const HeldConnection& connection);

  // Takes a waiting connection back, to reply. False where it has ended, or another thread found that its caller is gone.
  bool Resume(const HeldConnection& connection);

  // Begins to send a reply. Does not wait. The connection ends where nothing is read for `seconds`, or the whole takes
  // longer than that and the time of a payload (Patience::ForPayload).
  void Post(const HeldConnection& connection, std::unique_ptr<PostedReply> reply, double seconds);

  // Goes on sending a posted reply, a part of it at a time, so that calls do not wait for a large one.
  void Continue(const HeldConnection& connection);

  // Ends a connection that waits for its caller to read `reply`, and tells the reason by the next Sweep. Returns false,
  // and does nothing, where it does not wait, or carries another reply.
  bool Cut(const HeldConnection& connection, const PostedReply* reply, std::string_view reason);

  // Returns the ids of waiting connections that were dropped, each once.
  std::vector<uint64_t> TakeGone();

  // Frees what posted replies kept that ended without having been sent. Call it without a lock.
  void FreeEnded();

  // Ends a connection. With a reason, it is told by the next Sweep.
  void Drop(const HeldConnection& connection, std::string_view reason);

  // Has the next Sweep tell that a stranger was refused for its token.
  void NoteRefused(const DataConnection& connection);

  // Says that a stranger has shown a token that is good, with a complete head: hands it over to Take.
  void Trust(const HeldConnection& connection);

  // Says that a request has begun: its head has to follow soon.
  void BeginHead(DataConnection& connection);

  // Ends connections whose time is over, and accepts again where there was no memory or descriptor for it.
  // Returns those that ended since the last call, except in good order: at most 64 addresses and reasons.
  std::vector<DroppedConnection> Sweep();

  // Stops listening, ends resting connections and all waits of Take.
  void Stop();

  // Cancels what threads do with connections, and returns the number of connections.
  size_t CancelAll();

  size_t size() const;
  size_t num_strangers() const;
  size_t num_networks() const { return networks_->size(); }

 private:
  // Connections that rest in one epoll.
  struct Pool {
    Pool();

    const Descriptor poller;
    mutable Mutex mutex;  // guards fields of these connections, too
    bool stopped GUARDED_BY(mutex) = false;
    std::map<uint64_t, HeldConnection> connections GUARDED_BY(mutex);  // oldest first
  };

  Pool& PoolOf(const DataConnection& connection) { return connection.trusted ? callers_ : strangers_; }
  static void Watch(const Pool& pool, int fd, uint64_t id, uint32_t events, int operation);
  static HeldConnection TakeReady(Pool& pool, uint64_t id);
  static bool Holds(const Pool& pool, uint64_t id);
  void Accept(uint64_t listener);
  bool RefuseOne(int listener) REQUIRES(accepting_);
  void Admit(Descriptor socket, const sockaddr_storage& address);
  void RestLocked(Pool& pool, const HeldConnection& connection, uint32_t events) REQUIRES(pool.mutex);
  void DropLocked(Pool& pool, const HeldConnection& connection, std::string_view reason) REQUIRES(pool.mutex);
  void DropStranger(std::string_view reason) REQUIRES(strangers_.mutex);
  void SweepPool(Pool& pool);
  void StopPool(Pool& pool);
  void Note(const Peer& peer, std::string_view reason, bool refused = false);
  std::string_view Overdue(const DataConnection& connection) const;

  const std::string overdue_;  // reason that is noted of a stranger whose time is over
  const std::shared_ptr<NetworkCounts> networks_;
  Descriptor waker_;
  uint16_t port_;

  Mutex accepting_;  // taken before those of pools
  std::vector<Descriptor> listeners_ GUARDED_BY(accepting_);
  Descriptor reserve_ GUARDED_BY(accepting_);  // closed for a moment, to accept and refuse a connection when descriptors have run out

  Pool strangers_;  // and listening sockets
  Pool callers_;    // have shown a token

  uint64_t next_id_;  // of the thread that accepts

  Mutex renewing_;
  std::shared_ptr<const TlsContext> tls_ GUARDED_BY(renewing_);

  Mutex noting_;  // taken last
  // By address and reason.
  std::map<std::pair<std::string, std::string>, DroppedConnection> dropped_ GUARDED_BY(noting_);
  std::unique_ptr<PostedReply> ended_ GUARDED_BY(noting_);  // a list, which grows without memory
  std::vector<uint64_t> gone_ GUARDED_BY(noting_);
};

}  // namespace gigl
