// Induced edges: every entry of adjacency lists that joins two nodes of a set.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "adjacency.h"
#include "draw_policy.h"
#include "hop.h"
#include "stop.h"

namespace gigl {

// A bit for each of a set's nodes, at a place that its hash gives. Few other nodes have a bit, and it is small
// enough for the second-level cache, where the table of the set is not: most entries of a list end here.
class NodeFilter {
 public:
  explicit NodeFilter(std::span<const int64_t> positions) {
    const size_t bits = std::bit_ceil(std::max<size_t>(positions.size() * kBitsPerNode, 64));
    words_.resize(bits / 64);
    shift_ = 64 - std::countr_zero(bits);
    WorkCounter work;
    for (const int64_t position : positions) {
      work.Add(1);
      const uint64_t bit = Bit(position);
      words_[bit / 64] |= uint64_t{1} << (bit % 64);
    }
  }

  bool MayHave(int64_t position) const {
    const uint64_t bit = Bit(position);
    return (words_[bit / 64] >> (bit % 64)) & 1;
  }

 private:
  static constexpr size_t kBitsPerNode = 16;

  uint64_t Bit(int64_t position) const { return (static_cast<uint64_t>(position) * 0x9E3779B97F4A7C15u) >> shift_; }

  std::vector<uint64_t> words_;
  int shift_;
};

// Finds the entries of lists whose neighbour is in a set, in the order of the lists. A list costs its length, or
// some searches for each node of the set where that is less.
//
// `Sink` is told what is found: Take(part, slots, locals), with the places
// in the part's lists and the local indices of their neighbours, some at a time; EndTarget() after each list.
template <typename Index, typename Sink>
class InducedScan {
 public:
  // `weighted`: entries of weight 0 are left out; the adjacency then has weights.
  InducedScan(const AdjacencyView& adjacency, const NeighborNodes& neighbors, const NodeTable& set, bool weighted, Sink& sink)
      : adjacency_(adjacency), neighbors_(neighbors), set_(set), filter_(set.nodes()), weighted_(weighted), sink_(sink) {}

  // Throws std::runtime_error for damaged lists, and what the sink throws.
  void Run(std::span<const int64_t> targets) {
    for (size_t i = 0; i < targets.size(); ++i) {
      if (i + kAhead < targets.size()) Fetch(targets[i + kAhead]);
      List(targets[i]);
      sink_.EndTarget();
      work_.Add(8);
    }
  }

 private:
  static constexpr size_t kAhead = 16;
  static constexpr int64_t kChunk = 1024;
  // A search for a node costs about as much as so many entries that are scanned, as it misses the caches.
  // Measured: they are equal for 20,000 nodes and a list of 4 million.
  static constexpr int64_t kSearchCost = 200;

  void Fetch(int64_t target) const {
    const AdjacencyPart* const part = adjacency_.Owner(target);
    if (part != nullptr) __builtin_prefetch(part->indptr + (target - part->first_target), 0, 1);
  }

  void List(int64_t target) {
    const AdjacencyPart* const part = adjacency_.Owner(target);
    if (part == nullptr) ThrowDamaged("a target lies outside all partitions");
    const int64_t* const ends = part->indptr + (target - part->first_target);
    const int64_t first = ends[0];
    const int64_t last = ends[1];
    if (first < 0 || last < first || last > part->num_edges) ThrowDamaged("indptr does not rise to the number of edges");
    part_ = part;
    first_ = first;
    if ((last - first) / kSearchCost > static_cast<int64_t>(set_.nodes().size())) {
      Search(first, last);
    } else {
      Scan(first, last);
    }
  }

