#include "row_cache.h"

#include <bit>

namespace gigl {
namespace {

constexpr int64_t kAhead = 16;  // requests between the fetch of a word and its use

}  // namespace

int64_t CountRows(std::span<const uint64_t> bits, std::span<int32_t> ranks) {
  int64_t count = 0;
  for (size_t word = 0; word < bits.size(); ++word) {
    if (count > INT32_MAX) return -1;
    ranks[word] = static_cast<int32_t>(count);
    count += std::popcount(bits[word]);
  }
  return count > INT32_MAX ? -1 : count;
}

int64_t SplitByCache(const RowSet& set, std::span<const int64_t> rows, std::span<const int64_t> places, int64_t* hits,
                     int64_t* hit_places, int64_t* misses, int64_t* miss_places) {
  const int64_t count = static_cast<int64_t>(rows.size());
  int64_t num_hits = 0;
  int64_t num_misses = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      const uint64_t ahead = static_cast<uint64_t>(rows[i + kAhead]) / 64;
      if (ahead < set.bits.size()) {
        __builtin_prefetch(&set.bits[ahead]);
        __builtin_prefetch(&set.ranks[ahead]);
      }
    }
    const int64_t row = rows[i];
    if (row < 0 || row >= set.num_rows) return -1 - i;
    const uint64_t word = set.bits[row / 64];
    const uint64_t bit = uint64_t{1} << (row % 64);
    const bool hit = (word & bit) != 0;
    // Both outcomes are written, one is kept: whether a row is cached is a coin toss, and a
    // mispredicted branch costs more than two stores.
    hits[num_hits] = set.ranks[row / 64] + std::popcount(word & (bit - 1));
    hit_places[num_hits] = places[i];
    misses[num_misses] = row;
    miss_places[num_misses] = places[i];
    num_hits += hit;
    num_misses += !hit;
  }
  return num_hits;
}

}  // namespace gigl
