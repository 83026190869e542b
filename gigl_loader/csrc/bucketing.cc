#include "bucketing.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace gigl {
namespace {

// Cells of the table that finds a bucket: it stays in the L1 or L2 cache.
constexpr uint64_t kMaxCells = 1 << 14;

}  // namespace

template <typename Position>
void FindBuckets(std::span<const int64_t> cuts, std::span<const Position> positions, std::span<uint32_t> buckets) {
  // Positions from cuts[0] on are cut into cells of equal width, at most as many as fit the table. A position
  // is in the bucket where its cell begins, or a few further.
  const int64_t first = cuts.front();
  const int64_t last = cuts.back();
  const auto distance = [first](int64_t position) { return static_cast<uint64_t>(position) - static_cast<uint64_t>(first); };
  const uint64_t span = distance(last) + 1;
  const int shift = static_cast<int>(std::bit_width(span / kMaxCells));
  std::vector<uint32_t> bucket_of_cell((span >> shift) + 1);
  uint32_t bucket = 0;
  for (size_t cell = 0; cell < bucket_of_cell.size(); ++cell) {
    while (bucket + 1 < cuts.size() && distance(cuts[bucket + 1]) <= static_cast<uint64_t>(cell) << shift) ++bucket;
    bucket_of_cell[cell] = bucket;
  }
  const uint32_t last_bucket = static_cast<uint32_t>(cuts.size() - 1);
  for (size_t i = 0; i < positions.size(); ++i) {
    const int64_t position = positions[i];
    if (position < first || position >= last) {
      buckets[i] = position < first ? 0 : last_bucket;
      continue;
    }
    uint32_t found = bucket_of_cell[distance(position) >> shift];
    while (cuts[found + 1] <= position) ++found;
    buckets[i] = found;
  }
}

template void FindBuckets<int32_t>(std::span<const int64_t>, std::span<const int32_t>, std::span<uint32_t>);
template void FindBuckets<int64_t>(std::span<const int64_t>, std::span<const int64_t>, std::span<uint32_t>);

int64_t OrderByBucket(std::span<const uint32_t> buckets, std::span<int64_t> order, std::span<int64_t> starts) {
  const uint64_t num_buckets = starts.size() - 1;
  std::fill(starts.begin(), starts.end(), 0);
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i] >= num_buckets) return static_cast<int64_t>(i);
    ++starts[buckets[i] + 1];
  }
  for (uint64_t b = 0; b < num_buckets; ++b) starts[b + 1] += starts[b];
  // starts[b] serves as the cursor of bucket b: it ends where b + 1 begins, so shifting by one restores it.
  for (size_t i = 0; i < buckets.size(); ++i) order[starts[buckets[i]]++] = static_cast<int64_t>(i);
  std::copy_backward(starts.begin(), starts.end() - 1, starts.end());
  starts[0] = 0;
  return -1;
}

}  // namespace gigl
