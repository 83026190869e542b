#include "data_stream.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "crc32c.h"
#include "stop.h"

namespace gigl {
namespace {

// Received at once: what fits the second-level cache, in which the checksum finds it.
constexpr size_t kPieceBytes = 256 << 10;
constexpr size_t kMaxPieces = 64;
constexpr int64_t kStopPollMs = 20;
constexpr int kKeepIdleS = 10, kKeepEachS = 5, kKeepProbes = 3;

std::span<std::byte> BytesOf(const iovec& piece) { return {static_cast<std::byte*>(piece.iov_base), piece.iov_len}; }

// Drops the first `count` bytes.
void Advance(std::span<iovec>& pieces, size_t count) {
  while (!pieces.empty() && count >= pieces.front().iov_len) {
    count -= pieces.front().iov_len;
    pieces = pieces.subspan(1);
  }
  if (count == 0) return;
  pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + count;
  pieces.front().iov_len -= count;
}

}  // namespace

Patience Patience::Of(double total_s, double stall_s) {
  const auto duration = [](double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e6)));
  };
  return {Clock::now() + duration(total_s), duration(stall_s)};
}

Patience Patience::ForPayload(uint64_t nbytes) const {
  constexpr uint64_t kMost = 1'000'000;
  return {deadline + std::chrono::seconds(std::min(nbytes / kLeastBytesPerSecond, kMost)), stall};
}

