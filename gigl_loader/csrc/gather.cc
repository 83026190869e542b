#include "gather.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gigl {
namespace {

// Rows fetched ahead of the copy. One row of 512 bytes is eight lines; the core keeps a few dozen
// in flight.
constexpr int64_t kPrefetchBytes = 8192;
constexpr int64_t kLine = 64;

// From this size on the output cannot stay in the caches anyway: stores go around them, which
// saves reading each line before it is overwritten.
constexpr int64_t kStreamBytes = 4 << 20;

void PrefetchRow(const std::byte* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at, 0, 0);
}

struct CopyPlain {
  int64_t row_bytes;
  void operator()(std::byte* to, const std::byte* from) const { std::memcpy(to, from, row_bytes); }
};

// A row of a size known to the compiler.
template <int64_t kBytes>
struct CopyFixed {
  void operator()(std::byte* to, const std::byte* from) const { std::memcpy(to, from, kBytes); }
};

#if defined(__SSE2__)
// `to` on a 16-byte boundary, whole 16-byte pieces.
struct CopyStreaming {
  int64_t row_bytes;
  void operator()(std::byte* to, const std::byte* from) const {
    for (int64_t at = 0; at < row_bytes; at += 16) {
      const __m128i piece = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), piece);
    }
  }
};
#endif

// Where the rows of a column lie.
struct Column {
  std::span<const std::byte* const> parts;
  std::span<const int64_t> bounds;
  int64_t row_bytes;

  bool Holds(int64_t position) const { return position >= bounds.front() && position < bounds.back(); }

  const std::byte* Row(int64_t position) const {
    size_t part = 0;
    while (position >= bounds[part + 1]) ++part;
    return parts[part] + (position - bounds[part]) * row_bytes;
  }
};

template <typename Copy>
int64_t GatherRows(const Column& column, std::span<const int64_t> positions, Copy copy, std::byte* out) {
  const int64_t count = static_cast<int64_t>(positions.size());
  const int64_t ahead = std::clamp<int64_t>(kPrefetchBytes / std::max<int64_t>(column.row_bytes, 1), 2, 64);
  for (int64_t i = 0; i < count; ++i) {
    if (i + ahead < count && column.Holds(positions[i + ahead])) {
      PrefetchRow(column.Row(positions[i + ahead]), column.row_bytes);
    }
    if (!column.Holds(positions[i])) return i;
    copy(out + i * column.row_bytes, column.Row(positions[i]));
  }
  return -1;
}

}  // namespace

int64_t Gather(std::span<const std::byte* const> parts, std::span<const int64_t> bounds,
               std::span<const int64_t> positions, int64_t row_bytes, std::byte* out) {
  const Column column{parts, bounds, row_bytes};
  switch (row_bytes) {
    case 1: return GatherRows(column, positions, CopyFixed<1>{}, out);
    case 2: return GatherRows(column, positions, CopyFixed<2>{}, out);
    case 4: return GatherRows(column, positions, CopyFixed<4>{}, out);
    case 8: return GatherRows(column, positions, CopyFixed<8>{}, out);
    default: break;
  }
#if defined(__SSE2__)
  const bool aligned = row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
  if (aligned && row_bytes * static_cast<int64_t>(positions.size()) >= kStreamBytes) {
    const int64_t wrong = GatherRows(column, positions, CopyStreaming{row_bytes}, out);
    _mm_sfence();  // the reader may be another process: let it see the rows before it hears of them
    return wrong;
  }
#endif
  return GatherRows(column, positions, CopyPlain{row_bytes}, out);
}

void ExpandEdges(std::span<const int32_t> rows, std::span<const int64_t> colptr,
                 int64_t* neighbors, int64_t* targets) {
  for (size_t e = 0; e < rows.size(); ++e) neighbors[e] = rows[e];
  for (size_t t = 0; t + 1 < colptr.size(); ++t) {
    for (int64_t e = colptr[t]; e < colptr[t + 1]; ++e) targets[e] = static_cast<int64_t>(t);
  }
}

}  // namespace gigl
