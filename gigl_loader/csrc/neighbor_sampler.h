// Fused k-hop neighbour sampling over all edge types of a graph that this host holds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "adjacency.h"
#include "batch.h"
#include "draw_policy.h"

namespace gigl {

// One edge type as the sampler sees it.
struct EdgeTypePlan {
  const AdjacencyView* adjacency;
  EdgeEnds ends;
  uint32_t address;             // 24 bits: the edge type's place in the draws
  std::vector<DrawRule> rules;  // per hop
};

// Samples batches one after the other in scratch memory that it keeps. What a batch holds depends
// only on the graph, the plans, the seeds and the key: not on earlier batches, on how the graph is
// cut into parts, or on the platform. Not thread-safe.
class NeighborSampler {
 public:
  NeighborSampler(const std::vector<NodeTypePlan>& node_types, std::vector<EdgeTypePlan> edge_types,
                  Collect collect, bool disjoint = false, bool induced = false);

  // Throws std::out_of_range for a seed outside its type and std::runtime_error for adjacency
  // lists that point outside theirs (a damaged graph). Throws BatchTooLarge for a batch of more than
  // `max_edges` edges, before memory is taken for those beyond it.
  // Timed rules need the times of every tree; rules with a batch_dependency the number of the batch, and the key of its epoch.
  void Sample(std::span<const SeedGroup> seeds, uint64_t key, int64_t max_edges = INT64_MAX, TreeSpans trees = {},
              uint64_t number = 0);

  // The batch sampled last.
  const Batch& batch() const { return batch_; }
  Batch& batch() { return batch_; }

  // Memory that is kept for the next batch.
  size_t nbytes() const { return batch_.nbytes() + scratch_.nbytes(); }

 private:
  void Expand(int edge_type, int hop, uint64_t key, TreeSpans trees, uint64_t number);

  // Adds all edges of a type among the nodes of the batch, unless its fanouts are all 0.
  void Induce(int edge_type);

  std::vector<EdgeTypePlan> plans_;
  int num_hops_ = 0;
  bool monotone_ = false;
  DrawScratch scratch_;
  Batch batch_;
};

}  // namespace gigl
