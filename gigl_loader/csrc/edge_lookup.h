// Whether edges exist.
#pragma once

#include <cstdint>
#include <span>

#include "adjacency.h"

namespace gigl {

// Writes 1 to found[i] if the list of targets[i] has neighbors[i] (both positions), else 0: one binary search
// each, as lists ascend by the neighbour's node id. `neighbor_ids` maps positions of neighbours to node ids,
// nullptr for the identity; there are `num_neighbors` of them.
//
// Throws std::invalid_argument for a target outside the adjacency or a neighbour outside its type, and
// std::runtime_error for damaged lists.
void FindEdges(const AdjacencyView& adjacency, const int64_t* neighbor_ids, int64_t num_neighbors,
               std::span<const int64_t> targets, std::span<const int64_t> neighbors, std::span<uint8_t> found);

}  // namespace gigl
