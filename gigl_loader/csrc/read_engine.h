// Many reads of files in flight at once: by io_uring, or by threads where the kernel or the container refuses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace gigl {

// One read. `offset` and `bytes` are multiples of `align`.
struct FileRead {
  int fd;
  uint32_t align;
  int64_t offset;
  uint32_t bytes;   // at most kMaxReadBytes
  uint32_t needed;  // bytes from `offset` that the file must have: the rest may lie behind its end
  size_t job;       // The last two are the caller's.
  size_t first;
};

constexpr uint32_t kMaxReadBytes = 256 << 10;
constexpr uint32_t kMaxAlign = 4096;

// A source of reads, which takes what they give.
class ReadWork {
 public:
  virtual ~ReadWork() = default;

  // Writes the next read. False: none is left. Called by one thread at a time.
  virtual bool Next(FileRead* read) = 0;

  // Takes `read.needed` bytes. Called by several threads at once.
  virtual void Done(const FileRead& read, const std::byte* data) = 0;

  // Takes an errno, or 0 where the file ends within the needed bytes. Next then returns false. Called by several
  // threads at once.
  virtual void Failed(const FileRead& read, int error) = 0;
};

// Thread-safe only as far as callers take turns.
class ReadEngine {
 public:
  virtual ~ReadEngine() = default;

  // Does all reads of `work`, `depth` at a time. When this returns or throws, nothing of `work` is called any more.
  // Throws std::system_error where the engine itself fails; it is then of no further use.
  virtual void Run(ReadWork& work) = 0;

  virtual const char* name() const = 0;
};

// An engine over io_uring, or nullptr where this system does not let a process have one.
std::unique_ptr<ReadEngine> OpenRingEngine(uint32_t depth);

// An engine over a pool of threads. They start at the first read.
std::unique_ptr<ReadEngine> OpenThreadEngine(uint32_t depth);

}  // namespace gigl
