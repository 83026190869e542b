#include "data_connections.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "data_wire.h"

namespace gigl {
namespace {

constexpr uint64_t kWakeId = 0;
constexpr uint64_t kFirstConnection = 1 << 16;  // smaller numbers are listening sockets
constexpr int kAcceptedAtOnce = 256;
constexpr int kEventsAtOnce = 64;
constexpr int kStepsAtOnce = 4;  // of strangers, between two looks at what else is ready
constexpr std::string_view kNoMemory = "no memory is left";
constexpr size_t kSummedAtOnce = 256 << 10;  // bytes, which are in the second-level cache when they are sent
constexpr size_t kPostedAtOnce = 1 << 20;  // bytes of a reply, between two looks at what else is ready
constexpr size_t kMaxDropped = 64;  // told at once: whoever logs them holds a lock that calls need

Clock::time_point In(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

Descriptor OpenReserve() { return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

NetworkCounts::Place::~Place() {
  if (!counts_) return;
  const MutexLock lock(counts_->mutex_);
  const auto found = counts_->counts_.find(network_);
  if (--found->second == 0) counts_->counts_.erase(found);
}

std::unique_ptr<const NetworkCounts::Place> NetworkCounts::Take(const std::string& network) {
  auto place = std::make_unique<Place>(network);
  const MutexLock lock(mutex_);
  const auto found = counts_.find(network);
  if ((found == counts_.end() ? 0 : found->second) >= most_) return nullptr;
  ++counts_[network];
  place->counts_ = shared_from_this();
  return place;
}

size_t NetworkCounts::size() const {
  const MutexLock lock(mutex_);
  return counts_.size();
}

DataConnection::DataConnection(Descriptor socket, std::shared_ptr<const TlsContext> tls, Peer peer,
                               std::unique_ptr<const NetworkCounts::Place> place)
    : place(std::move(place)),
      stream(std::move(socket), std::move(tls), ""),
      peer(std::move(peer)),
      phase_(stream.encrypted() ? Phase::kGreeting : Phase::kHead) {}

void DataConnection::Enter(Phase next) {
  if (!MayFollow(phase_, next)) throw std::logic_error("a connection has missed a phase");
  phase_ = next;
}

DataConnections::Pool::Pool() : poller(epoll_create1(EPOLL_CLOEXEC)) {
  if (!poller) ThrowErrno();
}

DataConnections::DataConnections(const std::string& host, uint16_t port, std::shared_ptr<const TlsContext> tls,
                                 const DataLimits& limits)
    : limits(limits),
      overdue_("no token within " + std::to_string(static_cast<int>(limits.stranger_s)) + " s"),
      networks_(std::make_shared<NetworkCounts>(limits.per_address)),
      waker_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      port_(port),
      listeners_(Listen(host, port_)),
      reserve_(OpenReserve()),
      next_id_(kFirstConnection),
      tls_(std::move(tls)) {
  if (!waker_ || !reserve_) ThrowErrno();
  Watch(callers_, waker_.get(), kWakeId, EPOLLIN, EPOLL_CTL_ADD);
  Watch(strangers_, waker_.get(), kWakeId, EPOLLIN, EPOLL_CTL_ADD);
  for (size_t i = 0; i < listeners_.size(); ++i) {
    Watch(strangers_, listeners_[i].get(), i + 1, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_ADD);
  }
}

void DataConnections::Renew(std::shared_ptr<const TlsContext> tls) {
  const MutexLock lock(renewing_);
  tls_ = std::move(tls);
}

void DataConnections::Watch(const Pool& pool, int fd, uint64_t id, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(pool.poller.get(), operation, fd, &event) != 0) ThrowErrno();
}

HeldConnection DataConnections::Take(Clock::time_point until) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    epoll_event event{};
    const int ready = epoll_wait(callers_.poller.get(), &event, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready < 0 && errno != EINTR) ThrowErrno();
    if (ready == 0) return nullptr;
    if (ready < 0) continue;
    if (event.data.u64 == kWakeId) return nullptr;
    if (auto connection = TakeReady(callers_, event.data.u64)) return connection;
  }
}

void DataConnections::ServeStrangers(const std::function<void(const HeldConnection&)>& advance) {
  std::multimap<std::string, HeldConnection> ready;  // by network, oldest first
  std::string served;                                // network that had the last step
  while (true) {
    epoll_event events[kEventsAtOnce];
    const int count = epoll_wait(strangers_.poller.get(), events, kEventsAtOnce, ready.empty() ? -1 : 0);
    if (count < 0 && errno != EINTR) ThrowErrno();
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[i].data.u64;
      if (id == kWakeId) return;
      // Without memory one connection ends, and the rest go on: an exception would take all of `ready` along, which
      // no event would bring back. A listening socket is watched again by the next Sweep.
      HeldConnection connection;
      try {
        if (id < kFirstConnection) Accept(id);
        else if ((connection = TakeReady(strangers_, id))) ready.emplace(connection->peer.network, connection);
      } catch (const std::exception&) {
        if (connection) Drop(connection, kNoMemory);
      }
    }
    for (int i = 0; i < kStepsAtOnce && !ready.empty(); ++i) {
      auto next = ready.upper_bound(served);
      if (next == ready.end()) next = ready.begin();
      auto step = ready.extract(next);
      served.swap(step.key());
      const HeldConnection& connection = step.mapped();
      if (Holds(strangers_, connection->id)) advance(connection);  // else it was dropped meanwhile
    }
  }
}

