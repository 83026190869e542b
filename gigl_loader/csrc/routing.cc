#include "routing.h"

#include <algorithm>

namespace gigl {
namespace {

// Up to this many partitions, comparing with every bound is faster than a search that mispredicts.
constexpr size_t kFewPartitions = 16;

struct CountBelow {
  std::span<const int64_t> inner;  // the bounds between partitions
  uint16_t operator()(int64_t value) const {
    uint16_t owner = 0;
    for (const int64_t bound : inner) owner = static_cast<uint16_t>(owner + (value >= bound));
    return owner;
  }
};

struct Search {
  std::span<const int64_t> inner;
  uint16_t operator()(int64_t value) const {
    return static_cast<uint16_t>(std::upper_bound(inner.begin(), inner.end(), value) - inner.begin());
  }
};

template <typename Owner>
int64_t FindEach(std::span<const int64_t> values, int64_t first, int64_t last, Owner owner_of,
                 std::span<uint16_t> owners, std::span<int64_t> counts) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < first || values[i] >= last) return static_cast<int64_t>(i);
    owners[i] = owner_of(values[i]);
    ++counts[owners[i]];
  }
  return -1;
}

}  // namespace

int64_t FindOwners(std::span<const int64_t> values, std::span<const int64_t> bounds, std::span<uint16_t> owners,
                   std::span<int64_t> counts) {
  const std::span<const int64_t> inner = bounds.subspan(1, bounds.size() - 2);
  if (inner.size() < kFewPartitions) {
    return FindEach(values, bounds.front(), bounds.back(), CountBelow{inner}, owners, counts);
  }
  return FindEach(values, bounds.front(), bounds.back(), Search{inner}, owners, counts);
}

void DealOut(std::span<const int64_t> values, std::span<const uint16_t> owners, std::span<int64_t*> mine,
             std::span<int64_t*> places) {
  for (size_t i = 0; i < values.size(); ++i) {
    *mine[owners[i]]++ = values[i];
    if (!places.empty()) *places[owners[i]]++ = static_cast<int64_t>(i);
  }
}

}  // namespace gigl