  void Scan(int64_t begin, int64_t last) {
    const Index* const indices = static_cast<const Index*>(part_->indices);
    const uint64_t count = static_cast<uint64_t>(neighbors_.count);
    while (begin < last) {
      const int64_t end = std::min(begin + kChunk, last);
      work_.Add(end - begin);
      bool inside = true;
      found_ = 0;
      for (int64_t slot = begin; slot < end; ++slot) {  // no branch: whether a node is in the set is hard to predict
        const int64_t neighbor = indices[slot];
        inside &= static_cast<uint64_t>(neighbor) < count;
        slots_[found_] = slot;
        found_ += filter_.MayHave(neighbor);
      }
      if (!inside) ThrowDamaged("a neighbour lies outside its node type");
      Take();
      begin = end;
    }
  }

  // Looks for every node of the set, ascending as the list is: from where the one before was found, in steps that
  // double, then by halves.
  void Search(int64_t low, int64_t last) {
    const Index* const indices = static_cast<const Index*>(part_->indices);
    found_ = 0;
    for (const int64_t node : Ascending()) {
      work_.Add(kSearchCost / 8);
      const int64_t wanted = IdOf(node);
      int64_t step = 1;
      while (last - low > step && IdAt(low + step - 1) < wanted) {
        low += step;
        step *= 2;
      }
      int64_t high = std::min(low + step, last);
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (IdAt(middle) < wanted) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      for (; low < last && indices[low] == node; ++low) {
        slots_[found_++] = low;
        if (found_ == kChunk) {
          Take();
          found_ = 0;
        }
      }
      if (low == last) break;
    }
    Take();
  }

  // Hands on those of the slots whose neighbour is in the set.
  void Take() {
    const Index* const indices = static_cast<const Index*>(part_->indices);
    int64_t kept = 0;
    for (int64_t i = 0; i < found_; ++i) {
      const int64_t slot = slots_[i];
      slots_[kept] = slot;
      locals_[kept] = set_.LocalOf(indices[slot]);
      kept += locals_[kept] >= 0 && HasWeight(slot);
    }
    if (kept > 0) sink_.Take(*part_, {slots_, static_cast<size_t>(kept)}, {locals_, static_cast<size_t>(kept)});
  }

  bool HasWeight(int64_t slot) const {
    if (!weighted_) return true;
    return part_->weight_sums[slot] != (slot == first_ ? 0 : part_->weight_sums[slot - 1]);
  }

  const std::vector<int64_t>& Ascending() {
    if (ascending_.empty()) {
      ascending_.assign(set_.nodes().begin(), set_.nodes().end());
      SortUnlessStopped(ascending_.begin(), ascending_.end(), [&](int64_t a, int64_t b) { return IdOf(a) < IdOf(b); });
    }
    return ascending_;
  }

  int64_t IdOf(int64_t position) const { return neighbors_.ids == nullptr ? position : neighbors_.ids[position]; }

  int64_t IdAt(int64_t slot) const {
    const int64_t neighbor = static_cast<const Index*>(part_->indices)[slot];
    if (neighbor < 0 || neighbor >= neighbors_.count) ThrowDamaged("a neighbour lies outside its node type");
    return IdOf(neighbor);
  }

  const AdjacencyView& adjacency_;
  const NeighborNodes neighbors_;
  const NodeTable& set_;
  const NodeFilter filter_;
  const bool weighted_;
  Sink& sink_;
  WorkCounter work_;
  std::vector<int64_t> ascending_;  // the set by node id, once a list is searched
  const AdjacencyPart* part_ = nullptr;
  int64_t first_ = 0;  // of the list
  int64_t found_ = 0;
  int64_t slots_[kChunk];
  int32_t locals_[kChunk];
};

// The edges that lead to targets from nodes of a set, both as positions, `nodes` each once: what a partition
// answers. The result is that of DrawHop; entries are in the order of the lists.
//
// Throws std::invalid_argument for a target outside the adjacency or a node outside its type, BatchTooLarge for
// more than `max_edges` edges (before memory is taken for them), std::length_error for more than 2^31 of one
// target and std::runtime_error for damaged lists.
DrawnHop InducedEdges(const AdjacencyView& adjacency, const NeighborNodes& neighbors, std::span<const int64_t> targets,
                      std::span<const int64_t> nodes, bool weighted, Collect collect, int64_t max_edges);

}  // namespace gigl
