#include "read_engine.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "background_thread.h"
#include "mutex.h"

namespace gigl {
namespace {

// Pages that a child process does not get: a fork would otherwise have the kernel write what is being read into the
// child's copy of a page, or let both processes use one ring.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t bytes, int fd = -1, off_t offset = 0) : bytes_(bytes) {
    const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, offset);
    if (data == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(data);
#ifdef MADV_DONTFORK
    madvise(data_, bytes_, MADV_DONTFORK);
#endif
  }
  Pages(const Pages&) = delete;
  Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Pages() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// A read whose bytes may come in several pieces.
struct Attempt {
  FileRead read{};
  uint32_t base = 0;   // from where it is read now, a multiple of the alignment
  uint32_t there = 0;  // bytes that have come

  enum class Next { kAgain, kDone, kFailed };

  // Takes the number of bytes that came from `base` on, or a negative errno.
  Next Advance(int64_t result, int* error) {
    *error = 0;
    if (result < 0) {
      if (result == -EINTR || result == -EAGAIN) return Next::kAgain;
      *error = static_cast<int>(-result);
      return Next::kFailed;
    }
    const uint32_t before = there;
    there = std::max(there, base + static_cast<uint32_t>(result));
    if (there >= read.needed) return Next::kDone;
    if (there == before) return Next::kFailed;  // The file ends here.
    base = there - there % read.align;
    return Next::kAgain;
  }
};

class ThreadEngine final : public ReadEngine {
 public:
  explicit ThreadEngine(uint32_t depth) : depth_(depth) { buffers_.reserve(depth); }
  ThreadEngine(const ThreadEngine&) = delete;

  ~ThreadEngine() override {
    {
      const MutexLock lock(mutex_);
      ending_ = true;
    }
    wanted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Run(ReadWork& work) override {
    Start();
    const MutexLock lock(mutex_);
    work_ = &work;
    wanted_.notify_one();
    while (work_ != nullptr || running_ > 0) over_.wait(mutex_);
  }

  const char* name() const override { return "threads"; }

 private:
  void Start() {
    while (threads_.size() < depth_) {
      buffers_.emplace_back(kMaxReadBytes);
      try {
        threads_.push_back(StartBackgroundThread([this, data = buffers_.back().data()] { Serve(data); }));
      } catch (const std::system_error&) {
        buffers_.pop_back();
        if (threads_.empty()) throw;
        return;  // Fewer threads are slower, not wrong.
      }
    }
  }

  void Serve(std::byte* buffer) {
    Attempt attempt;
    while (ReadWork* const work = Take(&attempt)) {
      const FileRead& read = attempt.read;
      int error = 0;
      Attempt::Next next = Attempt::Next::kAgain;
      while (next == Attempt::Next::kAgain) {
        const ssize_t came = pread(read.fd, buffer + attempt.base, read.bytes - attempt.base,
                                   static_cast<off_t>(read.offset + attempt.base));
        next = attempt.Advance(came < 0 ? -errno : came, &error);
      }
      if (next == Attempt::Next::kDone) {
        work->Done(read, buffer);
      } else {
        work->Failed(read, error);
      }
      const MutexLock lock(mutex_);
      if (--running_ == 0 && work_ == nullptr) over_.notify_all();
    }
  }

  // Waits for a read. Null: the engine ends.
  ReadWork* Take(Attempt* attempt) {
    const MutexLock lock(mutex_);
    while (!ending_) {
      ReadWork* const work = work_;
      *attempt = {};
      if (work != nullptr && work->Next(&attempt->read)) {
        ++running_;
        wanted_.notify_one();  // As many threads wake up as there are reads.
        return work;
      }
      if (work != nullptr) {
        work_ = nullptr;
        if (running_ == 0) over_.notify_all();
      }
      wanted_.wait(mutex_);
    }
    return nullptr;
  }

  const uint32_t depth_;
  std::vector<Pages> buffers_;
  std::vector<std::thread> threads_;
  Mutex mutex_;
  MutexCondition wanted_;
  MutexCondition over_;
  ReadWork* work_ GUARDED_BY(mutex_) = nullptr;  // null: no read is left to take
  uint32_t running_ GUARDED_BY(mutex_) = 0;
  bool ending_ GUARDED_BY(mutex_) = false;
};

#ifdef __linux__

// The kernel's interface, which does not change. Declared here: a wheel is built with headers older than io_uring.
struct SubmissionOffsets {
  uint32_t head, tail, ring_mask, ring_entries, flags, dropped, array, reserved;
  uint64_t user_address;
};
struct CompletionOffsets {
  uint32_t head, tail, ring_mask, ring_entries, overflow, entries, flags, reserved;
  uint64_t user_address;
};
struct RingParameters {
  uint32_t submissions, completions, flags, poll_cpu, poll_idle, features, poll_ring, reserved[3];
  SubmissionOffsets submission;
  CompletionOffsets completion;
};
struct Submission {
  uint8_t operation, flags;
  uint16_t priority;
  int32_t fd;
  uint64_t offset, address;
  uint32_t length, operation_flags;
  uint64_t user_data, reserved[3];
};
struct Completion {
  uint64_t user_data;
  int32_t result;
  uint32_t flags;
};
static_assert(sizeof(RingParameters) == 120 && sizeof(Submission) == 64 && sizeof(Completion) == 16);

constexpr long kSetupCall = 425;  // on all architectures but alpha
constexpr long kEnterCall = 426;
constexpr off_t kSubmissionRing = 0;
constexpr off_t kCompletionRing = 0x8000000;
constexpr off_t kSubmissionEntries = 0x10000000;
constexpr uint8_t kNothing = 0;
constexpr uint8_t kReadVector = 1;
constexpr unsigned kGetEvents = 1;

class RingEngine final : public ReadEngine {
 public:
  explicit RingEngine(uint32_t depth) : depth_(depth), slots_(depth) {
    for (Slot& slot : slots_) slot.buffer = Pages(kMaxReadBytes);
    RingParameters given{};
    fd_ = static_cast<int>(syscall(kSetupCall, std::bit_ceil(depth), &given));
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "io_uring_setup");
    try {
      Map(given);
      ProbeEnter();
    } catch (...) {
      close(fd_);
      throw;
    }
  }
  RingEngine(const RingEngine&) = delete;
  ~RingEngine() override { close(fd_); }

