#include "data_connections.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "data_wire.h"

namespace gigl {
namespace {

constexpr uint64_t kWakeId = 0;
constexpr uint64_t kFirstConnection = 1 << 16;  // smaller numbers are listening sockets
constexpr int kAcceptedAtOnce = 16;
constexpr size_t kMaxDropped = 1024;

Clock::time_point In(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

Descriptor OpenReserve() { return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

DataConnection::DataConnection(Descriptor socket, std::shared_ptr<const TlsContext> tls, Peer peer)
    : stream(socket.release(), std::move(tls), ""), peer(std::move(peer)), handshaken(!stream.encrypted()) {}

DataConnections::DataConnections(const std::string& host, uint16_t port, std::shared_ptr<const TlsContext> tls,
                                 const DataLimits& limits)
    : limits(limits), port_(port), next_id_(kFirstConnection), tls_(std::move(tls)) {
  listeners_ = Listen(host, port_);
  poller_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  waker_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  reserve_ = OpenReserve();
  if (!poller_ || !waker_ || !reserve_) ThrowErrno();
  Watch(waker_.get(), kWakeId, EPOLLIN, EPOLL_CTL_ADD);
  for (size_t i = 0; i < listeners_.size(); ++i) {
    Watch(listeners_[i].get(), i + 1, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_ADD);
  }
}

void DataConnections::Renew(std::shared_ptr<const TlsContext> tls) {
  const std::lock_guard lock(mutex_);
  tls_ = std::move(tls);
}

void DataConnections::Watch(int fd, uint64_t id, uint32_t events, int operation) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(poller_.get(), operation, fd, &event) != 0) ThrowErrno();
}

HeldConnection DataConnections::Take(Clock::time_point until) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    epoll_event event{};
    const int ready = epoll_wait(poller_.get(), &event, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready < 0 && errno != EINTR) ThrowErrno();
    if (ready == 0) return nullptr;
    if (ready < 0) continue;
    const uint64_t id = event.data.u64;
    if (id == kWakeId) return nullptr;
    if (id < kFirstConnection) {
      Accept(id);
    } else if (auto connection = TakeReady(id)) {
      return connection;
    }
  }
}

HeldConnection DataConnections::TakeReady(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second->resting) return nullptr;
  found->second->resting = false;
  return found->second;
}

// --- accepting

void DataConnections::Accept(uint64_t listener) {
  const std::lock_guard accepts(accepting_);
  if (listeners_.empty()) return;
  const int at = listeners_[listener - 1].get();
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    Descriptor socket(accept4(at, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      Admit(std::move(socket), peer);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (RefuseOne(at)) break;
      // The queue stays as it is, and so the socket readable: watched, it would keep a thread busy for nothing.
      // The next Sweep watches it again.
      return;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    }
  }
  Watch(at, listener, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_MOD);
}

