#include "listening.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>

namespace gigl {
namespace {

constexpr int kBacklog = 1024;
constexpr size_t kNetworkBytes = 8;  // of an IPv6 address: a host has the rest to itself

Descriptor ListeningSocket(const addrinfo& at, uint16_t port) {
  sockaddr_storage address{};
  std::memcpy(&address, at.ai_addr, at.ai_addrlen);
  auto& field = at.ai_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(address).sin_port;
  field = htons(port);
  Descriptor made(socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made) ThrowErrno();
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

std::string TextOf(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, address, text, sizeof text);
  return text;
}

}  // namespace

void ThrowErrno() { throw std::system_error(errno, std::generic_category()); }

std::vector<Descriptor> Listen(const std::string& host, uint16_t& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (code != 0) throw std::runtime_error(gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::vector<Descriptor> listeners;
  std::string reason = "no address";
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    try {
      listeners.push_back(ListeningSocket(*each, port));
      port = PortOf(listeners.back().get());
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::address_in_use) throw;
      reason = error.code().message();  // such as ::1 on a machine without IPv6
    }
  }
  if (listeners.empty()) throw std::runtime_error(reason);
  return listeners;
}

Peer PeerOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    const std::string text = TextOf(AF_INET, &v4.sin_addr);
    return {text, ntohs(v4.sin_port), text};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    const std::string text = TextOf(AF_INET, v6.sin6_addr.s6_addr + 12);
    return {text, ntohs(v6.sin6_port), text};
  }
  in6_addr network{};
  std::copy_n(v6.sin6_addr.s6_addr, kNetworkBytes, network.s6_addr);
  return {TextOf(AF_INET6, &v6.sin6_addr), ntohs(v6.sin6_port), TextOf(AF_INET6, &network)};
}

}  // namespace gigl