  void Run(ReadWork& work) override {
    std::vector<Slot*> free;
    free.reserve(depth_);
    for (Slot& slot : slots_) free.push_back(&slot);
    bool more = true;
    while (true) {
      while (more && !free.empty()) {
        Slot* const slot = free.back();
        slot->attempt = {};
        more = work.Next(&slot->attempt.read);
        if (!more) break;
        free.pop_back();
        Submit(*slot);
      }
      const auto in_flight = static_cast<uint32_t>(slots_.size() - free.size());
      if (in_flight == 0) return;
      // Some at once: waking up for each costs more CPU than the read.
      Enter(std::max(1U, std::min(in_flight, depth_ / 8)));
      Completion completion;
      while (Reap(&completion)) {
        Slot& slot = slots_[completion.user_data];
        int error = 0;
        switch (slot.attempt.Advance(completion.result, &error)) {
          case Attempt::Next::kAgain:
            Submit(slot);
            continue;
          case Attempt::Next::kDone:
            work.Done(slot.attempt.read, slot.buffer.data());
            break;
          case Attempt::Next::kFailed:
            work.Failed(slot.attempt.read, error);
            break;
        }
        free.push_back(&slot);
      }
    }
  }

  const char* name() const override { return "io_uring"; }

 private:
  struct Slot {
    Pages buffer;
    Attempt attempt;
    iovec memory{};  // The kernel reads it when the read is submitted.
  };

  void Map(const RingParameters& given) {
    const SubmissionOffsets& in = given.submission;
    const CompletionOffsets& out = given.completion;
    submissions_ = Pages(in.array + given.submissions * sizeof(uint32_t), fd_, kSubmissionRing);
    completions_ = Pages(out.entries + given.completions * sizeof(Completion), fd_, kCompletionRing);
    entries_ = Pages(given.submissions * sizeof(Submission), fd_, kSubmissionEntries);
    submission_head_ = Number(submissions_, in.head);
    submission_tail_ = Number(submissions_, in.tail);
    submission_mask_ = *Number(submissions_, in.ring_mask);
    completion_head_ = Number(completions_, out.head);
    completion_tail_ = Number(completions_, out.tail);
    completion_mask_ = *Number(completions_, out.ring_mask);
    completion_at_ = reinterpret_cast<const Completion*>(completions_.data() + out.entries);
    for (uint32_t i = 0; i < given.submissions; ++i) Number(submissions_, in.array)[i] = i;
  }