// Takes one connection out of the queue, closes it, and makes room for the next one. Returns whether it could.
bool DataConnections::RefuseOne(int listener) {
  reserve_ = Descriptor();
  Descriptor refused(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  const bool could = refused || errno == EAGAIN || errno == EWOULDBLOCK;
  refused = Descriptor();
  const std::lock_guard lock(mutex_);
  DropStranger("no descriptor is left");
  reserve_ = OpenReserve();
  return could;
}

void DataConnections::Admit(Descriptor socket, const sockaddr_storage& address) {
  const int fd = socket.get();
  Peer peer = PeerOf(address);
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  if (per_network_[peer.network] >= limits.per_address) {
    Note(peer, "more than " + std::to_string(limits.per_address) + " connections of one address");
    return;
  }
  HeldConnection connection;
  try {
    connection = std::make_shared<DataConnection>(std::move(socket), tls_, std::move(peer));
    connection->id = next_id_++;
    connection->deadline = In(limits.stranger_s);
    Watch(fd, connection->id, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, EPOLL_CTL_ADD);
  } catch (const std::exception&) {
    return;  // no memory: it is closed
  }
  ++per_network_[connection->peer.network];
  strangers_.emplace(connection->id, connection);
  connections_.emplace(connection->id, std::move(connection));
  if (strangers_.size() > limits.strangers) {
    DropStranger(std::to_string(strangers_.size()) + " connections showed no token");
  }
}

// --- resting

void DataConnections::Rest(const HeldConnection& connection, uint32_t events) {
  const std::lock_guard lock(mutex_);
  RestLocked(connection, events);
}

void DataConnections::RestLocked(const HeldConnection& connection, uint32_t events) {
  if (stopped_) return DropLocked(connection, "");
  if (Clock::now() > connection->deadline) return DropLocked(connection, Overdue(*connection));
  if (!connections_.contains(connection->id)) return;
  connection->resting = true;
  try {
    Watch(connection->stream.fd(), connection->id, events | EPOLLRDHUP | EPOLLONESHOT, EPOLL_CTL_MOD);
  } catch (const std::runtime_error&) {
    DropLocked(connection, "");
  }
}

void DataConnections::EndCall(const HeldConnection& connection, bool closes) {
  connection->stream.Rest();
  connection->head.clear();
  if (connection->head.capacity() > kMaxHeaderText + kHeadBytes) connection->head.shrink_to_fit();
  if (connection->stream.HasPending()) closes = true;  // bytes that follow a request
  if (closes) shutdown(connection->stream.fd(), SHUT_WR);
  connection->lingers = closes;
  const std::lock_guard lock(mutex_);
  connection->deadline = In(closes ? limits.linger_s : limits.idle_s);
  RestLocked(connection, EPOLLIN);
}

void DataConnections::Trust(DataConnection& connection) {
  const std::lock_guard lock(mutex_);
  connection.trusted = true;
  strangers_.erase(connection.id);
}

void DataConnections::BeginHead(DataConnection& connection) {
  const std::lock_guard lock(mutex_);
  if (connection.trusted) connection.deadline = In(limits.stranger_s);
}

// --- ending

void DataConnections::Drop(const HeldConnection& connection, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  DropLocked(connection, reason);
}

void DataConnections::DropLocked(const HeldConnection& connection, const std::string& reason) {
  const HeldConnection held = connection;  // may be a reference into a map
  if (connections_.erase(held->id) == 0) return;
  const auto counted = per_network_.find(held->peer.network);
  if (--counted->second == 0) per_network_.erase(counted);
  strangers_.erase(held->id);
  if (!reason.empty()) Note(held->peer, reason);
  epoll_ctl(poller_.get(), EPOLL_CTL_DEL, held->stream.fd(), nullptr);
  held->stream.Cancel();  // a thread that reads from it ends
}

// Ends the oldest stranger of the network that has most of them: who comes with many pushes out its own.
void DataConnections::DropStranger(const std::string& reason) {
  std::unordered_map<std::string_view, size_t> counts;
  size_t most = 0;
  for (const auto& [id, each] : strangers_) most = std::max(most, ++counts[each->peer.network]);
  for (const auto& [id, each] : strangers_) {
    if (counts[each->peer.network] == most) return DropLocked(each, reason);
  }
}

void DataConnections::Note(const Peer& peer, const std::string& reason) {
  if (dropped_.size() < kMaxDropped) dropped_.push_back({peer.address, peer.port, reason});
}

// Returns what to tell of a connection whose time is over.
std::string DataConnections::Overdue(const DataConnection& connection) const {
  if (connection.trusted || connection.lingers) return "";
  return "no token within " + std::to_string(static_cast<int>(limits.stranger_s)) + " s";
}

std::vector<DroppedConnection> DataConnections::Sweep() {
  {
    const std::lock_guard accepts(accepting_);
    if (!reserve_) reserve_ = OpenReserve();
    for (size_t i = 0; i < listeners_.size(); ++i) {
      Watch(listeners_[i].get(), i + 1, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_MOD);
    }
  }
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  std::vector<HeldConnection> over;
  for (const auto& [id, each] : connections_) {
    if (each->resting && now > each->deadline) over.push_back(each);
  }
  for (const auto& each : over) DropLocked(each, Overdue(*each));
  return std::exchange(dropped_, {});
}

void DataConnections::Stop() {
  std::vector<HeldConnection> resting;
  const std::lock_guard accepts(accepting_);
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  stopped_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = write(waker_.get(), &one, sizeof one);
  listeners_.clear();
  for (const auto& [id, each] : connections_) {
    if (each->resting) resting.push_back(each);
  }
  for (const auto& each : resting) DropLocked(each, "");
}

size_t DataConnections::CancelAll() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, each] : connections_) each->stream.Cancel();
  return connections_.size();
}

size_t DataConnections::size() const {
  const std::lock_guard lock(mutex_);
  return connections_.size();
}

size_t DataConnections::num_strangers() const {
  const std::lock_guard lock(mutex_);
  return strangers_.size();
}

}  // namespace gigl
