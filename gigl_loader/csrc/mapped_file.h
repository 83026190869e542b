// A part of a file in memory, shared with every process that maps it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gigl {

// Keeps no descriptor. Python's mmap has one for each map, and a graph has a map for each of its files.
class MappedFile {
 public:
  // Maps bytes [begin, begin + size) of a file. `begin` is a multiple of the page size, `protection` that of mmap. The
  // caller may close `fd`. Huge pages that the file has are mapped as such. Throws std::system_error.
  MappedFile(int fd, int64_t begin, size_t size, int protection);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_;
  size_t size_;
};

// Has a fault in these pages read one page: by default, it reads as far ahead as the device is set to.
void AdviseRandom(const void* data, size_t size);

// Moves bytes [begin, begin + size) of a file in memory, which are all written, into huge pages, as far as whole ones
// fit. Takes 1 s a GB. Returns whether the kernel did: Linux can from 6.1 on. Throws std::system_error.
bool UseHugePages(int fd, int64_t begin, size_t size);

}  // namespace gigl
