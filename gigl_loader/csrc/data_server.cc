#include "data_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <map>
#include <system_error>
#include <unordered_map>
#include <utility>

namespace gigl {

namespace {

constexpr size_t kScratchBytes = 64 << 10;
constexpr size_t kSendBytes = 256 << 10;  // summed while they are in the second-level cache, then sent
constexpr uint64_t kWakeId = 0;
constexpr uint64_t kFirstConnection = 1 << 16;  // smaller numbers are listening sockets
constexpr int kBacklog = 1024;
constexpr int kAcceptedAtOnce = 16;
constexpr size_t kMaxDropped = 1024;

Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void ThrowErrno() { throw std::system_error(errno, std::generic_category()); }

Descriptor ListeningSocket(const addrinfo& at, uint16_t port) {
  sockaddr_storage address{};
  std::memcpy(&address, at.ai_addr, at.ai_addrlen);
  auto& field = at.ai_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(address).sin_port;
  field = htons(port);
  Descriptor made(socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (made.get() < 0) ThrowErrno();
  const int on = 1, off = 0;
  setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (at.ai_family == AF_INET6) setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (bind(made.get(), reinterpret_cast<sockaddr*>(&address), at.ai_addrlen) != 0 ||
      listen(made.get(), kBacklog) != 0) {
    ThrowErrno();
  }
  return made;
}

uint16_t PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) ThrowErrno();
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

std::pair<std::string, uint16_t> PeerOf(const sockaddr_storage& peer) {
  char text[INET6_ADDRSTRLEN] = "";
  if (peer.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(peer);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    return {text, ntohs(v4.sin_port)};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(peer);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  }
  return {text, ntohs(v6.sin6_port)};
}

}  // namespace

// One accepted connection. Its fields belong to the thread that took it out of the epoll; those below the line
// to whoever holds the mutex of the core.
struct DataConnection {
  DataConnection(int fd, std::shared_ptr<const TlsContext> tls, std::string address, uint16_t port)
      : stream(fd, std::move(tls), ""), address(std::move(address)), port(port) {}

  DataStream stream;
  const std::string address;
  const uint16_t port;
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

struct DataServerCore : std::enable_shared_from_this<DataServerCore> {
  using Held = std::shared_ptr<DataConnection>;

  explicit DataServerCore(const DataLimits& limits) : limits(limits) {}

  const DataLimits limits;
  Descriptor poller;
  Descriptor waker;
  Descriptor reserve;  // closed for a moment, to accept and refuse a connection when descriptors have run out
  std::vector<Descriptor> listeners;
  uint16_t port = 0;

  std::mutex accepting;  // guards `listeners`; taken before `mutex`

  mutable std::mutex mutex;  // guards what follows
  bool stopped = false;
  uint64_t next_id = kFirstConnection;
  std::unordered_map<uint64_t, Held> connections;
  std::unordered_map<std::string, size_t> per_address;
  std::map<uint64_t, Held> strangers;  // oldest first
  std::shared_ptr<const TlsContext> tls;
  std::vector<DroppedConnection> dropped;

  void Listen(const std::string& host, uint16_t wanted);
  void Watch(int fd, uint64_t id, uint32_t events, int operation) const;
  void Accept(uint64_t listener);
  void Admit(int fd, const sockaddr_storage& peer);
  Held Take(uint64_t id);
  std::unique_ptr<DataCall> Advance(const Held& connection);
  bool ReadHeads(const Held& connection, Step& step);
  void Rest(const Held& connection, uint32_t events, double seconds, bool keeps_deadline);
  void Drop(const Held& connection, const std::string& reason);
  void DropLocked(const Held& connection, const std::string& reason);
  void DropOldestStranger(const std::string& reason);
  void Trust(DataConnection& connection);
  void EndCall(const Held& connection, bool closes);
};

void DataServerCore::Listen(const std::string& host, uint16_t wanted) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (code != 0) throw std::runtime_error(gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::string reason = "no address";
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    try {
      listeners.push_back(ListeningSocket(*each, port != 0 ? port : wanted));
      port = PortOf(listeners.back().get());
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::address_in_use) throw;
      reason = error.code().message();  // such as ::1 on a machine without IPv6
    }
  }
  if (listeners.empty()) throw std::runtime_error(reason);
  poller = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  waker = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  reserve = Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (poller.get() < 0 || waker.get() < 0 || reserve.get() < 0) ThrowErrno();
  Watch(waker.get(), kWakeId, EPOLLIN, EPOLL_CTL_ADD);
  for (size_t i = 0; i < listeners.size(); ++i) Watch(listeners[i].get(), i + 1, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_ADD);
}

void DataServerCore::Watch(int fd, uint64_t id, uint32_t events, int operation) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(poller.get(), operation, fd, &event) != 0) ThrowErrno();
}

