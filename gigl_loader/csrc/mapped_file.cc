#include "mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace gigl {

MappedFile::MappedFile(int fd, int64_t begin, size_t size, int protection) : data_(nullptr), size_(size) {
  void* const memory = mmap(nullptr, size, protection, MAP_SHARED, fd, begin);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category());
  data_ = static_cast<std::byte*>(memory);
}

MappedFile::~MappedFile() { munmap(data_, size_); }

void AdviseRandom(const void* data, size_t size) {
  const auto at = reinterpret_cast<uintptr_t>(data);
  const uintptr_t skipped = at % static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  madvise(reinterpret_cast<void*>(at - skipped), size + skipped, MADV_RANDOM);
}

}  // namespace gigl
