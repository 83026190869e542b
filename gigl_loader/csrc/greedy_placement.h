// Linear deterministic greedy partitioning of a stream of nodes (Stanton and Kliot, KDD 2012).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gigl {

// Nodes of one kind, which are balanced among themselves.
struct PlacedKind {
  int64_t count;     // in the whole stream
  int64_t capacity;  // the most that a partition takes
  int64_t floor;     // the fewest that a partition has at the end
};

// Places nodes one after another, for good. A node goes to the partition with the largest
//
//   neighbours placed there * (capacity - nodes there),
//
// of equal ones to that with the fewest nodes, of those to the first. Once as many nodes of the kind are left as
// partitions lack of their floors, they go only where nodes are lacking. The owners depend on nothing else: not on
// the order of a node's neighbours, on how the stream is cut into calls, or on threads.
class GreedyPlacement {
 public:
  GreedyPlacement(std::span<const PlacedKind> kinds, int32_t num_partitions);

  // Places the next kinds.size() nodes: node i is of kinds[i]. Edge e joins node targets[e], counted from the first
  // node of this call, with the node neighbors[e] of the stream, which comes before it. `more` counts further
  // neighbours of the first node by partition, or is empty. Takes 4 or 8 bytes of memory an edge and 8 a node.
  //
  // Returns the index of an edge of other nodes, or -1 when all is well. Throws std::invalid_argument for an unknown
  // kind, and for more nodes of a kind than it has. Nothing is placed in these cases.
  template <typename Index>
  int64_t Place(std::span<const uint16_t> kinds, std::span<const Index> targets, std::span<const Index> neighbors,
                std::span<const int64_t> more);

  // The partition of each node that was placed, in the order of the stream.
  std::span<const uint16_t> owners() const { return owners_; }
  int32_t num_partitions() const { return num_partitions_; }

 private:
  // The partitions of one kind, and a tree of those with the fewest nodes: leaf p is at num_leaves + p.
  struct Load {
    PlacedKind kind;
    int64_t left;          // nodes yet to come
    int64_t lacking;       // what partitions lack of their floors, together
    std::vector<int64_t> sizes;
    std::vector<int32_t> fewest;
  };

  void RequireKnown(std::span<const uint16_t> kinds) const;
  int32_t Best(const Load& load) const;
  void Add(Load& load, int32_t partition);
  int32_t Fewer(const Load& load, int32_t a, int32_t b) const;

  int32_t num_partitions_;
  int32_t num_leaves_;
  std::vector<Load> loads_;
  std::vector<uint16_t> owners_;
  // Of the node that is being placed: its neighbours by partition, and the partitions that have some.
  std::vector<int64_t> near_;
  std::vector<int32_t> touched_;
};

}  // namespace gigl