void DataServerCore::Accept(uint64_t listener) {
  const std::lock_guard accepts(accepting);
  if (listeners.empty()) return;
  const int at = listeners[listener - 1].get();
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    const int fd = accept4(at, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      Admit(fd, peer);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The connection would stay in the queue, and the socket readable: refuse it, and make room.
      const std::lock_guard lock(mutex);
      reserve = Descriptor();
      const Descriptor refused(accept4(at, nullptr, nullptr, SOCK_CLOEXEC));
      DropOldestStranger("no descriptor is left");
      reserve = Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
      break;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) break;
  }
  Watch(at, listener, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_MOD);
}

void DataServerCore::Admit(int fd, const sockaddr_storage& peer) {
  const auto [address, peer_port] = PeerOf(peer);
  const std::lock_guard lock(mutex);
  if (stopped) {
    close(fd);
    return;
  }
  if (per_address[address] >= limits.per_address) {
    close(fd);
    if (dropped.size() < kMaxDropped) {
      dropped.push_back({address, peer_port, "more than " + std::to_string(limits.per_address) + " connections of one address"});
    }
    return;
  }
  Held connection;
  try {
    connection = std::make_shared<DataConnection>(fd, tls, address, peer_port);  // closes fd where it fails
  } catch (const std::exception&) {
    return;
  }
  connection->handshaken = !connection->stream.encrypted();
  connection->id = next_id++;
  connection->deadline = Clock::now() + Seconds(limits.stranger_s);
  try {
    Watch(fd, connection->id, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, EPOLL_CTL_ADD);
  } catch (const std::runtime_error&) {
    return;
  }
  ++per_address[address];
  strangers.emplace(connection->id, connection);
  connections.emplace(connection->id, std::move(connection));
  if (strangers.size() > limits.strangers) {
    DropOldestStranger(std::to_string(strangers.size()) + " connections showed no token");
  }
}

DataServerCore::Held DataServerCore::Take(uint64_t id) {
  const std::lock_guard lock(mutex);
  const auto found = connections.find(id);
  if (found == connections.end() || !found->second->resting) return nullptr;
  found->second->resting = false;
  return found->second;
}

void DataServerCore::Rest(const Held& connection, uint32_t events, double seconds, bool keeps_deadline) {
  const std::lock_guard lock(mutex);
  if (stopped) {
    DropLocked(connection, "");
    return;
  }
  if (!connections.contains(connection->id)) return;
  connection->resting = true;
  if (!keeps_deadline) connection->deadline = Clock::now() + Seconds(seconds);
  try {
    Watch(connection->stream.fd(), connection->id, events | EPOLLRDHUP | EPOLLONESHOT, EPOLL_CTL_MOD);
  } catch (const std::runtime_error&) {
    DropLocked(connection, "");
  }
}

void DataServerCore::Drop(const Held& connection, const std::string& reason) {
  const std::lock_guard lock(mutex);
  DropLocked(connection, reason);
}

void DataServerCore::DropLocked(const Held& connection, const std::string& reason) {
  const Held held = connection;  // may be a reference into the map
  if (connections.erase(held->id) == 0) return;
  const auto counted = per_address.find(held->address);
  if (--counted->second == 0) per_address.erase(counted);
  strangers.erase(held->id);
  if (!reason.empty() && dropped.size() < kMaxDropped) dropped.push_back({held->address, held->port, reason});
  epoll_ctl(poller.get(), EPOLL_CTL_DEL, held->stream.fd(), nullptr);
  held->stream.Cancel();  // a thread that reads from it ends
}

void DataServerCore::DropOldestStranger(const std::string& reason) {
  if (!strangers.empty()) DropLocked(strangers.begin()->second, reason);
}

void DataServerCore::Trust(DataConnection& connection) {
  const std::lock_guard lock(mutex);
  connection.trusted = true;
  strangers.erase(connection.id);
}

