// Trees of a disjoint batch: each seed has one of its own, and a node that two trees reach is there twice.
#pragma once

#include <cstdint>

#include "random.h"

namespace gigl {

// In a disjoint batch, a node is named by its position with the number of its tree above it. Elsewhere the
// tree is 0, so that names are positions.
constexpr int kTreeShift = 40;
constexpr int64_t kPositionMask = (int64_t{1} << kTreeShift) - 1;
constexpr int64_t kMaxTrees = int64_t{1} << 23;

inline int64_t PositionOf(int64_t name) { return name & kPositionMask; }
inline int64_t TreeOf(int64_t name) { return name >> kTreeShift; }

// The key of every draw in a tree of a disjoint batch.
inline uint64_t TreeKey(uint64_t batch_key, int64_t tree) {
  return Philox(batch_key, static_cast<uint64_t>(tree), uint64_t{0xFE01} << 48).first;
}

}  // namespace gigl
