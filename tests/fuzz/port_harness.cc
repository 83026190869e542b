#include "port_harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

#include "../../gigl_loader/csrc/data_wire.h"

extern "C" {
size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));

// Linked with --wrap=recv: says how much of what a caller sent the server has taken.
ssize_t __real_recv(int fd, void* out, size_t size, int flags);
ssize_t __wrap_recv(int fd, void* out, size_t size, int flags);
}

namespace {

std::atomic<uint64_t> taken = 0, receives = 0;
std::mutex changing;
std::condition_variable changed;

// Sleeps until the server has received anew: a thread that sleeps is woken before one that spins, on a busy machine.
void AwaitReceive(uint64_t seen) {
  std::unique_lock lock(changing);
  changed.wait_for(lock, std::chrono::milliseconds(1), [seen] { return receives != seen; });
}

}  // namespace

ssize_t __wrap_recv(int fd, void* out, size_t size, int flags) {
  const ssize_t got = __real_recv(fd, out, size, flags);
  const int error = errno;
  {
    const std::lock_guard lock(changing);
    if (got > 0) taken += static_cast<uint64_t>(got);
    ++receives;
  }
  changed.notify_all();
  errno = error;
  return got;
}

namespace gigl {
namespace {

constexpr auto kStep = std::chrono::milliseconds(20);
constexpr double kSoonS = 5.0;
constexpr auto kPoll = std::chrono::microseconds(20);
constexpr auto kSettle = std::chrono::seconds(5);

template <typename Head>
void AppendHead(Buffer& out, Head& head, std::span<const std::byte> text) {
  std::memcpy(head.magic, kDataMagic, sizeof head.magic);
  head.crc = HeadCrc(head, text);
  const auto bytes = std::as_bytes(std::span(&head, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

void AppendRequest(Buffer& out, std::span<const std::byte> text, std::span<const std::byte> body, uint64_t announced,
                   uint16_t version, uint16_t flags) {
  RequestHead head{};
  head.version = version;
  head.flags = flags;
  head.header_bytes = static_cast<uint32_t>(text.size());
  head.body_crc = Crc32c(body);
  head.body_bytes = announced;
  AppendHead(out, head, text);
  out.insert(out.end(), text.begin(), text.end());
  out.insert(out.end(), body.begin(), body.end());
}

void AppendReply(Buffer& out, std::span<const std::byte> payload, uint64_t announced, uint8_t status, uint8_t flags,
                 uint16_t version) {
  ReplyHead head{};
  head.version = version;
  head.status = status;
  head.flags = flags;
  head.payload_bytes = announced;
  AppendHead(out, head, {});
  out.insert(out.end(), payload.begin(), payload.end());
  const uint32_t crc = Crc32c(payload);
  const auto trailer = std::as_bytes(std::span(&crc, 1));
  out.insert(out.end(), trailer.begin(), trailer.end());
}

RawSocket RawSocket::ConnectTo(uint16_t port) {
  Descriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  FUZZ_CHECK(connect(made.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  return RawSocket(std::move(made));
}

RawSocket::RawSocket(Descriptor socket) : socket_(std::move(socket)), taken_at_end_(taken) {
  fcntl(fd(), F_SETFL, O_NONBLOCK);
}

bool RawSocket::IsTaken() const { return taken >= taken_at_end_; }

void RawSocket::Send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes = bytes.subspan(static_cast<size_t>(sent));
    taken_at_end_ += static_cast<uint64_t>(sent);
  }
}

void RawSocket::Receive() {
  std::byte piece[16 << 10];
  while (true) {
    const ssize_t got = __real_recv(fd(), piece, sizeof piece, 0);
    if (got <= 0) return;
    received.insert(received.end(), piece, piece + got);
  }
}

bool RawSocket::HasEnd() const {
  pollfd polled{fd(), POLLRDHUP, 0};
  return poll(&polled, 1, 0) != 0;
}

void RawSocket::EndOfBytes() { shutdown(fd(), SHUT_WR); }

void RawSocket::Reset() {
  const linger at_once{1, 0};
  setsockopt(fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  socket_ = Descriptor();
}

SteppedServer::SteppedServer(std::shared_ptr<const TlsContext> tls, std::shared_ptr<const AcceptedTokens> tokens,
                             std::function<void(DataCall&)> answer)
    : server_("127.0.0.1", 0, std::move(tls), DataLimits{}, std::move(tokens)), answer_(std::move(answer)) {}

RawSocket SteppedServer::Connect() {
  RawSocket caller = RawSocket::ConnectTo(server_.port());
  const auto until = Clock::now() + kSettle;
  while (server_.num_networks() == 0) {
    FUZZ_CHECK(Clock::now() < until);
    std::this_thread::sleep_for(kPoll);
  }
  return caller;
}

bool SteppedServer::Answer(double timeout_s) {
  const auto call = server_.Next(timeout_s);
  if (!call) return false;
  try {
    answer_(*call);
  } catch (const StreamError&) {
  }
  return true;
}

void SteppedServer::Step(const RawSocket& caller) {
  const auto until = Clock::now() + kStep;
  while (true) {
    const uint64_t seen = receives;
    if (Answer(0.0) || caller.IsTaken() || caller.HasEnd() || Clock::now() > until) return;
    AwaitReceive(seen);
  }
}

void SteppedServer::Expect() {
  FUZZ_CHECK(Answer(kSoonS));  // an honest request is no call
}

void SteppedServer::Settle() {
  const auto until = Clock::now() + kSettle;
  // Networks, not connections: these leave out one that is being handed over from strangers to callers.
  while (server_.num_networks() != 0) {
    FUZZ_CHECK(Clock::now() < until);  // a connection whose caller is gone stays
    const uint64_t seen = receives;
    if (!Answer(0.0) && server_.num_networks() != 0) AwaitReceive(seen);
  }
  FUZZ_CHECK(server_.num_connections() == 0 && server_.num_strangers() == 0);
  server_.Sweep();
}

size_t AllocatedBytes() {
  return __sanitizer_get_current_allocated_bytes == nullptr ? 0 : __sanitizer_get_current_allocated_bytes();
}

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::string folder = (*argv)[i];
    if (folder.front() == '-' || !std::filesystem::is_directory(folder)) continue;
    size_t number = 0;
    for (const auto& seed : Seeds()) {
      std::ofstream file(folder + "/seed" + std::to_string(number++), std::ios::binary);
      file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    }
    break;
  }
  return 0;
}

}  // namespace gigl
