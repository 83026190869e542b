#include "disk_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace gigl {
namespace {

constexpr int64_t kPageBytes = 4096;

int64_t AlignDown(int64_t value, int64_t align) { return value - value % align; }
int64_t AlignUp(int64_t value, int64_t align) { return AlignDown(value + align - 1, align); }

// The smallest unit of direct reads of a file: that of its device or file system. 1: it refuses them.
uint32_t DirectUnit([[maybe_unused]] int fd) {
#ifdef O_DIRECT
  if (fcntl(fd, F_SETFL, O_DIRECT) == 0) {
    const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(kMaxAlign, kMaxAlign), &std::free);
    for (const uint32_t unit : {512U, kMaxAlign}) {
      if (page != nullptr && pread(fd, page.get(), unit, 0) >= 0) return unit;
    }
  }
#endif
  fcntl(fd, F_SETFL, 0);
  return 1;
}

std::string Described(int error, const std::string& path, int64_t offset) {
  const std::string at = offset < 0 ? "" : " at byte " + std::to_string(offset);
  if (error == 0) return path + ": it ends before byte " + std::to_string(offset);
  if (error == ECANCELED) return "the reader was closed";
  return std::generic_category().message(error) + at;
}

std::unique_ptr<ReadEngine> OpenEngine(uint32_t depth, const std::string& name) {
  std::unique_ptr<ReadEngine> engine;
  if (name != "threads") engine = OpenRingEngine(depth);
  if (engine == nullptr && name == "io_uring") throw std::runtime_error("this system refuses io_uring");
  return engine != nullptr ? std::move(engine) : OpenThreadEngine(depth);
}

}  // namespace

DiskError::DiskError(int error, std::string path, int64_t offset)
    : error(error), path(std::move(path)), text_(Described(error, this->path, offset)) {}

// Makes reads of jobs while they are done, and copies rows out of what comes.
class DiskReader::Work final : public ReadWork {
 public:
  Work(std::span<const RowJob> jobs, std::span<const File> files, int64_t gap, const std::atomic<bool>& closed)
      : jobs_(jobs), files_(files), gap_(gap), closed_(closed) {}

  bool Next(FileRead* read) override {
    if (closed_ || failed_) return false;
    for (; job_ < jobs_.size(); ++job_, row_ = 0, read_to_ = 0) {
      const RowJob& job = jobs_[job_];
      if (job.row_bytes > 0 && row_ < job.rows.size()) {
        *read = NextOf(job);
        ++reads;
        bytes += read->bytes;
        return true;
      }
    }
    return false;
  }

  void Done(const FileRead& read, const std::byte* data) override {
    const RowJob& job = jobs_[read.job];
    const int64_t end = read.offset + read.needed;
    for (size_t i = read.first; i < job.rows.size(); ++i) {
      const int64_t row = Begin(job, i);
      if (row >= end) break;
      // A row that is longer than a read, or lies across two, comes in parts.
      const int64_t from = std::max(row, read.offset);
      const int64_t to = std::min(row + job.row_bytes, end);
      std::memcpy(job.out + job.targets[i] * job.row_bytes + (from - row), data + (from - read.offset), to - from);
    }
#ifdef POSIX_FADV_DONTNEED
    if (read.align == 1) {  // Memory belongs to the callers' cache of rows.
      const int64_t begin = AlignDown(read.offset, kPageBytes);
      posix_fadvise(read.fd, begin, AlignUp(end, kPageBytes) - begin, POSIX_FADV_DONTNEED);
    }
#endif
  }

  void Failed(const FileRead& read, int error) override {
    const MutexLock lock(mutex_);
    if (failed_) return;
    failed_ = true;
    failure_ = read;
    error_ = error;
  }

  void Check() {
    const MutexLock lock(mutex_);
    const int64_t offset = failure_.offset + (error_ == 0 ? failure_.needed : 0);
    if (failed_) throw DiskError(error_, files_[jobs_[failure_.job].file].path, offset);
    if (closed_) throw DiskError(ECANCELED, "");
  }

  int64_t reads = 0;
  int64_t bytes = 0;

 private:
  static int64_t Begin(const RowJob& job, size_t i) { return job.offset + job.rows[i] * job.row_bytes; }

