#include "mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "stop.h"

namespace gigl {

namespace {

constexpr uintptr_t kHugePage = 2 << 20;
constexpr size_t kCollapsedAtOnce = 64 << 20;
constexpr int kCollapse = 25;  // MADV_COLLAPSE of Linux 6.1, which older headers lack

// Returns addresses for a map of `size` bytes from `begin` on that huge pages of the file fit into, nullptr where there
// are none: Linux chooses such addresses by itself from 6.7 on.
void* Reserve(int64_t begin, size_t size) {
  if (size < kHugePage) return nullptr;
  void* const memory = mmap(nullptr, size + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  const auto at = reinterpret_cast<uintptr_t>(memory);
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = at + (static_cast<uintptr_t>(begin) - at) % kHugePage;
  const uintptr_t end = first + (size + page - 1) / page * page;
  if (first > at) munmap(memory, first - at);
  if (at + size + kHugePage > end) munmap(reinterpret_cast<void*>(end), at + size + kHugePage - end);
  return reinterpret_cast<void*>(first);
}

}  // namespace

MappedFile::MappedFile(int fd, int64_t begin, size_t size, int protection) : data_(nullptr), size_(size) {
  void* const place = Reserve(begin, size);
  void* const memory = mmap(place, size, protection, MAP_SHARED | (place != nullptr ? MAP_FIXED : 0), fd, begin);
  if (memory == MAP_FAILED) {
    const int error = errno;
    if (place != nullptr) munmap(place, size);
    throw std::system_error(error, std::generic_category());
  }
  data_ = static_cast<std::byte*>(memory);
}

MappedFile::~MappedFile() { munmap(data_, size_); }

void AdviseRandom(const void* data, size_t size) {
  const auto at = reinterpret_cast<uintptr_t>(data);
  const uintptr_t skipped = at % static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  madvise(reinterpret_cast<void*>(at - skipped), size + skipped, MADV_RANDOM);
}

bool UseHugePages(int fd, int64_t begin, size_t size) {
  const auto page = static_cast<int64_t>(kHugePage);
  const int64_t first = (begin + page - 1) / page * page;
  const int64_t end = (begin + static_cast<int64_t>(size)) / page * page;
  if (first >= end) return true;
  const MappedFile map(fd, first, static_cast<size_t>(end - first), PROT_READ);
  for (size_t at = 0; at < map.size(); at += kCollapsedAtOnce) {
    CheckStop(kWorkPerLook);
    if (madvise(map.data() + at, std::min(kCollapsedAtOnce, map.size() - at), kCollapse) != 0) return false;
  }
  return true;
}

}  // namespace gigl