  static uint32_t* Number(const Pages& pages, uint32_t offset) {
    return reinterpret_cast<uint32_t*>(pages.data() + offset);
  }

  // Submits nothing and waits for it: a filter of system calls may allow a ring, but not its use.
  void ProbeEnter() {
    Submission nothing{};
    nothing.operation = kNothing;
    Push(nothing);
    Enter(1);
    Completion completion;
    if (!Reap(&completion) || completion.result != 0) {
      throw std::system_error(ENOSYS, std::generic_category(), "io_uring_enter");
    }
  }

  void Submit(Slot& slot) {
    const FileRead& read = slot.attempt.read;
    const uint32_t base = slot.attempt.base;
    slot.memory = {slot.buffer.data() + base, read.bytes - base};
    Submission entry{};
    entry.operation = kReadVector;
    entry.fd = read.fd;
    entry.offset = static_cast<uint64_t>(read.offset + base);
    entry.address = reinterpret_cast<uint64_t>(&slot.memory);
    entry.length = 1;
    entry.user_data = static_cast<uint64_t>(&slot - slots_.data());
    Push(entry);
  }

  // There is room: as many entries as slots, and a slot has at most one.
  void Push(const Submission& entry) {
    const uint32_t tail = *submission_tail_;
    reinterpret_cast<Submission*>(entries_.data())[tail & submission_mask_] = entry;
    std::atomic_ref(*submission_tail_).store(tail + 1, std::memory_order_release);
  }

  // Hands entries to the kernel and waits for this many completions.
  void Enter(uint32_t completions) {
    while (true) {
      const uint32_t new_ones =
          *submission_tail_ - std::atomic_ref(*submission_head_).load(std::memory_order_acquire);
      const long taken = syscall(kEnterCall, fd_, new_ones, completions, kGetEvents, nullptr, 0);
      if (taken == new_ones) return;
      // Taken in part: the kernel lacks memory for more at once, or waits for completions to be reaped.
      if (taken > 0) return;
      if (taken < 0 && errno == EINTR) continue;
      const bool can_wait = taken == 0 || errno == EAGAIN || errno == EBUSY;
      if (!can_wait) throw std::system_error(errno, std::generic_category(), "io_uring_enter");
      if (*completion_head_ != std::atomic_ref(*completion_tail_).load(std::memory_order_acquire)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  bool Reap(Completion* completion) {
    const uint32_t head = *completion_head_;
    if (head == std::atomic_ref(*completion_tail_).load(std::memory_order_acquire)) return false;
    *completion = completion_at_[head & completion_mask_];
    std::atomic_ref(*completion_head_).store(head + 1, std::memory_order_release);
    return true;
  }

  const uint32_t depth_;
  std::vector<Slot> slots_;
  int fd_ = -1;
  Pages submissions_, completions_, entries_;
  uint32_t* submission_head_ = nullptr;
  uint32_t* submission_tail_ = nullptr;
  uint32_t submission_mask_ = 0;
  uint32_t* completion_head_ = nullptr;
  uint32_t* completion_tail_ = nullptr;
  uint32_t completion_mask_ = 0;
  const Completion* completion_at_ = nullptr;
};

#endif

}  // namespace

std::unique_ptr<ReadEngine> OpenRingEngine([[maybe_unused]] uint32_t depth) {
#ifdef __linux__
  try {
    return std::make_unique<RingEngine>(depth);
  } catch (const std::system_error&) {  // No such call, forbidden, or a limit is reached.
  } catch (const std::bad_alloc&) {  // of its maps, which count as locked memory before Linux 5.12
  }
#endif
  return nullptr;
}

std::unique_ptr<ReadEngine> OpenThreadEngine(uint32_t depth) { return std::make_unique<ThreadEngine>(depth); }

}  // namespace gigl