  // A read of row_ and of rows that follow closely. No byte of a job is read twice.
  FileRead NextOf(const RowJob& job) {
    const File& file = files_[job.file];
    const int64_t align = file.align;
    const int64_t begin = std::max(AlignDown(Begin(job, row_), align), read_to_);
    const int64_t limit = begin + kMaxReadBytes;
    const size_t first = row_;
    int64_t end = begin;
    for (; row_ < job.rows.size(); ++row_) {
      const int64_t row = Begin(job, row_);
      const bool close = row_ == first || AlignDown(row, align) - AlignUp(end, align) <= gap_;
      if (!close || row >= limit) break;
      end = std::min(std::max(end, row + job.row_bytes), limit);
      if (row + job.row_bytes > limit) break;  // The next read has the rest.
    }
    read_to_ = AlignUp(end, align);
    return {.fd = file.fd,
            .align = file.align,
            .offset = begin,
            .bytes = static_cast<uint32_t>(read_to_ - begin),
            .needed = static_cast<uint32_t>(end - begin),
            .job = job_,
            .first = first};
  }

  const std::span<const RowJob> jobs_;
  const std::span<const File> files_;
  const int64_t gap_;
  const std::atomic<bool>& closed_;
  size_t job_ = 0;
  size_t row_ = 0;        // the first row of the job of which bytes are missing
  int64_t read_to_ = 0;   // The job's bytes before this one were read.
  std::atomic<bool> failed_{false};
  Mutex mutex_;
  FileRead failure_ GUARDED_BY(mutex_){};
  int error_ GUARDED_BY(mutex_) = 0;
};

DiskReader::DiskReader(uint32_t depth, int64_t gap, const std::string& engine)
    : gap_(gap), process_(getpid()), engine_(OpenEngine(depth, engine)), engine_name_(engine_->name()) {}

DiskReader::~DiskReader() { Close(); }

size_t DiskReader::Open(const std::string& path) {
  if (closed_) throw DiskError(ECANCELED, "");  // A read that hangs has the turn for ever.
  // Non-blocking: opening a pipe would otherwise wait for its writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw DiskError(errno, path);
  struct stat status {};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(fd);
    throw DiskError(EINVAL, path);
  }
  const uint32_t align = DirectUnit(fd);
#ifdef POSIX_FADV_RANDOM
  posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);  // for reads through the page cache: none ahead
#endif
  const MutexLock turn(turn_);
  const MutexLock lock(state_);
  if (closed_) {
    close(fd);
    throw DiskError(ECANCELED, "");
  }
  files_.push_back({path, fd, align});
  return files_.size() - 1;
}

bool DiskReader::IsDirect(size_t file) {
  const MutexLock lock(state_);
  return files_.at(file).align > 1;
}

size_t DiskReader::num_files() {
  const MutexLock lock(state_);
  return files_.size();
}

void DiskReader::Read(std::span<const RowJob> jobs) {
  if (getpid() != process_) throw std::runtime_error("the reader belongs to another process: open one in this");
  const MutexLock turn(turn_);
  const auto began = std::chrono::steady_clock::now();
  Work work(jobs, Begin(), gap_, closed_);
  try {
    engine_->Run(work);
  } catch (...) {
    (void)engine_.release();  // Reads may be in flight into its memory, which is therefore never freed.
    closed_ = true;
    End();
    throw;
  }
  nanoseconds_ += (std::chrono::steady_clock::now() - began) / std::chrono::nanoseconds(1);
  reads_ += work.reads;
  bytes_ += work.bytes;
  End();
  work.Check();
  for (const RowJob& job : jobs) rows_ += static_cast<int64_t>(job.rows.size());
}

std::span<const DiskReader::File> DiskReader::Begin() {
  const MutexLock lock(state_);
  if (closed_) throw DiskError(ECANCELED, "");
  reading_ = true;
  return files_;
}

void DiskReader::End() {
  const MutexLock lock(state_);
  reading_ = false;
  if (closed_) LetGo();
}

void DiskReader::Close() {
  closed_ = true;
  if (getpid() != process_) {
    // A forked child has none of the threads, and the lock may be held for ever.
    (void)engine_.release();
    return;
  }
  const MutexLock lock(state_);
  if (!reading_) LetGo();
}

void DiskReader::LetGo() {
  engine_.reset();
  for (File& file : files_) {
    if (file.fd >= 0) close(std::exchange(file.fd, -1));
  }
}

DiskCounts DiskReader::counts() const { return {reads_, bytes_, rows_, nanoseconds_}; }

}  // namespace gigl
