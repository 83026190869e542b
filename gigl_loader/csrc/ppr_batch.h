// Batches of personalised PageRank: the neighbours of every seed, and the nodes that the batch has.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "adjacency.h"
#include "batch.h"
#include "buffer.h"
#include "node_table.h"
#include "pick.h"
#include "ppr.h"

namespace gigl {

// The neighbours of one type: those of a seed together, in their order.
struct PprNeighbors {
  Buffer<int32_t> seeds;  // local index
  Buffer<int64_t> positions;
  Buffer<float> scores;
  Buffer<int32_t> hops;
  Buffer<int32_t> locals;  // of the positions, in the batch
};

// A batch: its distinct seeds, then the nodes that they keep, by seed. Memory is reused from batch to batch.
class PprBatch {
 public:
  PprBatch(const std::vector<NodeTypePlan>& node_types, int seed_type, const PprRule& rule);

  const Batch& batch() const { return batch_; }
  Batch& batch() { return batch_; }
  const PprNeighbors& neighbors(int type) const { return neighbors_.at(type); }
  size_t nbytes() const;

 protected:
  // Starts over. Throws std::out_of_range for a seed outside its type, BatchTooLarge for more seeds than
  // `max_edges` leaves memory for.
  void Begin(std::span<const int64_t> seeds, int64_t max_edges);
  std::span<const int64_t> seeds() const { return batch_.nodes(seed_type_).names(); }
  int64_t KeyOf(int64_t seed) const { return nodes_.first(seed_type_) + seed; }

  // Adds what a push keeps. Pushes come in the order of the seeds; then EndSeeds numbers the nodes.
  void Keep(int32_t seed, ForwardPush& push);
  void EndSeeds();

  PprNodes nodes_;
  const int seed_type_;
  const PprRule rule_;
  Batch batch_;

 private:
  std::vector<PprNeighbors> neighbors_;  // by type
};

// One edge type as a push sees it. In schema order, which is that of a node's neighbours.
struct PprEdgeType {
  const AdjacencyView* adjacency;  // nullptr where its lists lie elsewhere
  EdgeEnds ends;
  uint32_t address;  // 24 bits: the edge type's place in the draws
};

// Pushes over a graph that lies wholly on this host, one seed after the other. Not thread-safe.
class PprSampler : public PprBatch {
 public:
  PprSampler(const std::vector<NodeTypePlan>& node_types, const std::vector<PprEdgeType>& edge_types, int seed_type,
             const PprRule& rule);

  // Throws std::out_of_range for a seed outside its type, std::runtime_error for damaged lists, and BatchTooLarge
  // for a batch that passes more than `max_edges` edges.
  void Sample(std::span<const int64_t> seeds, int64_t max_edges);

  size_t nbytes() const { return PprBatch::nbytes() + push_.nbytes() + picker_.nbytes(); }

 private:
  class Lists;

  std::vector<std::vector<PprEdgeType>> by_target_;
  Picker picker_;
  ForwardPush push_;
};

// Nodes whose lists are wanted: of all edge types whose targets are of the node type.
struct PprRequest {
  int type;
  int32_t fanout;  // neighbours of a list, at most
  std::vector<int64_t> positions;
};

// What is known of the neighbours of some nodes, over one edge type: counts[i] of them belong to node i.
struct PprAnswer {
  std::span<const int32_t> counts;
  const void* positions;
  int64_t num_neighbors;
  bool wide;
};

// Pushes over a graph whose lists lie elsewhere: all seeds at once, each as far as the lists that are there lead
// it. Lists are kept for the batch. Not thread-safe.
//
// Begin; then Advance until it returns nothing, each time with an Append for everything that it returned.
class PprBuilder : public PprBatch {
 public:
  PprBuilder(const std::vector<NodeTypePlan>& node_types, const std::vector<EdgeEnds>& edge_types, int seed_type,
             const PprRule& rule);

  void Begin(std::span<const int64_t> seeds, int64_t max_edges);

  // Pushes, and returns what has to be known to go on. Throws BatchTooLarge as PprSampler does; edges of lists
  // that are kept count, too.
  std::vector<PprRequest> Advance();

  // Adds what was asked of `positions` with `fanout`: an answer for every edge type of the node type, in order.
  // Throws std::runtime_error for answers that cannot be.
  void Append(int type, int32_t fanout, std::span<const int64_t> positions, std::span<const PprAnswer> answers);

  int num_edge_types(int type) const { return static_cast<int>(by_target_.at(type).size()); }
  size_t nbytes() const;

 private:
  class Lists;
  struct Known {
    int64_t begin;  // in neighbors_
    int64_t degree;
    bool whole;
    int32_t wanted;  // the fanout that is asked for, else 0
  };

  std::vector<std::vector<int>> by_target_;  // neighbour types of the edge types of a node type
  std::deque<ForwardPush> pushes_;           // by seed
  std::vector<int32_t> waiting_;             // seeds whose push goes on
  NodeTable<uint64_t> known_nodes_;          // keys
  Buffer<Known> known_;
  Buffer<int64_t> neighbors_;  // keys
  Buffer<int32_t> wanted_;     // places in known_
  size_t outstanding_ = 0;     // nodes that were asked for, and not appended
  bool ended_ = true;
};

}  // namespace gigl
