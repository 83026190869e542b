// Stops work that nobody wants any more, and pauses work that others go before: kernels look at a flag that any
// thread may set.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "mutex.h"

namespace gigl {

// The flag of the calling thread was set. The text is the reason.
class Stopped : public std::exception {
 public:
  explicit Stopped(std::string reason) : reason_(std::move(reason)) {}
  const char* what() const noexcept override { return reason_.c_str(); }

 private:
  std::string reason_;
};

// One flag for each piece of work, such as a batch. Thread-safe. Several threads may work under one flag.
class StopFlag {
 public:
  // `seconds` bounds the work, from the first Enter on.
  explicit StopFlag(double seconds = std::numeric_limits<double>::infinity());
  StopFlag(const StopFlag&) = delete;

  // Stops the work. The first reason stays.
  void Stop(const std::string& reason);

  // Empty unless the work was stopped, or its time is over.
  std::string reason();

  // Whether the work was stopped because its time was over.
  bool timed_out() const { return timed_out_; }

  // Has threads under this flag wait at their next look within MayWait, until Resume or Stop. Time that is waited counts
  // for the bound of `seconds`.
  void Pause();
  void Resume();

  // Whether a thread waits because of Pause.
  bool parked() const { return parked_ > 0; }

  // Throws Stopped if the work was stopped, or its time is over. Waits while it is paused, within MayWait.
  void Check();

  // Makes this the flag of the calling thread, until the matching Leave. The flag must live until then.
  void Enter();
  static void Leave();

  // The flag of the calling thread, or nullptr.
  static StopFlag* Current();

 private:
  using Clock = std::chrono::steady_clock;

  bool IsSet();
  void Park();

  const double seconds_;
  std::atomic<int64_t> deadline_ns_{std::numeric_limits<int64_t>::max()};
  std::atomic<bool> set_{false};
  std::atomic<bool> timed_out_{false};
  std::atomic<bool> paused_{false};
  std::atomic<int> parked_{0};
  Mutex mutex_;  // held by changes of set_ and paused_, too
  MutexCondition resumed_;
  std::string reason_ GUARDED_BY(mutex_);
};

// While one lives, looks of the calling thread may wait for StopFlag::Resume: it holds neither the GIL nor a lock that
// another thread may need. Without one, paused work goes on until the next look that may wait.
class MayWait {
 public:
  MayWait();
  MayWait(const MayWait&) = delete;
  ~MayWait();
};

// Work between two looks at a flag, in entries of lists and the like, which take 1 to 100 ns each: at most some
// milliseconds, while a look costs 30 ns.
constexpr int64_t kWorkPerLook = 1 << 15;

// What the calling thread may do until it looks at its flag again.
extern constinit thread_local int64_t work_until_look;

void LookAtStopFlag();

// Counts work of the calling thread. Throws Stopped if its flag is set; does nothing in a thread without one.
inline void CheckStop(int64_t work) {
  work_until_look -= work;
  if (work_until_look < 0) [[unlikely]] LookAtStopFlag();
}

// Counts work in small pieces, without a thread-local variable for each of them.
class WorkCounter {
 public:
  // Throws Stopped.
  void Add(int64_t work) {
    pending_ += work;
    if (pending_ <= kMostPending) [[likely]] return;
    CheckStop(pending_);
    pending_ = 0;
  }

 private:
  static constexpr int64_t kMostPending = 4096;
  int64_t pending_ = 0;
};

// Calls work(i) for each i below `count`. Throws Stopped.
template <typename Work>
inline void ForEachUnlessStopped(int64_t count, Work work) {
  constexpr int64_t kChunk = 4096;
  for (int64_t begin = 0; begin < count;) {
    const int64_t end = std::min(count, begin + kChunk);
    for (int64_t i = begin; i < end; ++i) work(i);
    if ((begin = end) < count) CheckStop(kChunk);
  }
}

// Calls sort(less), with an order that throws Stopped where `count` entries are many: sorting 10 million takes a second.
template <typename Less, typename Sort>
void SortUnlessStopped(int64_t count, Less less, Sort sort) {
  if (count <= 4096) {
    CheckStop(count);
    return sort(less);
  }
  WorkCounter work;
  sort([&](const auto& a, const auto& b) {
    work.Add(1);
    return less(a, b);
  });
}

template <typename Iterator, typename Less>
void SortUnlessStopped(Iterator begin, Iterator end, Less less) {
  SortUnlessStopped(end - begin, less, [&](auto order) { std::sort(begin, end, order); });
}

}  // namespace gigl