bool DataConnections::Holds(const Pool& pool, uint64_t id) {
  const MutexLock lock(pool.mutex);
  return pool.connections.contains(id);
}

HeldConnection DataConnections::TakeReady(Pool& pool, uint64_t id) {
  const MutexLock lock(pool.mutex);
  const auto found = pool.connections.find(id);
  if (found == pool.connections.end() || !found->second->resting) return nullptr;
  found->second->resting = false;
  return found->second;
}

// --- accepting

void DataConnections::Accept(uint64_t listener) {
  const MutexLock accepts(accepting_);
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
  Watch(strangers_, at, listener, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_MOD);
}

// Takes one connection out of the queue, closes it, and makes room for the next one. Returns whether it could.
bool DataConnections::RefuseOne(int listener) {
  reserve_ = Descriptor();
  Descriptor refused(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  const bool could = refused || errno == EAGAIN || errno == EWOULDBLOCK;
  // The reserve takes the place of the connection, which closes it: no other thread can get the number meanwhile.
  if (refused && dup3(waker_.get(), refused.get(), O_CLOEXEC) >= 0) {
    reserve_ = std::move(refused);
  } else {
    reserve_ = OpenReserve();
  }
  const MutexLock lock(strangers_.mutex);
  DropStranger("no descriptor is left");
  return could;
}

void DataConnections::Admit(Descriptor socket, const sockaddr_storage& address) {
  const int fd = socket.get();
  try {
    Peer peer = PeerOf(address);
    auto place = networks_->Take(peer.network);
    if (!place) return Note(peer, "more than " + std::to_string(limits.per_address) + " connections of one address");
    const auto tls = [&] {
      const MutexLock lock(renewing_);
      return tls_;
    }();
    const auto connection = std::make_shared<DataConnection>(std::move(socket), tls, std::move(peer), std::move(place));
    connection->id = next_id_++;
    connection->deadline = In(limits.stranger_s);
    const MutexLock lock(strangers_.mutex);
    if (strangers_.stopped) return;
    const auto added = strangers_.connections.emplace(connection->id, connection).first;
    try {
      Watch(strangers_, fd, connection->id, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, EPOLL_CTL_ADD);
    } catch (...) {
      strangers_.connections.erase(added);
      throw;
    }
    if (strangers_.connections.size() > limits.strangers) {
      DropStranger(std::to_string(strangers_.connections.size()) + " connections showed no token");
    }
  } catch (const std::exception&) {
    // No memory: it is closed, and nothing of it stays.
  }
}

// --- resting

void DataConnections::Rest(const HeldConnection& connection, uint32_t events) {
  Pool& pool = PoolOf(*connection);
  const MutexLock lock(pool.mutex);
  RestLocked(pool, connection, events);
}

void DataConnections::RestLocked(Pool& pool, const HeldConnection& connection, uint32_t events) {
  if (pool.stopped) return DropLocked(pool, connection, "");
  if (Clock::now() > connection->deadline) return DropLocked(pool, connection, Overdue(*connection));
  if (!pool.connections.contains(connection->id)) return;
  connection->resting = true;
  try {
    Watch(pool, connection->stream.fd(), connection->id, events | EPOLLRDHUP | EPOLLONESHOT, EPOLL_CTL_MOD);
  } catch (const std::runtime_error&) {
    DropLocked(pool, connection, "");
  }
}

void DataConnections::EndCall(const HeldConnection& connection, bool closes) {
  connection->stream.Rest();
  connection->head.clear();
  if (connection->head.capacity() > kMaxHeaderText + kHeadBytes) connection->head.shrink_to_fit();
  if (connection->stream.HasPending()) closes = true;  // bytes that follow a request
  if (closes) shutdown(connection->stream.fd(), SHUT_WR);
  connection->linger_end = connection->stream.overhead() + limits.linger_bytes;
  Pool& pool = PoolOf(*connection);
  const MutexLock lock(pool.mutex);
  connection->Enter(closes ? Phase::kLingering : Phase::kHead);
  connection->deadline = In(closes ? limits.linger_s : limits.idle_s);
  RestLocked(pool, connection, EPOLLIN);
}

void DataConnections::Trust(const HeldConnection& connection) {
  // The entry itself moves, which needs no memory.
  auto entry = [&] {
    const MutexLock lock(strangers_.mutex);
    return strangers_.connections.extract(connection->id);
  }();
  if (entry.empty()) return;
  epoll_ctl(strangers_.poller.get(), EPOLL_CTL_DEL, connection->stream.fd(), nullptr);
  connection->Enter(Phase::kReady);
  connection->trusted = true;
  const MutexLock lock(callers_.mutex);
  if (callers_.stopped) return;
  const auto added = callers_.connections.insert(std::move(entry)).position;
  try {
    connection->resting = true;
    // Its head has come, so nothing more may: it can be written to, which wakes the thread that begins its call.
    Watch(callers_, connection->stream.fd(), connection->id, EPOLLOUT | EPOLLRDHUP | EPOLLONESHOT, EPOLL_CTL_ADD);
  } catch (...) {
    callers_.connections.erase(added);
    throw;
  }
}

void DataConnections::BeginHead(DataConnection& connection) {
  if (!connection.trusted) return;
  const MutexLock lock(callers_.mutex);
  connection.deadline = In(limits.stranger_s);
}

// --- replies that no thread waits for

void PostedReply::MakeReady(size_t most) {
  ready.clear();
  if (begun == 0 && taken == 0) ready.push_back({&head, kHeadBytes});
  for (size_t left = most; begun < pieces.size() && left > 0;) {
    const auto part = pieces[begun].subspan(taken, std::min(left, pieces[begun].size() - taken));
    if (sums) trailer = Crc32c(part, trailer);
    ready.push_back({const_cast<std::byte*>(part.data()), part.size()});
    left -= part.size();
    taken += part.size();
    if (taken == pieces[begun].size()) {
      ++begun;
      taken = 0;
    }
  }
  whole = begun == pieces.size();
  if (whole) ready.push_back({&trailer, kTrailerBytes});
  unsent = ready;
}

void DataConnections::Wait(const HeldConnection& connection) {
  Pool& pool = PoolOf(*connection);
  const MutexLock lock(pool.mutex);
  connection->Enter(Phase::kWaiting);
  connection->deadline = Clock::time_point::max();
  RestLocked(pool, connection, 0);
}

bool DataConnections::Resume(const HeldConnection& connection) {
  Pool& pool = PoolOf(*connection);
  const MutexLock lock(pool.mutex);
  if (!connection->resting || !pool.connections.contains(connection->id)) return false;
  connection->resting = false;  // an event that comes now finds that it does not rest
  connection->Enter(Phase::kSending);
  return true;
}

void DataConnections::Post(const HeldConnection& connection, std::unique_ptr<PostedReply> reply, double seconds) {
  const Patience patience = Patience::Of(seconds, seconds).ForPayload(reply->head.payload_bytes);
  reply->stall = patience.stall;
  reply->overdue = patience.deadline;
  connection->posted = std::move(reply);
  Continue(connection);
}

void DataConnections::Continue(const HeldConnection& connection) {
  PostedReply& reply = *connection->posted;
  try {
    Step step;
    size_t made = 0;
    do {
      if (reply.unsent.empty() && !reply.whole) reply.MakeReady(kSummedAtOnce);
      step = connection->stream.TrySend(reply.unsent, kSummedAtOnce);
      made += kSummedAtOnce;
    } while (step == Step::kDone && made < kPostedAtOnce && !(reply.whole && reply.unsent.empty()));
    if (step == Step::kClosed) {
      Drop(connection, "");
    } else if (step == Step::kDone && reply.unsent.empty() && reply.whole) {
      const auto sent = std::move(connection->posted);  // freed at the end, without a lock
      EndCall(connection, sent->closes);
    } else {
      Pool& pool = PoolOf(*connection);
      const MutexLock lock(pool.mutex);
      connection->deadline = std::min(reply.overdue, Clock::now() + reply.stall);
      RestLocked(pool, connection, step == Step::kWantRead ? EPOLLIN : EPOLLOUT);
    }
  } catch (const StreamError&) {
    Drop(connection, "");
  }
  FreeEnded();
}

bool DataConnections::Cut(const HeldConnection& connection, const PostedReply* reply, std::string_view reason) {
  Pool& pool = PoolOf(*connection);
  const MutexLock lock(pool.mutex);
  if (!connection->resting || reply == nullptr || connection->posted.get() != reply) return false;
  if (!pool.connections.contains(connection->id)) return false;
  DropLocked(pool, connection, reason);
  return true;
}

std::vector<uint64_t> DataConnections::TakeGone() {
  const MutexLock lock(noting_);
  return std::exchange(gone_, {});
}

void DataConnections::FreeEnded() {
  std::unique_ptr<PostedReply> ended;
  {
    const MutexLock lock(noting_);
    ended.swap(ended_);
  }
  while (ended) ended = std::move(ended->next);
}

// --- ending

void DataConnections::Drop(const HeldConnection& connection, std::string_view reason) {
  Pool& pool = PoolOf(*connection);
  const MutexLock lock(pool.mutex);
  DropLocked(pool, connection, reason);
}

void DataConnections::DropLocked(Pool& pool, const HeldConnection& connection, std::string_view reason) {
  // `connection` may be a reference to the entry that is erased.
  const HeldConnection held = connection;  // NOLINT(performance-unnecessary-copy-initialization)
  if (pool.connections.erase(held->id) == 0) return;
  if (!reason.empty()) Note(held->peer, reason);
  epoll_ctl(pool.poller.get(), EPOLL_CTL_DEL, held->stream.fd(), nullptr);
  held->stream.Cancel();  // a thread that reads from it ends
  const bool waits = held->phase() == Phase::kWaiting;
  if (!held->posted && !waits) return;
  const MutexLock noting(noting_);
  if (waits) {
    try {
      gone_.push_back(held->id);
    } catch (const std::bad_alloc&) {  // its request stays until it was sampled
    }
  }
  if (held->posted) {
    held->posted->next = std::move(ended_);
    ended_ = std::move(held->posted);
  }
}

// Ends the oldest stranger of the network that has most of them: who comes with many pushes out its own.
void DataConnections::DropStranger(std::string_view reason) {
  std::unordered_map<std::string_view, size_t> counts;
  size_t most = 0;
  for (const auto& [id, each] : strangers_.connections) most = std::max(most, ++counts[each->peer.network]);
  for (const auto& [id, each] : strangers_.connections) {
    if (counts[each->peer.network] == most) return DropLocked(strangers_, each, reason);
  }
}

void DataConnections::NoteRefused(const DataConnection& connection) { Note(connection.peer, "", true); }

void DataConnections::Note(const Peer& peer, std::string_view reason, bool refused) {
  const MutexLock lock(noting_);
  try {
    std::pair<std::string, std::string> key{peer.address, reason};
    const auto found = dropped_.find(key);
    if (found != dropped_.end()) {
      ++found->second.count;
    } else if (dropped_.size() < kMaxDropped) {
      dropped_.try_emplace(std::move(key), DroppedConnection{peer.address, peer.port, std::string(reason), refused});
    }
  } catch (const std::bad_alloc&) {
    // A connection ends all the same.
  }
}

// Returns what to tell of a connection whose time is over.
std::string_view DataConnections::Overdue(const DataConnection& connection) const {
  return connection.trusted || connection.phase() == Phase::kLingering ? std::string_view() : overdue_;
}

std::vector<DroppedConnection> DataConnections::Sweep() {
  {
    const MutexLock accepts(accepting_);
    if (!reserve_) reserve_ = OpenReserve();
    for (size_t i = 0; i < listeners_.size(); ++i) {
      Watch(strangers_, listeners_[i].get(), i + 1, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_MOD);
    }
  }
  SweepPool(strangers_);
  SweepPool(callers_);
  FreeEnded();
  std::vector<DroppedConnection> told;
  const MutexLock lock(noting_);
  for (auto& [key, each] : dropped_) told.push_back(std::move(each));
  dropped_.clear();
  return told;
}

void DataConnections::SweepPool(Pool& pool) {
  const MutexLock lock(pool.mutex);
  const auto now = Clock::now();
  for (auto next = pool.connections.begin(); next != pool.connections.end();) {
    const HeldConnection& each = (next++)->second;  // its entry may go
    if ((each->resting || &pool == &strangers_) && now > each->deadline) DropLocked(pool, each, Overdue(*each));
  }
}

void DataConnections::Stop() {
  {
    const MutexLock accepts(accepting_);
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(waker_.get(), &one, sizeof one);
    listeners_.clear();
  }
  StopPool(strangers_);
  StopPool(callers_);
  FreeEnded();
}

void DataConnections::StopPool(Pool& pool) {
  const MutexLock lock(pool.mutex);
  pool.stopped = true;
  for (auto next = pool.connections.begin(); next != pool.connections.end();) {
    const HeldConnection& each = (next++)->second;  // its entry may go
    if (each->resting || &pool == &strangers_) DropLocked(pool, each, "");
  }
}

size_t DataConnections::CancelAll() {
  size_t count = 0;
  for (Pool* pool : {&strangers_, &callers_}) {
    const MutexLock lock(pool->mutex);
    for (const auto& [id, each] : pool->connections) each->stream.Cancel();
    count += pool->connections.size();
  }
  return count;
}

size_t DataConnections::size() const {
  size_t count = 0;
  for (const Pool* pool : {&strangers_, &callers_}) {
    const MutexLock lock(pool->mutex);
    count += pool->connections.size();
  }
  return count;
}

size_t DataConnections::num_strangers() const {
  const MutexLock lock(strangers_.mutex);
  return strangers_.connections.size();
}

}  // namespace gigl