// Reads until the head is complete. Returns whether it is; `step` says what is waited for otherwise.
bool DataServerCore::ReadHeads(const Held& connection, Step& step) {
  thread_local const std::unique_ptr<std::byte[]> scratch = std::make_unique_for_overwrite<std::byte[]>(kScratchBytes);
  auto& head = connection->head;
  while (true) {
    size_t got = 0;
    step = connection->stream.TryRead({scratch.get(), kScratchBytes}, got);
    if (step != Step::kDone) return false;
    const bool began = !head.empty();
    head.insert(head.end(), scratch.get(), scratch.get() + got);
    const size_t known = std::min(head.size(), sizeof kDataMagic);
    if (std::memcmp(head.data(), kDataMagic, known) != 0) throw StreamError("what it sent is no request");
    if (head.size() >= kHeadBytes) {
      const auto parsed = *ReadHead<RequestHead>(head);
      if (parsed.header_bytes > kMaxHeaderText) throw StreamError("a header of " + std::to_string(parsed.header_bytes) + " bytes");
      const size_t whole = kHeadBytes + parsed.header_bytes;
      if (head.size() >= whole) {
        const auto text = std::span<const std::byte>(head).subspan(kHeadBytes, parsed.header_bytes);
        if (parsed.crc != HeadCrc(parsed, text)) throw StreamError("a damaged head");
        if (head.size() - whole > parsed.body_bytes) throw StreamError("bytes that follow a request");
        return true;
      }
    }
    if (!began) {  // a caller that has begun a request finishes its head soon
      const std::lock_guard lock(mutex);
      if (connection->trusted) connection->deadline = Clock::now() + Seconds(limits.stranger_s);
    }
  }
}

std::unique_ptr<DataCall> DataServerCore::Advance(const Held& connection) {
  try {
    Step step = Step::kDone;
    if (connection->lingers) {
      std::byte sink[16 << 10];
      while (true) {
        size_t got = 0;
        step = connection->stream.TryRead(sink, got);
        if (step != Step::kDone) break;
        connection->lingered += got;
        if (connection->lingered > limits.linger_bytes) step = Step::kClosed;
        if (step == Step::kClosed) break;
      }
    } else {
      if (!connection->handshaken) {
        step = connection->stream.TryHandshake();
        connection->handshaken = step == Step::kDone;
        if (connection->handshaken) connection->certificate = connection->stream.PeerCertificate();
      }
      if (connection->handshaken && ReadHeads(connection, step)) {
        return std::make_unique<DataCall>(shared_from_this(), connection);
      }
    }
    if (step == Step::kClosed) {
      Drop(connection, "");
    } else {
      Rest(connection, step == Step::kWantWrite ? EPOLLOUT : EPOLLIN, 0, true);
    }
  } catch (const std::exception& error) {
    Drop(connection, error.what());
  }
  return nullptr;
}

void DataServerCore::EndCall(const Held& connection, bool closes) {
  connection->stream.Rest();
  connection->head.clear();
  if (connection->head.capacity() > kMaxHeaderText + kHeadBytes) connection->head.shrink_to_fit();
  if (connection->stream.HasPending()) closes = true;  // bytes that follow a request
  if (!closes) {
    Rest(connection, EPOLLIN, limits.idle_s, false);
    return;
  }
  // Closed at once, unread bytes would have the kernel discard the reply that is on its way.
  shutdown(connection->stream.fd(), SHUT_WR);
  connection->lingers = true;
  Rest(connection, EPOLLIN, limits.linger_s, false);
}

DataCall::DataCall(std::shared_ptr<DataServerCore> core, std::shared_ptr<DataConnection> connection)
    : core_(std::move(core)),
      connection_(connection),
      subject_(std::move(connection)),
      head_(*ReadHead<RequestHead>(subject_->head)),
      header_(reinterpret_cast<const char*>(subject_->head.data()) + kHeadBytes, head_.header_bytes),
      early_(subject_->head.begin() + kHeadBytes + head_.header_bytes, subject_->head.end()),
      body_read_(head_.body_bytes == 0) {}

DataCall::~DataCall() {
  if (connection_) core_->Drop(connection_, "");
}

const RequestHead& DataCall::head() const { return head_; }
std::string_view DataCall::header() const { return header_; }
const std::string& DataCall::address() const { return subject_->address; }
uint16_t DataCall::port() const { return subject_->port; }
const std::string& DataCall::certificate() const { return subject_->certificate; }
void DataCall::Trust() { core_->Trust(*subject_); }
void DataCall::Cancel() { subject_->stream.Cancel(); }

bool DataCall::ReadBody(std::span<std::byte> out, const Patience& patience) {
  if (!connection_ || body_taken_ || out.size() != head_.body_bytes) throw std::logic_error("the body is read once");
  body_taken_ = true;
  const bool checked = !connection_->stream.encrypted();
  std::memcpy(out.data(), early_.data(), early_.size());
  uint32_t crc = checked ? Crc32c(early_) : 0;
  const size_t known = early_.size();
  std::vector<std::byte>().swap(early_);
  connection_->stream.Read(out.subspan(known), patience, checked ? &crc : nullptr);
  body_read_ = true;
  return !checked || crc == head_.body_crc;
}

void DataCall::Reply(std::vector<std::span<const std::byte>> pieces, const uint32_t* crc, uint64_t membership,
                     const Patience& patience) {
  Send(std::move(pieces), kReplyOk, crc, membership, !body_read_, patience);
}

