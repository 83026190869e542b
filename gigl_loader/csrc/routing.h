// Which partition owns what, and sorting by it.
#pragma once

#include <cstdint>
#include <span>

namespace gigl {

constexpr int64_t kMaxPartitions = 1 << 16;

// Writes the partition that owns each value: p owns [bounds[p], bounds[p + 1]). `bounds` rises and
// names at most kMaxPartitions. Adds to counts[p] the number that p owns. Returns the index of a value
// outside all, or -1.
int64_t FindOwners(std::span<const int64_t> values, std::span<const int64_t> bounds, std::span<uint16_t> owners,
                   std::span<int64_t> counts);

// Deals values out to their owners, each in order: the next one of owner p goes to the place where
// mine[p] points, and its index to places[p] unless `places` is empty. Moves the pointers on.
void DealOut(std::span<const int64_t> values, std::span<const uint16_t> owners, std::span<int64_t*> mine,
             std::span<int64_t*> places);

}  // namespace gigl
