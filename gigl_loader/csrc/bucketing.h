// Spreading rows over buckets of positions.
#pragma once

#include <cstdint>
#include <span>

namespace gigl {

// Writes the bucket of each position: bucket b begins at cuts[b]. `cuts` rises and is not empty; positions below
// cuts[0] are in bucket 0. Position is int32_t or int64_t.
template <typename Position>
void FindBuckets(std::span<const int64_t> cuts, std::span<const Position> positions, std::span<uint32_t> buckets);

// Writes the indices of the rows of bucket 0, then of bucket 1 and so on, each in order: those of bucket b are
// order[starts[b]] .. order[starts[b + 1] - 1]. Returns the index of a row whose bucket is not below
// starts.size() - 1, or -1 when all is well.
int64_t OrderByBucket(std::span<const uint32_t> buckets, std::span<int64_t> order, std::span<int64_t> starts);

}  // namespace gigl
