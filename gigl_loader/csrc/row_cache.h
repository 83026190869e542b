// Which rows of a remote partition are cached on this host.
#pragma once

#include <cstdint>
#include <span>

namespace gigl {

// A set of rows, numbered in ascending order: bit r of `bits` tells whether row r is in the set, and
// ranks[w] how many are in the words before word w. 1.5 bits a row, so that a partition of a billion
// rows takes 190 MB, and two memory accesses a lookup.
struct RowSet {
  std::span<const uint64_t> bits;
  std::span<const int32_t> ranks;
  int64_t num_rows;  // rows in the partition, not in the set
};

// Fills `ranks` from `bits` and returns the size of the set, or -1 beyond 2^31 - 1.
int64_t CountRows(std::span<const uint64_t> bits, std::span<int32_t> ranks);

// Sorts requests for rows into those of the set and others, each in order. Of request i with
// places[i], the set's go to (hits, hit_places) as their number in the set, others to
// (misses, miss_places) as the row. All four have room for every request. Returns the number of
// hits, or -1 - i for the first request i outside the partition.
int64_t SplitByCache(const RowSet& set, std::span<const int64_t> rows, std::span<const int64_t> places, int64_t* hits,
                     int64_t* hit_places, int64_t* misses, int64_t* miss_places);

}  // namespace gigl
