// The data port without memory, and with a resolver that does not answer, in a process without an interpreter.
// `data_port_faults` exits with 1 where a caller waits in vain, or something stays.
//
// Memory: an allocation of the server's own thread fails, the first one, then the second one, and so on, until a
// round needs fewer. Each caller of a round gets its reply, or the end of its connection.
// Names: getaddrinfo is replaced (linked with --wrap=getaddrinfo).

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "../../gigl_loader/csrc/data_client.h"
#include "../../gigl_loader/csrc/data_server.h"
#include "../../gigl_loader/csrc/resolver.h"
#include "../fuzz/tls_peer.h"

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                               \
    }                                                                              \
  } while (false)

// --- an allocator that fails

namespace {

std::atomic<long> until_failure = 0;  // allocations of threads that are not spared; 0: none fails
thread_local bool spared = false;

void* Allocate(size_t size) {
  if (!spared && until_failure > 0 && --until_failure == 0) return nullptr;
  return std::malloc(size == 0 ? 1 : size);
}

}  // namespace

// Not inlined: the compiler would find that one of them does not match the other.
[[gnu::noinline]] void* operator new(size_t size) {
  void* const made = Allocate(size);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}
[[gnu::noinline]] void operator delete(void* made) noexcept { std::free(made); }
[[gnu::noinline]] void operator delete(void* made, size_t) noexcept { std::free(made); }

// --- a resolver that may not answer

namespace {

std::mutex resolving;
std::condition_variable resolved;
bool stuck = true;
std::set<std::thread::id> resolvers;
std::map<std::string, int> lookups;  // by name: how often it was looked up

int CountOf(const std::string& name) {
  const std::lock_guard lock(resolving);
  return lookups[name];
}

size_t CountOfThreads() {
  const std::lock_guard lock(resolving);
  return resolvers.size();
}

}  // namespace

extern "C" {
int __real_getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** found);

// Names that begin with "stuck" are found when `stuck` ends; all names have the address 127.0.0.1.
int __wrap_getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** found) {
  if ((hints->ai_flags & (AI_NUMERICHOST | AI_PASSIVE)) == 0) {
    std::unique_lock lock(resolving);
    resolvers.insert(std::this_thread::get_id());
    ++lookups[host];
    if (std::string_view(host).starts_with("stuck")) resolved.wait(lock, [] { return !stuck; });
    host = "127.0.0.1";
  }
  return __real_getaddrinfo(host, port, hints, found);
}
}

