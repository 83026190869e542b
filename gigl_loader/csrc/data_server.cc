#include "data_server.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>

#include "data_wire.h"

namespace gigl {
namespace {

constexpr size_t kScratchBytes = 64 << 10;

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

DataServer::DataServer(const std::string& host, uint16_t port, std::shared_ptr<const TlsContext> tls,
                       const DataLimits& limits)
    : connections_(std::make_shared<DataConnections>(host, port, std::move(tls), limits)) {}

DataServer::~DataServer() { Stop(); }

std::unique_ptr<DataCall> DataServer::Next(double timeout_s) {
  const auto until = Patience::Of(timeout_s, timeout_s).deadline;
  while (const auto connection = connections_->Take(until)) {
    if (auto call = Advance(connection)) return call;
  }
  return nullptr;
}

// Makes the next step with a connection. Returns the call whose head that completes; otherwise the connection
// rests again, or has ended.
std::unique_ptr<DataCall> DataServer::Advance(const HeldConnection& connection) {
  try {
    Step step = Step::kDone;
    if (!connection->handshaken) {
      step = connection->stream.TryHandshake();
      connection->handshaken = step == Step::kDone;
      if (connection->handshaken) connection->certificate = connection->stream.PeerCertificate();
    }
    if (step == Step::kDone) step = connection->lingers ? Linger(*connection) : ReadHeads(*connection);
    if (step == Step::kDone) return std::make_unique<DataCall>(connections_, connection);
    if (step == Step::kClosed) {
      connections_->Drop(connection, "");
    } else {
      connections_->Rest(connection, step == Step::kWantWrite ? EPOLLOUT : EPOLLIN);
    }
  } catch (const std::exception& error) {
    connections_->Drop(connection, error.what());
  }
  return nullptr;
}

// Reads until the head is complete (kDone), or says what is waited for.
Step DataServer::ReadHeads(DataConnection& connection) {
  thread_local const std::unique_ptr<std::byte[]> scratch = std::make_unique_for_overwrite<std::byte[]>(kScratchBytes);
  auto& head = connection.head;
  while (true) {
    size_t got = 0;
    const Step step = connection.stream.TryRead({scratch.get(), kScratchBytes}, got);
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
  while (connection.lingered <= connections_->limits.linger_bytes) {
    size_t got = 0;
    const Step step = connection.stream.TryRead(sink, got);
    if (step != Step::kDone) return step;
    connection.lingered += got;
  }
  return Step::kClosed;
}

}  // namespace gigl
