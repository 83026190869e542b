// Listening sockets, and where those who connect to them come from.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gigl {

// Owns a file descriptor, or none.
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
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Throws std::system_error with errno.
[[noreturn]] void ThrowErrno();

// Non-blocking sockets that listen at all addresses of `host`, on one port. Port 0 takes a free one, which `port`
// then is. Throws std::runtime_error where there is none.
std::vector<Descriptor> Listen(const std::string& host, uint16_t& port);

// The other side of a connection.
struct Peer {
  std::string address;
  uint16_t port;
  std::string network;  // what limits count by: the IPv4 address, or the first 64 bits of an IPv6 one
};

Peer PeerOf(const sockaddr_storage& address);

}  // namespace gigl
