// What a sampled batch is made of, whoever draws its edges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "adjacency.h"
#include "buffer.h"
#include "node_table.h"
#include "stop.h"

namespace gigl {

// One node type as a batch sees it.
struct NodeTypePlan {
  int64_t count;
  const int64_t* ids;  // position -> node id; nullptr where they are equal
};

// The node types that an edge type joins.
struct EdgeEnds {
  int target_type;    // its nodes are expanded
  int neighbor_type;  // what expanding them finds
};

// The nodes of one type, as positions in first-seen order, in a disjoint batch with their trees. Those that the last hop added are the
// frontier, which the next one expands.
struct BatchNodes {
  NodeTypePlan plan;
  NodeTable table;
  int64_t frontier_begin = 0;
  int64_t frontier_end = 0;
  std::vector<int64_t> per_hop;  // seeds, then the new ones of each hop
  // Of a monotone batch: of each node, the time of its tree, or of the edge by which it was first seen.
  Buffer<int64_t> bounds;

  // Gives bounds to the nodes that edges have added: time_of(e) is that of the edge to the local node rows[e].
  template <typename TimeOf>
  void Bound(std::span<const int32_t> rows, TimeOf time_of) {
    for (size_t e = 0; e < rows.size(); ++e) {
      if (static_cast<size_t>(rows[e]) == bounds.size()) bounds.Push(time_of(e));
    }
  }

  std::span<const int64_t> names() const { return table.nodes(); }
  std::span<const int64_t> frontier() const {
    return names().subspan(frontier_begin, frontier_end - frontier_begin);
  }
};

// Some seeds of a batch: positions of nodes of one type, in a disjoint batch with their trees.
struct SeedGroup {
  int type;
  std::span<const int64_t> seeds;
};

// A batch needs more than it may take. Nothing was drawn of what is too much.
class BatchTooLarge : public std::length_error {
 public:
  using std::length_error::length_error;
};

// How much a batch under way may still take. Edges are counted before they are drawn, so that memory
// is bounded by `max_edges`, whatever fanouts and degrees are. Targets count, too: each has an entry
// in `colptr` for every edge type, also where its fanout is 0.
class BatchRoom {
 public:
  explicit BatchRoom(int64_t max_edges = INT64_MAX) : max_edges_(max_edges) {}

  // Throws BatchTooLarge where the batch has no room for so many more, and Stopped.
  void Take(int64_t edges, int64_t targets) {
    work_.Add(edges + targets);
    edges_ += edges;
    targets_ += targets;
    if (edges_ > max_edges_ || targets_ - kFreeTargets > max_edges_) [[unlikely]] Refuse();
  }

  int64_t max_edges() const { return max_edges_; }
  int64_t left() const { return std::max<int64_t>(max_edges_ - edges_, 0); }

 private:
  static constexpr int64_t kFreeTargets = 1 << 20;

  [[noreturn]] void Refuse() const;

  int64_t max_edges_;
  int64_t edges_ = 0;
  int64_t targets_ = 0;
  WorkCounter work_;
};

// A pair of positions: a target and its neighbour.
using NodePair = std::pair<int64_t, int64_t>;

// The edges of one type, grouped by target: edge e of target t has colptr[t] <= e < colptr[t + 1],
// and rows[e] is the local index of its neighbour.
struct BatchEdges {
  EdgeEnds ends;
  Buffer<int32_t> rows;
  Buffer<int64_t> colptr;
  Buffer<int64_t> edge_ids;  // empty unless asked for
  Buffer<int64_t> slots;     // empty unless asked for
  std::vector<int64_t> per_hop;
  std::vector<NodePair> excluded;  // ascending: no edge of the batch joins them

  void Clear();

  // Ends a hop that took no edge of `num_targets` targets.
  void AddNone(int64_t num_targets);

  // Removes these edges, given ascending. The others keep their order.
  void Remove(std::span<const int64_t> edges);
};

// A batch under way: Begin; then, for every hop, edges of every edge type in order, then EndHop. In an induced
// batch, drawn edges serve to find its nodes alone: BeginInduced, then all edges of every edge type among the nodes.
// Its memory is reused from batch to batch. Not thread-safe.
class Batch {
 public:
  // Throws std::invalid_argument for an induced batch of disjoint trees.
  Batch(const std::vector<NodeTypePlan>& node_types, const std::vector<EdgeEnds>& edge_types, Collect collect,
        bool disjoint = false, bool induced = false);

  // Starts over with these seeds, one group after the other; those that repeat collapse. `tree_times` are those of
  // all trees, in a monotone batch. Throws std::out_of_range for a seed outside its type, or with a tree where there
  // are none.
  void Begin(std::span<const SeedGroup> groups, int64_t max_edges = INT64_MAX,
             std::span<const int64_t> tree_times = {});

  // The local index of every seed, through all groups.
  std::span<const int32_t> seed_locals() const { return seed_locals_; }

  // Removes every edge that joins one of these pairs of nodes (local indices), targets[i] with neighbors[i];
  // in a disjoint batch, in every tree.
  void Exclude(int edge_type, std::span<const int64_t> targets, std::span<const int64_t> neighbors);

  // The edges of a type and those of another, the other way round, as one list: places in the edges of the first,
  // followed by those of the second, by (target, neighbour). Of several edges that join one target and neighbour,
  // the first of these places stays. Pairs that the first type excludes stay out. Throws BatchTooLarge where there is
  // no room for the added edges, std::invalid_argument for types of other ends. Valid until the next call.
  std::span<const int32_t> BothDirections(int edge_type, int reverse_type);

  // What the hop added is the next frontier.
  void EndHop();

  // Forgets the drawn edges. All nodes are the frontier, and no others are added.
  void BeginInduced();

  BatchNodes& nodes(int type) { return nodes_.at(type); }
  BatchEdges& edges(int type) { return edges_.at(type); }
  const BatchNodes& nodes(int type) const { return nodes_.at(type); }
  const BatchEdges& edges(int type) const { return edges_.at(type); }
  // What is kept of the edges that are now added.
  const Collect& collect() const { return collect_; }
  bool disjoint() const { return disjoint_; }
  bool induced() const { return induced_; }
  bool inducing() const { return inducing_; }  // after BeginInduced
  bool monotone() const { return monotone_; }
  BatchRoom& room() { return room_; }
  const BatchRoom& room() const { return room_; }

  // Memory that is kept for the next batch.
  size_t nbytes() const;
  int num_node_types() const { return static_cast<int>(nodes_.size()); }
  int num_edge_types() const { return static_cast<int>(edges_.size()); }

 private:
  // An edge in one direction.
  struct Direction {
    int32_t neighbor;
    int32_t place;
  };

  std::vector<BatchNodes> nodes_;
  std::vector<BatchEdges> edges_;
  std::vector<int32_t> seed_locals_;
  const Collect wanted_;  // of the edges that the batch has at last
  Collect collect_;
  const bool disjoint_;
  const bool induced_;
  bool inducing_ = false;
  bool monotone_ = false;
  BatchRoom room_;
  Buffer<Direction> directions_;  // scratch of BothDirections
  Buffer<int32_t> merged_;
};

}  // namespace gigl
