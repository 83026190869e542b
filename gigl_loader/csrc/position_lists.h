// Kernels over lists of positions, for samplers that are put together in Python. All of them throw Stopped.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gigl {

// The distinct entries of two lists, one after the other, in the order in which they are first seen; in `places`, where
// each entry of `values` is among them. A negative value is no entry: its place is -1.
std::vector<int64_t> Relabel(std::span<const int64_t> first, std::span<const int64_t> values, std::span<int32_t> places);

// A node that the walks of an owner visit, and its share of all their visits.
struct Visited {
  int32_t owner;
  float share;
  int64_t node;
};

// The nodes that the walks of each owner visit most, at most `most` for each: by owner, most visited first, ties by
// ascending node id. Row w of `visits` (row-major) has the visits of walk w, negative ones being none, and belongs to
// owners[w], below `num_owners`. `ids`: position -> node id, nullptr where they are equal.
std::vector<Visited> MostVisited(std::span<const int32_t> owners, int32_t num_owners, std::span<const int64_t> visits,
                                 const int64_t* ids, int64_t most);

// Sorts each list by ascending node id. List i is the next counts[i] of `positions`.
void SortLists(std::span<const int64_t> counts, const int64_t* ids, std::span<int64_t> positions);

}  // namespace gigl
