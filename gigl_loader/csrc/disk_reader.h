// Rows of columns that lie in files, read with many reads in flight and past the page cache.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mutex.h"
#include "read_engine.h"

namespace gigl {

// A file that cannot be read. `error` is an errno, or 0 where the file ends too early.
class DiskError : public std::exception {
 public:
  DiskError(int error, std::string path, int64_t offset = -1);
  const char* what() const noexcept override { return text_.c_str(); }

  const int error;
  const std::string path;

 private:
  std::string text_;
};

// Rows of one column of one file: row rows[i] goes to out[targets[i]]. `rows` ascend and are below `num_rows`.
// Targets differ, over all jobs that have one `out`.
struct RowJob {
  size_t file;
  int64_t offset;  // of row 0
  int64_t row_bytes;
  int64_t num_rows;
  std::span<const int64_t> rows;
  std::span<const int64_t> targets;
  std::byte* out;
};

struct DiskCounts {
  int64_t reads = 0;
  int64_t bytes = 0;  // as read, with what lies between rows
  int64_t rows = 0;
  int64_t nanoseconds = 0;  // in which a read was in progress
};

// Reads of several threads take turns: one has the whole depth. Thread-safe.
class DiskReader {
 public:
  // `depth` reads are in flight at once. Rows with up to `gap` bytes between them come with one read.
  // Throws std::runtime_error where the engine that is named does not work here ("": the best one that does).
  DiskReader(uint32_t depth, int64_t gap, const std::string& engine);
  DiskReader(const DiskReader&) = delete;
  ~DiskReader();

  // Opens a file and returns its number. Throws DiskError.
  size_t Open(const std::string& path);

  // Whether reads of a file go past the page cache. Else its file system refuses that.
  bool IsDirect(size_t file);
  size_t num_files();

  // Throws DiskError, and for the reader itself std::system_error. Nothing is written afterwards.
  void Read(std::span<const RowJob> jobs);

  // Ends a read in progress by DiskError(ECANCELED), and all that follow. Does not wait: a disk may hang. A read in
  // progress keeps files and memory until its reads in flight are over, and lets them go itself.
  void Close();

  DiskCounts counts() const;
  const char* engine() const { return engine_name_; }

 private:
  struct File {
    std::string path;
    int fd;
    uint32_t align;  // of direct reads; 1: through the page cache
  };
  class Work;

  std::span<const File> Begin();
  void End();
  void LetGo() REQUIRES(state_);

  const int64_t gap_;
  const int process_;
  std::atomic<bool> closed_{false};
  Mutex turn_;   // held while reads are in flight, and while a file is opened
  Mutex state_;  // held for moments, also by holders of the turn
  bool reading_ GUARDED_BY(state_) = false;  // engine_ and files_ are in use: nobody else changes them
  std::unique_ptr<ReadEngine> engine_;
  std::vector<File> files_;
  const char* engine_name_;
  std::atomic<int64_t> reads_{0}, bytes_{0}, rows_{0}, nanoseconds_{0};
};

}  // namespace gigl
