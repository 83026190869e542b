// Batches of personalised PageRank: the neighbours of every seed, and the nodes that the batch has.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "adjacency.h"
#include "batch.h"
#include "buffer.h"
#include "node_table.h"
#include "pick.h"
#include "ppr.h"

namespace gigl {

// The neighbours of one type of the seeds of one type: those of a seed together, in their order.
struct PprNeighbors {
  Buffer<int32_t> seeds;  // local index
  Buffer<int64_t> positions;
  std::vector<Buffer<float>> scores;  // by channel: 0 where it did not keep the node
  std::vector<Buffer<int32_t>> hops;  // by channel: -1 where it did not keep the node
  Buffer<int32_t> locals;             // of the positions, in the batch
};

// Edges of one type over which nothing is passed: targets[i] with neighbors[i], as positions.
struct PprExclusion {
  int edge_type;
  std::span<const int64_t> targets;
  std::span<const int64_t> neighbors;
};

// A batch: its distinct seeds by node type, then the nodes that they keep, by seed. Memory is reused from batch to
// batch.
class PprBatch {
 public:
  PprBatch(const std::vector<NodeTypePlan>& node_types, const PprRule& rule);

  const Batch& batch() const { return batch_; }
  Batch& batch() { return batch_; }
  const PprNeighbors& neighbors(int seed_type, int type) const { return neighbors_.at(seed_type).at(type); }
  const PprRule& rule() const { return rule_; }
  size_t nbytes() const;

 protected:
  // Starts over. Throws std::out_of_range for a seed outside its type, BatchTooLarge for more seeds than
  // `max_edges` leaves memory for, std::invalid_argument for seeds of a type in which no channel starts.
  void Begin(std::span<const SeedGroup> groups, std::span<const PprExclusion> excluded, int64_t max_edges);

  // Calls push(seed type, local seed) for all seeds, in their order.
  template <typename Push>
  void ForEachSeed(Push push) const {
    for (int type = 0; type < batch_.num_node_types(); ++type) {
      const int64_t count = batch_.nodes(type).per_hop[0];
      for (int64_t seed = 0; seed < count; ++seed) push(type, static_cast<int32_t>(seed));
    }
  }

  // The key under which the push of a channel starts.
  int64_t KeyOf(int channel, int type, int32_t seed) const {
    return nodes_.first(rule_.starts[channel][type]) + batch_.nodes(type).names()[seed];
  }

  // Pairs of a target and the neighbours to which it passes nothing, ascending.
  std::span<const NodePair> ExcludedOf(int edge_type, int64_t target) const;

  // Selects what the push of a channel keeps; then, once it is done for all channels of a seed, Keep adds it. Seeds come
  // in their order; then EndSeeds numbers the nodes.
  void Select(int channel, int type, int32_t seed, ForwardPush& push);
  void Keep(int type, int32_t seed);
  void EndSeeds();

  PprNodes nodes_;
  const PprRule rule_;
  Batch batch_;

 private:
  // A node that some channels keep.
  struct Candidate {
    PprNeighbor best;  // of the channels, the first of the highest score
    int channel;       // that one
    int32_t begin;     // in found_
    int32_t end;
  };
  void Merge(int type, int32_t seed, PprNeighbors& neighbors);

  std::vector<std::vector<PprNeighbors>> neighbors_;         // by types
  std::vector<std::vector<int>> twins_;                      // by channel and node type: another kept state, or -1
  std::vector<std::vector<Buffer<PprNeighbor>>> selected_;   // by channel and node type
  std::vector<std::pair<PprNeighbor, int>> found_;           // scratch of Merge: with their channels
  std::vector<Candidate> candidates_;
  std::vector<std::vector<NodePair>> excluded_;              // by edge type
};

// One edge type of a graph on this host.
struct PprLists {
  const AdjacencyView* adjacency;
  uint32_t address;  // 24 bits: the edge type's place in the draws
};

// Pushes over a graph that lies wholly on this host, one seed after the other. Not thread-safe.
class PprSampler : public PprBatch {
 public:
  // `lists`: by number of the edge type.
  PprSampler(const std::vector<NodeTypePlan>& node_types, const std::vector<PprLists>& lists, const PprRule& rule);

  // Throws std::out_of_range for a seed outside its type, std::runtime_error for damaged lists, and BatchTooLarge
  // for a batch that passes more than `max_edges` edges.
  void Sample(std::span<const SeedGroup> groups, std::span<const PprExclusion> excluded, int64_t max_edges);

  size_t nbytes() const { return PprBatch::nbytes() + push_.nbytes() + picker_.nbytes(); }

 private:
  class Lists;

  const std::vector<PprLists> lists_;
  std::vector<std::vector<PprEdges>> by_state_;
  Picker picker_;
  ForwardPush push_;
};

// Nodes whose lists are wanted: of all edge types that a state has.
struct PprRequest {
  int state;
  int32_t fanout;  // neighbours of a list, at most
  std::vector<int64_t> positions;
};

// What is known of the neighbours of some nodes, over one edge type: counts[i] of them belong to node i.
struct PprAnswer {
  std::span<const int32_t> counts;
  const void* positions;
  int64_t num_neighbors;
  bool wide;
  std::span<const double> weights;  // of the neighbours; empty where all are passed the same
};

// Pushes over a graph whose lists lie elsewhere: all seeds at once, each as far as the lists that are there lead
// it. Lists are kept for the batch. Not thread-safe.
//
// Begin; then Advance until it returns nothing, each time with an Append for everything that it returned.
class PprBuilder : public PprBatch {
 public:
  PprBuilder(const std::vector<NodeTypePlan>& node_types, const PprRule& rule);

  void Begin(std::span<const SeedGroup> groups, std::span<const PprExclusion> excluded, int64_t max_edges);

  // Pushes, and returns what has to be known to go on. Throws BatchTooLarge as PprSampler does; edges of lists
  // that are kept count, too.
  std::vector<PprRequest> Advance();

  // Adds what was asked of `positions` with `fanout`: an answer for every edge type of the state, in order.
  // Throws std::runtime_error for answers that cannot be.
  void Append(int state, int32_t fanout, std::span<const int64_t> positions, std::span<const PprAnswer> answers);

  size_t nbytes() const;

 private:
  class Lists;
  struct Known {
    int64_t begin;  // in neighbors_
    int64_t degree;
    double weight;  // of all neighbours
    bool whole;
    int32_t wanted;  // the fanout that is asked for, else 0
  };

  std::vector<std::vector<PprEdges>> by_state_;
  std::deque<ForwardPush> pushes_;     // by seed, then by channel
  std::vector<int32_t> waiting_;       // places of pushes that go on
  NodeTable known_nodes_{true};    // keys
  Buffer<Known> known_;
  Buffer<int64_t> neighbors_;          // keys; -1 where nothing is passed
  Buffer<double> weights_;             // of the neighbours, where answers have them
  Buffer<int32_t> wanted_;             // places in known_
  size_t outstanding_ = 0;             // nodes that were asked for, and not appended
  bool ended_ = true;
};

}  // namespace gigl
