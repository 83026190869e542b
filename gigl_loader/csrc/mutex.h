// A mutex whose rules the compiler checks: clang with -Wthread-safety (make lint). Other compilers skip the words.
#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define GIGL_THREAD_ANNOTATION(words) __attribute__((words))
#else
#define GIGL_THREAD_ANNOTATION(words)
#endif

// Of a field: it is read and written by holders of this mutex only.
#define GUARDED_BY(mutex) GIGL_THREAD_ANNOTATION(guarded_by(mutex))
// Of a function: its callers hold this mutex.
#define REQUIRES(...) GIGL_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))

namespace gigl {

class GIGL_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() GIGL_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void unlock() GIGL_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

// Holds a mutex while it lives.
class GIGL_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) GIGL_THREAD_ANNOTATION(acquire_capability(mutex)) : mutex_(mutex) { mutex.lock(); }
  MutexLock(const MutexLock&) = delete;
  ~MutexLock() GIGL_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

// Waits are called with the mutex itself, which the caller holds.
using MutexCondition = std::condition_variable_any;

}  // namespace gigl