namespace gigl {
namespace {

constexpr auto kSoon = std::chrono::seconds(20);
constexpr int kCallers = 4;
constexpr std::string_view kGood = "authorization: good";

template <typename Condition>
bool Within(Condition condition) {
  const auto until = Clock::now() + kSoon;
  while (!condition()) {
    if (Clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// --- memory

// Serves calls until it is destroyed.
class Server {
 public:
  explicit Server(std::shared_ptr<const TlsContext> tls) {
    DataLimits limits;
    limits.stranger_s = 600;  // nobody is saved by a timeout
    limits.strangers = 3;     // fewer than callers: some give way
    limits.linger_s = 0.05;
    const auto tokens = std::make_shared<AcceptedTokens>(std::vector<std::string>{"good"}, "no");
    server_ = std::make_unique<DataServer>("127.0.0.1", 0, std::move(tls), limits, tokens);
    threads_.emplace_back([this] { Serve(); });
    threads_.emplace_back([this] { Sweep(); });
  }
  ~Server() {
    ending_ = true;
    server_->Stop();
    for (auto& thread : threads_) thread.join();
  }

  uint16_t port() const { return server_->port(); }
  size_t size() const { return server_->num_networks(); }

 private:
  void Serve() {
    spared = true;
    while (!ending_) {
      const auto call = server_->Next(0.1);
      if (!call) continue;
      try {
        call->Reply({}, nullptr, 0, Patience::Of(5, 5));
      } catch (const StreamError&) {
      }
    }
  }

  void Sweep() {
    spared = true;
    while (!ending_) {
      server_->Sweep();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  std::unique_ptr<DataServer> server_;
  std::atomic<bool> ending_ = false;
  std::vector<std::thread> threads_;
};

// One call, with the right token or a wrong one, which has to end soon. Returns whether it got its reply.
bool CallEnds(uint16_t port, const std::shared_ptr<const TlsContext>& tls, bool good) {
  constexpr double kSoonS = std::chrono::duration<double>(kSoon).count();
  spared = true;
  try {
    DataClient client("127.0.0.1", port, tls);
    client.Connect(kSoonS);
    const ReplyHead head = client.Call(good ? kGood : "authorization: evil", {}, kSoonS);
    std::vector<std::byte> payload(head.payload_bytes);
    client.Read(payload);
    return client.Finish();
  } catch (const StreamTimedOut&) {
    CHECK(!"a caller waits in vain");
  } catch (const StreamError&) {
    return false;
  }
}

// Returns how many rounds met a failure.
int FailEachAllocation(const std::shared_ptr<const TlsContext>& served, const std::shared_ptr<const TlsContext>& used) {
  Server server(served);
  for (int round = 1;; ++round) {
    until_failure = round;
    std::vector<std::thread> callers;
    for (int i = 0; i < kCallers; ++i) {
      callers.emplace_back([&, i] { CallEnds(server.port(), used, i != 0); });
    }
    for (auto& caller : callers) caller.join();
    CHECK(Within([&] { return server.size() == 0; }));
    const bool failed = until_failure <= 0;
    until_failure = 0;
    CHECK(CallEnds(server.port(), used, true));  // it serves on
    if (!failed) return round - 1;
  }
}

// --- names

std::vector<SocketAddress> Look(const std::string& name, Clock::duration time, const std::atomic<bool>& cancelled) {
  return Resolve(name, 80, Clock::now() + time, [&cancelled] { return cancelled.load(); });
}

void ManyLookupsTakeFewThreads() {
  std::atomic<bool> cancelled = false, never = false;
  std::atomic<int> ended = 0;
  std::vector<std::thread> callers;
  const auto look = [&](const std::string& name, Clock::duration time) {
    callers.emplace_back([&, name, time] {
      try {
        Look(name, time, cancelled);
      } catch (const StreamTimedOut&) {
      } catch (const StreamCancelled&) {
      }
      ++ended;
    });
  };
  for (int i = 0; i < 20; ++i) look("stuck", std::chrono::seconds(600));
  CHECK(Within([] { return CountOf("stuck") == 1; }));  // one lookup for all who want that name
  CHECK(Look("known", kSoon, never).size() == 1);       // another name is found meanwhile

  for (int i = 0; i < 20; ++i) look("stuck" + std::to_string(i), std::chrono::milliseconds(50));
  CHECK(Within([&] { return ended == 20; }));  // at their deadline
  CHECK(CountOfThreads() <= 8);
  cancelled = true;
  CHECK(Within([&] { return ended == 40; }));
  for (auto& caller : callers) caller.join();

  int begun = 0;
  {
    const std::lock_guard lock(resolving);
    begun = static_cast<int>(lookups.size());
    stuck = false;
  }
  resolved.notify_all();
  CHECK(Look("known too", kSoon, never).size() == 1);
  CHECK(CountOf("known too") == 1);
  const std::lock_guard lock(resolving);
  CHECK(static_cast<int>(lookups.size()) == begun + 1);  // nobody waited for the rest of them
}

// A child has a resolver of its own, whatever its parent's threads were doing.
void ChildrenResolveNames() {
  std::atomic<bool> never = false;
  {
    const std::lock_guard lock(resolving);
    stuck = true;
  }
  std::thread waiting([&] { Look("stuck in the parent", kSoon, never); });
  CHECK(Within([] { return CountOf("stuck in the parent") == 1; }));
  std::unique_lock lock(resolving);  // the child gets it as it is: free for its only thread, after this
  const pid_t child = fork();
  if (child == 0) {
    lock.unlock();
    std::_Exit(Look("known", kSoon, never).size() == 1 ? 0 : 1);
  }
  stuck = false;
  lock.unlock();
  resolved.notify_all();
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  waiting.join();
}

int Main() {
  spared = true;
  const KeyPair pair = NewKeyPair();
  const int plain = FailEachAllocation(nullptr, nullptr);
  const int encrypted = FailEachAllocation(TlsContext::Server(pair.certificate, pair.key, ""),
                                           TlsContext::Client(pair.certificate, "", ""));
  ManyLookupsTakeFewThreads();
  ChildrenResolveNames();
  std::printf("%d and %d allocations failed\n", plain, encrypted);
  return 0;
}

}  // namespace
}  // namespace gigl

int main() { return gigl::Main(); }
