// Fused k-hop neighbour sampling over all edge types of a graph that this host holds.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "adjacency.h"

namespace gigl {

// One edge type as the sampler sees it.
struct EdgeTypePlan {
  const AdjacencyView* adjacency;
  int target_type;             // its nodes are expanded
  int neighbor_type;           // what expanding them finds
  uint32_t address;            // 24 bits: the edge type's place in the draws
  std::vector<int32_t> fanouts;  // per hop; -1 all, 0 none
};

// One node type as the sampler sees it.
struct NodeTypePlan {
  int64_t count;
  const int64_t* ids;  // position -> node id; nullptr where they are equal
};

struct SamplerOptions {
  bool replace;        // draw with replacement
  bool with_edge_ids;  // collect the ids of sampled edges
  bool with_slots;     // collect the places of sampled edges in adjacency order
};

// The edges of one type in a batch, grouped by target: edge e of target t has
// colptr[t] <= e < colptr[t + 1], and rows[e] is the local index of its neighbour.
struct SampledEdges {
  std::span<const int32_t> rows;
  std::span<const int64_t> colptr;
  std::span<const int64_t> edge_ids;
  std::span<const int64_t> slots;
  std::vector<int64_t> per_hop;
};

// The nodes of one type in a batch, as positions in first-seen order; seeds come first.
struct SampledNodes {
  std::span<const int64_t> positions;
  std::vector<int64_t> per_hop;  // seeds, then the new ones of each hop
};

// Samples batches one after the other in scratch memory that it keeps. What a batch holds depends
// only on the graph, the plans, the seeds and the key: not on earlier batches, on how the graph is
// cut into parts, or on the platform. Not thread-safe.
class NeighborSampler {
 public:
  NeighborSampler(std::vector<NodeTypePlan> node_types, std::vector<EdgeTypePlan> edge_types,
                  SamplerOptions options);
  ~NeighborSampler();

  // Throws std::out_of_range for a seed outside its type and std::runtime_error for adjacency
  // lists that point outside theirs (a damaged graph).
  void Sample(int seed_type, std::span<const int64_t> seeds, uint64_t key);

  SampledNodes Nodes(int node_type) const;
  SampledEdges Edges(int edge_type) const;
  const NodeTypePlan& Plan(int node_type) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gigl