DataStream::DataStream(Descriptor socket, std::shared_ptr<const TlsContext> tls, const std::string& host)
    : socket_(std::move(socket)) {
  const int on = 1;
  setsockopt(fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A call may wait for minutes: else it would not be noticed that its network was cut.
  setsockopt(fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd(), IPPROTO_TCP, TCP_KEEPIDLE, &kKeepIdleS, sizeof kKeepIdleS);
  setsockopt(fd(), IPPROTO_TCP, TCP_KEEPINTVL, &kKeepEachS, sizeof kKeepEachS);
  setsockopt(fd(), IPPROTO_TCP, TCP_KEEPCNT, &kKeepProbes, sizeof kKeepProbes);
  if (tls) tls_ = std::make_unique<TlsSession>(std::move(tls), fd(), host);
}

void DataStream::Cancel() {
  cancelled_ = true;
  shutdown(fd(), SHUT_RDWR);  // wakes whoever polls
}

Step DataStream::TryHandshake() {
  try {
    return tls_ ? tls_->Handshake() : Step::kDone;
  } catch (const std::runtime_error& error) {
    throw StreamError(error.what());
  }
}

Step DataStream::TryRead(std::span<std::byte> out, size_t& got) {
  got = 0;
  if (tls_) {
    try {
      return tls_->Read(out, got);
    } catch (const std::runtime_error& error) {
      throw StreamError(error.what());
    }
  }
  ssize_t count;
  do count = recv(fd(), out.data(), out.size(), 0);
  while (count < 0 && errno == EINTR);
  if (count > 0) {
    got = static_cast<size_t>(count);
    return Step::kDone;
  }
  if (count == 0 || errno == ECONNRESET) return Step::kClosed;
  if (errno == EAGAIN || errno == EWOULDBLOCK) return Step::kWantRead;
  throw StreamError(std::generic_category().message(errno));
}

Step DataStream::TryWrite(std::span<iovec>& pieces, size_t& sent) {
  sent = 0;
  if (tls_) {
    try {
      while (!pieces.empty()) {
        size_t taken;
        const Step step = tls_->Write(BytesOf(pieces.front()), taken);
        if (step != Step::kDone) return step;
        sent += taken;
        Advance(pieces, taken);
      }
      return tls_->Flush();
    } catch (const std::runtime_error& error) {
      throw StreamError(error.what());
    }
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = std::min(pieces.size(), kMaxPieces);
  ssize_t count;
  do count = sendmsg(fd(), &message, MSG_NOSIGNAL);
  while (count < 0 && errno == EINTR);
  if (count >= 0) {
    sent = static_cast<size_t>(count);
    Advance(pieces, sent);
    return Step::kDone;
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK) return Step::kWantWrite;
  if (errno == EPIPE || errno == ECONNRESET) return Step::kClosed;
  throw StreamError(std::generic_category().message(errno));
}

Step DataStream::TrySend(std::span<iovec>& pieces, size_t most) {
  size_t total = 0;
  while (true) {
    while (!pieces.empty() && pieces.front().iov_len == 0) pieces = pieces.subspan(1);
    if (pieces.empty() && !tls_) return Step::kDone;
    size_t sent;
    const Step step = TryWrite(pieces, sent);
    total += sent;
    if (step != Step::kDone || pieces.empty() || total >= most) return step;
  }
}

short DataStream::Wait(short events, const Patience& patience, Clock::time_point since) {
  const auto until = std::min(patience.deadline, since + patience.stall);
  while (true) {
    if (cancelled_) throw StreamCancelled("cancelled");
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    StopFlag* const flag = StopFlag::Current();  // nothing wakes this thread when it is set
    const bool whole = flag == nullptr || left <= kStopPollMs;
    pollfd polled{fd(), events, 0};
    const int ready = left > 0 ? poll(&polled, 1, static_cast<int>(whole ? left : kStopPollMs)) : 0;
    if (cancelled_) throw StreamCancelled("cancelled");
    if (flag != nullptr) flag->Check();
    if (ready > 0) return polled.revents;
    if (ready == 0 && !whole) continue;
    if (ready == 0 && until == patience.deadline) throw StreamTimedOut("the deadline passed");
    if (ready == 0) throw StreamTimedOut("no byte came or went for too long");
    if (errno != EINTR) throw StreamError(std::generic_category().message(errno));
  }
}

void DataStream::Handshake(const Patience& patience) {
  const auto since = Clock::now();
  while (true) {
    const Step step = TryHandshake();
    if (step == Step::kDone) return;
    if (cancelled_) throw StreamCancelled("cancelled");
    if (step == Step::kClosed) throw StreamClosed("closed by the other side during the TLS handshake");
    Wait(step == Step::kWantRead ? POLLIN : POLLOUT, patience, since);
  }
}

void DataStream::AwaitConnected(const Patience& patience) {
  Wait(POLLOUT, patience, Clock::now());
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) throw StreamError(std::generic_category().message(error));
}

void DataStream::ReadSome(std::span<std::byte> out, size_t& got, const Patience& patience) {
  const auto since = Clock::now();
  while (true) {
    const Step step = TryRead(out, got);
    if (step == Step::kDone) return;
    if (cancelled_) throw StreamCancelled("cancelled");
    if (step == Step::kClosed) throw StreamClosed("closed by the other side");
    Wait(step == Step::kWantRead ? POLLIN : POLLOUT, patience, since);
  }
}

void DataStream::Read(std::span<std::byte> out, const Patience& patience, uint32_t* crc) {
  auto since = Clock::now();
  while (!out.empty()) {
    size_t got;
    const Step step = TryRead(out.first(std::min(out.size(), kPieceBytes)), got);
    if (step == Step::kDone) {
      if (crc != nullptr) *crc = Crc32c(out.first(got), *crc);
      out = out.subspan(got);
      // A fast sender must not outlast the deadline; the clock is cheap beside a piece.
      since = Clock::now();
      if (!out.empty() && since > patience.deadline) throw StreamTimedOut("the deadline passed");
      continue;
    }
    if (cancelled_) throw StreamCancelled("cancelled");
    if (step == Step::kClosed) throw StreamClosed("closed by the other side");
    Wait(step == Step::kWantRead ? POLLIN : POLLOUT, patience, since);
  }
}

bool DataStream::Send(std::span<iovec> pieces, const Patience& patience, bool unless_answered) {
  auto since = Clock::now();
  while (true) {
    while (!pieces.empty() && pieces.front().iov_len == 0) pieces = pieces.subspan(1);
    if (pieces.empty() && !tls_) return true;
    size_t sent;
    const Step step = TryWrite(pieces, sent);
    if (step == Step::kDone && pieces.empty()) return true;
    since = Clock::now();  // either bytes went, or the socket was ready for more
    if (since > patience.deadline) throw StreamTimedOut("the deadline passed");
    if (step == Step::kDone) continue;
    if (cancelled_) throw StreamCancelled("cancelled");
    if (step == Step::kClosed) {
      if (unless_answered) return false;  // what it said before it closed can still be read
      throw StreamClosed("closed by the other side");
    }
    short events = step == Step::kWantRead ? POLLIN : POLLOUT;
    if (unless_answered) events |= POLLIN;
    if (Wait(events, patience, since) & POLLIN && unless_answered) return false;
  }
}

void DataStream::Write(std::span<iovec> pieces, const Patience& patience) { Send(pieces, patience, false); }

bool DataStream::WriteUnlessAnswered(std::span<iovec> pieces, const Patience& patience) {
  return Send(pieces, patience, true);
}

}  // namespace gigl
