// Putting what partitions answered for their share of a frontier into a batch.
#pragma once

#include <cstdint>
#include <span>

#include "batch.h"

namespace gigl {

// One partition's answer: the neighbours of its next target are the next counts[i] of `num_edges`
// entries. Entries of `positions` and `edge_ids` have 4 or 8 bytes. `times` are those of the edges, of a monotone rule.
struct HopAnswer {
  std::span<const int32_t> counts;
  const void* positions;
  const void* edge_ids;
  const int64_t* slots;
  int64_t num_edges;
  bool wide_positions;
  bool wide_edge_ids;
  const int64_t* times = nullptr;
};

// Slots of partition p are moved by p << kSlotBits in a batch, which keeps them apart.
constexpr int kSlotBits = 40;

// Adds one hop of one edge type: owners[i] names the answer that holds target i of the frontier, and
// every answer holds its targets in their order. Nodes are numbered as the fused sampler would. While edges are
// induced, the answers name nodes of the batch alone. Of a monotone batch, an edge with a time is not later than the
// bound of its target, and where draws are `strictly_earlier`, it is earlier.
//
// Answers may come from elsewhere and are checked: throws std::runtime_error where one does not
// fit the frontier or names a node or slot that cannot be, BatchTooLarge where the batch has no room
// for the edges. The batch must then be begun again.
void Stitch(Batch& batch, int edge_type, std::span<const uint16_t> owners, std::span<const HopAnswer> answers,
            bool strictly_earlier = false);

}  // namespace gigl