void DataCall::Refuse(std::span<const std::byte> record, bool closes, const Patience& patience) {
  Send({record.first(std::min<size_t>(record.size(), kMaxRefusal))}, kReplyRefused, nullptr, 0, closes || !body_read_,
       patience);
}

void DataCall::Send(std::vector<std::span<const std::byte>> pieces, uint8_t status, const uint32_t* crc,
                    uint64_t membership, bool closes, const Patience& patience) {
  if (!connection_) throw std::logic_error("the call has its reply");
  ReplyHead head{};
  std::memcpy(head.magic, kDataMagic, sizeof head.magic);
  head.version = kDataVersion;
  head.status = status;
  head.flags = closes ? kReplyCloses : 0;
  for (const auto& piece : pieces) head.payload_bytes += piece.size();
  head.membership = membership;
  head.crc = HeadCrc(head);
  const bool sums = (head_.flags & kChecksumUnread) == 0;
  uint32_t trailer = sums && crc != nullptr ? *crc : 0;

  // Without a checksum to compute, all goes out at once, as the socket takes it.
  std::vector<iovec> ready{{&head, kHeadBytes}};
  size_t unsent = 0;
  for (auto piece : pieces) {
    while (!piece.empty()) {
      const auto part = sums && crc == nullptr ? piece.first(std::min(piece.size(), kSendBytes)) : piece;
      piece = piece.subspan(part.size());
      if (sums && crc == nullptr) trailer = Crc32c(part, trailer);
      ready.push_back({const_cast<std::byte*>(part.data()), part.size()});
      unsent += part.size();
      if (sums && crc == nullptr && unsent >= kSendBytes) {
        connection_->stream.Write(ready, patience);
        ready.clear();
        unsent = 0;
      }
    }
  }
  ready.push_back({&trailer, kTrailerBytes});
  connection_->stream.Write(ready, patience);
  core_->EndCall(connection_, closes);
  connection_.reset();
}

DataServer::DataServer(const std::string& host, uint16_t port, std::shared_ptr<const TlsContext> tls,
                       const DataLimits& limits)
    : core_(std::make_shared<DataServerCore>(limits)) {
  core_->tls = std::move(tls);
  core_->Listen(host, port);
}

DataServer::~DataServer() { Stop(); }

uint16_t DataServer::port() const { return core_->port; }

void DataServer::Renew(std::shared_ptr<const TlsContext> tls) {
  const std::lock_guard lock(core_->mutex);
  core_->tls = std::move(tls);
}

std::unique_ptr<DataCall> DataServer::Next(double timeout_s) {
  const auto until = Clock::now() + Seconds(timeout_s);
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    epoll_event event{};
    const int ready = epoll_wait(core_->poller.get(), &event, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready < 0 && errno != EINTR) ThrowErrno();
    if (ready == 0) return nullptr;
    if (ready < 0) continue;
    const uint64_t id = event.data.u64;
    if (id == kWakeId) return nullptr;
    if (id < kFirstConnection) {
      core_->Accept(id);
      continue;
    }
    const auto connection = core_->Take(id);
    if (!connection) continue;
    auto call = core_->Advance(connection);
    if (call) return call;
  }
}

std::vector<DroppedConnection> DataServer::Sweep() {
  const std::lock_guard lock(core_->mutex);
  const auto now = Clock::now();
  std::vector<std::shared_ptr<DataConnection>> over;
  for (const auto& [id, each] : core_->connections) {
    if (each->resting && now > each->deadline) over.push_back(each);
  }
  for (const auto& each : over) {
    core_->DropLocked(each, each->trusted || each->lingers ? "" : "no token within " + std::to_string(static_cast<int>(core_->limits.stranger_s)) + " s");
  }
  return std::exchange(core_->dropped, {});
}

void DataServer::Stop() {
  std::vector<std::shared_ptr<DataConnection>> resting;
  const std::lock_guard accepts(core_->accepting);
  const std::lock_guard lock(core_->mutex);
  if (core_->stopped) return;
  core_->stopped = true;
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = write(core_->waker.get(), &one, sizeof one);
  core_->listeners.clear();
  for (const auto& [id, each] : core_->connections) {
    if (each->resting) resting.push_back(each);
  }
  for (const auto& each : resting) core_->DropLocked(each, "");
}

size_t DataServer::CutAll() {
  const std::lock_guard lock(core_->mutex);
  for (const auto& [id, each] : core_->connections) each->stream.Cancel();
  return core_->connections.size();
}

size_t DataServer::num_connections() const {
  const std::lock_guard lock(core_->mutex);
  return core_->connections.size();
}

size_t DataServer::num_strangers() const {
  const std::lock_guard lock(core_->mutex);
  return core_->strangers.size();
}

}  // namespace gigl
