#include "stop.h"

#include <cstdio>
#include <vector>

namespace gigl {
namespace {

thread_local std::vector<StopFlag*> flags;  // of the calling thread, the innermost last
thread_local int may_wait = 0;              // instances of MayWait

}  // namespace

constinit thread_local int64_t work_until_look = kWorkPerLook;

StopFlag::StopFlag(double seconds) : seconds_(seconds) {}

void StopFlag::Stop(const std::string& reason) {
  const MutexLock lock(mutex_);
  if (set_) return;
  reason_ = reason.empty() ? "stopped" : reason;
  set_ = true;
  resumed_.notify_all();
}

void StopFlag::Pause() {
  const MutexLock lock(mutex_);
  paused_ = true;
}

void StopFlag::Resume() {
  const MutexLock lock(mutex_);
  paused_ = false;
  resumed_.notify_all();
}

std::string StopFlag::reason() {
  if (!IsSet()) return "";
  const MutexLock lock(mutex_);
  return reason_;
}

void StopFlag::Check() {
  if (paused_ && may_wait > 0) Park();
  if (IsSet()) throw Stopped(reason());
}

void StopFlag::Park() {
  const MutexLock lock(mutex_);
  ++parked_;
  resumed_.wait(mutex_, [this] { return !paused_ || set_; });
  --parked_;
}

bool StopFlag::IsSet() {
  if (set_) return true;
  if (Clock::now().time_since_epoch().count() < deadline_ns_) return false;
  char text[64];
  std::snprintf(text, sizeof text, "it took more than %g s", seconds_);
  const MutexLock lock(mutex_);
  if (!set_) {
    reason_ = text;
    timed_out_ = set_ = true;
  }
  return true;
}

void StopFlag::Enter() {
  flags.push_back(this);
  work_until_look = kWorkPerLook;
  constexpr double kMostSeconds = 1e9;
  if (!(seconds_ < kMostSeconds)) return;
  const auto limit = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::max(seconds_, 0.0)));
  int64_t none = std::numeric_limits<int64_t>::max();
  deadline_ns_.compare_exchange_strong(none, (Clock::now() + limit).time_since_epoch().count());
}

void StopFlag::Leave() { flags.pop_back(); }

StopFlag* StopFlag::Current() { return flags.empty() ? nullptr : flags.back(); }

MayWait::MayWait() { ++may_wait; }

MayWait::~MayWait() { --may_wait; }

void LookAtStopFlag() {
  work_until_look = kWorkPerLook;
  if (!flags.empty()) flags.back()->Check();
}

}  // namespace gigl
