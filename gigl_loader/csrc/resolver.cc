#include "resolver.h"

#include <netdb.h>
#include <pthread.h>

#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "background_thread.h"
#include "data_stream.h"
#include "mutex.h"

namespace gigl {
namespace {

constexpr size_t kMaxThreads = 4;
constexpr auto kPoll = std::chrono::milliseconds(50);  // between two looks at whether a caller was cancelled

using Name = std::pair<std::string, uint16_t>;  // host and port
using Addresses = std::vector<SocketAddress>;

Addresses Find(const Name& name, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(name.first.c_str(), std::to_string(name.second).c_str(), &hints, &found);
  if (code != 0) throw StreamError("the name " + name.first + " is not known: " + gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  Addresses addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SocketAddress address{};
    std::memcpy(&address.address, each->ai_addr, each->ai_addrlen);
    address.size = each->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

// One lookup, held by the callers that wait for it.
struct Lookup {
  explicit Lookup(Name name) : name(std::move(name)) {}

  const Name name;
  bool done = false;
  Addresses addresses;
  std::exception_ptr failure;  // null where it succeeded
};

class Resolver {
 public:
  Addresses Resolve(const Name& name, Clock::time_point deadline, const std::function<bool()>& is_cancelled) {
    const MutexLock lock(mutex_);
    const std::shared_ptr<const Lookup> lookup = Join(name);
    StartThread();
    while (!lookup->done) {
      if (is_cancelled()) throw StreamCancelled("cancelled");
      if (Clock::now() >= deadline) throw StreamTimedOut("the name " + name.first + " was not resolved in time");
      changed_.wait_for(mutex_, kPoll);
    }
    if (lookup->failure) std::rethrow_exception(lookup->failure);
    return lookup->addresses;
  }

 private:
  // Returns the lookup of a name that is not done, or queues a new one.
  std::shared_ptr<const Lookup> Join(const Name& name) REQUIRES(mutex_) {
    const auto found = lookups_.find(name);
    if (found != lookups_.end()) return found->second;
    const auto lookup = std::make_shared<Lookup>(name);
    queue_.push_back(lookup);  // first: where the next line throws, a thread drops it
    lookups_.emplace(name, lookup);
    return lookup;
  }

  // Starts a thread for queued lookups, if there may be one more.
  void StartThread() REQUIRES(mutex_) {
    if (queue_.empty() || threads_ == kMaxThreads) return;
    try {
      StartBackgroundThread([this] { Run(); }).detach();
      ++threads_;
    } catch (const std::system_error& error) {
      if (threads_ == 0) throw StreamError(std::string("no thread can look a name up: ") + error.what());
    }
  }

  void Run() {
    const MutexLock lock(mutex_);
    while (!queue_.empty()) {
      const std::shared_ptr<Lookup> lookup = std::move(queue_.front());
      queue_.pop_front();
      if (lookup.use_count() > 2) {  // else only this thread and the map hold it: nobody waits
        mutex_.unlock();
        try {
          lookup->addresses = Find(lookup->name, AI_ADDRCONFIG);
        } catch (...) {
          lookup->failure = std::current_exception();
        }
        mutex_.lock();
      }
      lookup->done = true;
      lookups_.erase(lookup->name);
      changed_.notify_all();
    }
    --threads_;
  }

  Mutex mutex_;  // guards results of lookups, too
  MutexCondition changed_;
  std::map<Name, std::shared_ptr<Lookup>> lookups_ GUARDED_BY(mutex_);  // not done
  std::deque<std::shared_ptr<Lookup>> queue_ GUARDED_BY(mutex_);        // those of them that no thread has begun
  size_t threads_ GUARDED_BY(mutex_) = 0;
};

// The resolver of this process. It is never destroyed: a thread of it may outlast everything else.
Resolver* resolver = new Resolver;

// A child process has no thread of its parent, and a lock that one of them held stays held: it gets a new resolver.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { resolver = new Resolver; });

}  // namespace

std::vector<SocketAddress> Resolve(const std::string& host, uint16_t port, Clock::time_point deadline,
                                   const std::function<bool()>& is_cancelled) {
  try {
    return Find({host, port}, AI_NUMERICHOST);
  } catch (const StreamError&) {
    return resolver->Resolve({host, port}, deadline, is_cancelled);
  }
}

}  // namespace gigl
