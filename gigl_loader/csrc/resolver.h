// Addresses of host names. The system's resolver has no deadline: it runs in threads that a caller can leave behind.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gigl {

struct SocketAddress {
  sockaddr_storage address;
  socklen_t size;
};

// Looks `host` up, a name or a numeric address. Throws StreamError with the resolver's text, StreamTimedOut at the
// deadline, StreamCancelled soon after `is_cancelled` returns true.
//
// Lookups of the process share at most four threads, which end when no lookup waits. Callers that want the same name
// at the same time share one lookup: a name that the resolver is slow to find, and that is tried again and again,
// holds up one thread and no other name.
std::vector<SocketAddress> Resolve(const std::string& host, uint16_t port,
                                   std::chrono::steady_clock::time_point deadline,
                                   const std::function<bool()>& is_cancelled);

}  // namespace gigl
