#include "data_server.h"

#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>

#include "background_thread.h"
#include "data_wire.h"

namespace gigl {
namespace {

constexpr size_t kScratchBytes = 64 << 10;
constexpr size_t kMaxOverhead = 4 << 10;  // of a stranger: bytes of TLS that carry no data, beside its head
constexpr int kNice = 5;  // leaves it a quarter of a core that another thread wants whole
constexpr std::string_view kTokenLine = "authorization: ";

// Returns whether the head and its text are complete. Throws StreamError where they are no request's.
bool IsComplete(std::span<const std::byte> head) {
  const size_t known = std::min(head.size(), sizeof kDataMagic);
  if (std::memcmp(head.data(), kDataMagic, known) != 0) throw StreamError("what it sent is no request");
  if (head.size() < kHeadBytes) return false;
  const auto parsed = *ReadHead<RequestHead>(head);
  if (parsed.header_bytes > kMaxHeaderText) {
    throw StreamError("a header of " + std::to_string(parsed.header_bytes) + " bytes");
  }
  const size_t whole = kHeadBytes + parsed.header_bytes;
  if (head.size() < whole) return false;
  if (parsed.crc != HeadCrc(parsed, head.subspan(kHeadBytes, parsed.header_bytes))) throw StreamError("a damaged head");
  if (head.size() - whole > parsed.body_bytes) throw StreamError("bytes that follow a request");
  return true;
}

}  // namespace

AcceptedTokens::AcceptedTokens(std::vector<std::string> shown, std::string refusal)
    : shown_(std::move(shown)), refusal_(std::move(refusal)) {}

AcceptedTokens::~AcceptedTokens() {
  for (std::string& each : shown_) explicit_bzero(each.data(), each.size());
}

bool AcceptedTokens::Accept(std::string_view header) const {
  if (shown_.empty()) return true;
  std::string_view value;
  size_t lines = 0;
  while (!header.empty()) {
    const std::string_view line = header.substr(0, header.find_first_of("\r\n"));
    header.remove_prefix(std::min(line.size() + 1, header.size()));
    if (!line.starts_with(kTokenLine)) continue;
    value = line.substr(kTokenLine.size());
    ++lines;
  }
  bool found = false;
  for (const std::string& each : shown_) {
    size_t differences = each.size() ^ value.size();
    for (size_t i = 0; i < value.size(); ++i) differences |= value[i] ^ each[i % each.size()];
    found |= differences == 0;
  }
  return found && lines == 1;
}

DataServer::DataServer(const std::string& host, uint16_t port, std::shared_ptr<const TlsContext> tls,
                       const DataLimits& limits, std::shared_ptr<const AcceptedTokens> tokens)
    : connections_(std::make_shared<DataConnections>(host, port, std::move(tls), limits)),
      tokens_(std::move(tokens)),
      process_(getpid()),
      strangers_(StartBackgroundThread([this] { ServeStrangers(); })) {}

DataServer::~DataServer() { Stop(); }

void DataServer::Accept(std::shared_ptr<const AcceptedTokens> tokens) {
  const MutexLock lock(accepting_);
  tokens_.swap(tokens);
}

void DataServer::Stop() {
  const MutexLock lock(stopping_);
  if (getpid() != process_) {  // a child of it: the thread is the parent's, and so is what would wake it
    if (strangers_.joinable()) strangers_.detach();
    return;
  }
  connections_->Stop();
  if (strangers_.joinable()) strangers_.join();
}

void DataServer::ServeStrangers() {
  pthread_setname_np(pthread_self(), "data strangers");
  // Where strangers keep it busy and cores are short, calls go first. Of this thread alone, on Linux.
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNice);
  while (true) {
    try {
      return connections_->ServeStrangers([this](const HeldConnection& connection) {
        if (Advance(connection)) AcceptOrRefuse(connection);
      });
    } catch (const std::exception&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // no memory: try again
    }
  }
}

// Hands a stranger with a complete head over to the threads of calls, if its token is accepted.
void DataServer::AcceptOrRefuse(const HeldConnection& connection) {
  const auto tokens = [&] {
    const MutexLock lock(accepting_);
    return tokens_;
  }();
  try {
    const auto text = std::span(connection->head).subspan(kHeadBytes, ReadHead<RequestHead>(connection->head)->header_bytes);
    if (!tokens || tokens->Accept({reinterpret_cast<const char*>(text.data()), text.size()})) {
      connections_->Trust(connection);
      return;
    }
    connections_->NoteRefused(*connection);
    // A socket that nothing was sent to takes it at once; otherwise the connection ends.
    DataCall(connections_, connection).Refuse(std::as_bytes(std::span(tokens->refusal())), true, Patience::Of(0, 0));
  } catch (const std::exception&) {
    connections_->Drop(connection, "");
  }
}

std::unique_ptr<DataCall> DataServer::Next(double timeout_s) {
  const auto until = Patience::Of(timeout_s, timeout_s).deadline;
  while (const auto connection = connections_->Take(until)) {
    switch (connection->phase()) {
      case Phase::kSending:
        connections_->Continue(connection);
        continue;
      case Phase::kWaiting:
        connections_->Drop(connection, "");
        return nullptr;
      case Phase::kReady:
        break;
      default:
        if (!Advance(connection)) continue;
    }
    connection->Enter(Phase::kServing);
    try {
      return std::make_unique<DataCall>(connections_, connection);
    } catch (const std::bad_alloc&) {
      connections_->Drop(connection, "no memory is left");
    }
  }
  return nullptr;
}

// Makes the next step with a connection. Returns whether that completes a head; otherwise the connection rests again,
// or has ended.
bool DataServer::Advance(const HeldConnection& connection) {
  try {
    Step step = Step::kDone;
    if (connection->phase() == Phase::kGreeting && (step = connection->stream.TryHandshake()) == Step::kDone) {
      connection->certificate = connection->stream.PeerCertificate();
      connection->Enter(Phase::kHead);
    }
    if (step == Step::kDone) step = connection->phase() == Phase::kLingering ? Linger(*connection) : ReadHeads(*connection);
    if (step == Step::kDone) return true;
    if (step == Step::kClosed) {
      connections_->Drop(connection, "");
    } else {
      connections_->Rest(connection, step == Step::kWantWrite ? EPOLLOUT : EPOLLIN);
    }
  } catch (const std::exception& error) {
    connections_->Drop(connection, error.what());
  }
  return false;
}

// Reads until the head is complete (kDone), or says what is waited for.
Step DataServer::ReadHeads(DataConnection& connection) {
  thread_local const std::unique_ptr<std::byte[]> scratch = std::make_unique_for_overwrite<std::byte[]>(kScratchBytes);
  auto& head = connection.head;
  while (true) {
    size_t got = 0;
    const Step step = connection.stream.TryRead({scratch.get(), kScratchBytes}, got);
    if (!connection.trusted && connection.stream.overhead() > kMaxOverhead) {
      throw StreamError("more than " + std::to_string(kMaxOverhead) + " bytes without data");
    }
    if (step != Step::kDone) return step;
    const bool begins = head.empty();
    head.insert(head.end(), scratch.get(), scratch.get() + got);
    if (IsComplete(head)) return Step::kDone;
    if (begins) connections_->BeginHead(connection);
  }
}

// Drops what a caller sends after its refusal, up to a limit.
Step DataServer::Linger(DataConnection& connection) const {
  std::byte sink[16 << 10];
  while (connection.lingered + connection.stream.overhead() <= connection.linger_end) {
    size_t got = 0;
    const Step step = connection.stream.TryRead(sink, got);
    if (step != Step::kDone) return step;
    connection.lingered += got;
  }
  return Step::kClosed;
}

}  // namespace gigl
