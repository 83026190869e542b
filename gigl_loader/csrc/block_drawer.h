// Draws from adjacency lists, a block of targets at a time: what the fused sampler and the hops of a
// partition have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "adjacency.h"
#include "draw_policy.h"
#include "random.h"
#include "stop.h"
#include "tree.h"

namespace gigl {

// Calls `run` with a value of the type that entries of 4 or 8 bytes have.
template <typename Run>
void WithWidth(bool wide, Run run) {
  wide ? run(int64_t{}) : run(int32_t{});
}

// Works in four steps a block: Fetch, Locate, Draw, Read. Each fetches into the caches what the next
// one will read.
template <typename Index, typename EdgeId, DrawPolicy Policy>
class BlockDrawer {
 public:
  // A block must be long enough to hide a memory access (some 100 ns) and short enough to stay in the
  // first-level cache.
  static constexpr int64_t kBlockEdges = 96;
  static constexpr int64_t kBlockTargets = 64;

  // `target_ids` maps positions to node ids, nullptr for the identity.
  BlockDrawer(const AdjacencyView& adjacency, const int64_t* target_ids, const HopDraw& draw, bool with_edge_ids,
              Policy policy)
      : adjacency_(adjacency), target_ids_(target_ids), sole_(adjacency.Sole()), key_(draw.key), place_(draw.place()),
        disjoint_(draw.disjoint), monotone_(draw.rule.monotone), with_edge_ids_(with_edge_ids),
        per_target_(draw.rule.fanout > 0 ? draw.rule.fanout : kBlockEdges), policy_(policy) {}

  // Asks for the list bounds and ids of the targets of the next block (at most kBlockTargets).
  void Fetch(std::span<const int64_t> targets) const {
    for (const int64_t name : targets) {
      const int64_t target = PositionOf(name);
      const AdjacencyPart* part = adjacency_.Owner(target);
      if (part != nullptr) __builtin_prefetch(part->indptr + (target - part->first_target), 0, 1);
      if (target_ids_ != nullptr) __builtin_prefetch(target_ids_ + target, 0, 1);
    }
  }

  // Takes targets until the block is full, calls located(edges taken) for each, and returns their
  // number. `bounds` are those of the targets, of a monotone rule. Throws std::runtime_error for damaged lists.
  template <typename Located>
  int64_t Locate(std::span<const int64_t> targets, std::span<const int64_t> bounds, Located located) {
    num_targets_ = num_edges_ = 0;
    const int64_t most = std::min<int64_t>(kBlockTargets, static_cast<int64_t>(targets.size()));
    [[maybe_unused]] int64_t found = 0;  // targets whose lists are known
    while (num_targets_ < most && num_edges_ < kBlockEdges) {
      if constexpr (Policy::kAhead == 1) {
        block_[num_targets_] = Find(targets[num_targets_]);
      } else {  // No further than the block is likely to reach: what it leaves is found again for the next.
        for (; found < most && found < num_targets_ + Policy::kAhead &&
               num_edges_ + (found - num_targets_) * per_target_ < kBlockEdges;
             ++found) {
          block_[found] = Find(targets[found]);
        }
      }
      Target& target = block_[num_targets_];
      if constexpr (Policy::kTimed) policy_.Cut(target.list, target.tree, monotone_ ? bounds[num_targets_] : 0);
      target.taken = policy_.Count(AddressOf(target), target.list);
      ++num_targets_;
      num_edges_ += target.taken;
      located(target.taken);
    }
    return num_targets_;
  }

  int64_t num_edges() const { return num_edges_; }

  // Of a monotone rule: the time of each edge of the block, once they are drawn.
  std::span<const int64_t> times() const { return {times_.data(), monotone_ ? static_cast<size_t>(num_edges_) : 0}; }

  // Draws the edges of the block and fetches their neighbours and ids.
  void Draw() {
    if (static_cast<int64_t>(picks_.size()) < num_edges_) {
      picks_.resize(num_edges_);
      owners_.resize(num_edges_);
      if (monotone_) times_.resize(num_edges_);
    }
    int64_t* pick = picks_.data();
    const AdjacencyPart** owner = owners_.data();
    for (int64_t t = 0; t < num_targets_; ++t) {
      const Target& target = block_[t];
      const AdjacencyPart& part = *target.list.part;
      policy_.Pick(AddressOf(target), target.list, target.taken, [&](int64_t drawn) {
        const int64_t slot = target.list.first + drawn;
        if constexpr (Policy::kTimed) {
          __builtin_prefetch(TimeSlot(part, slot), 0, 1);
          if (monotone_) __builtin_prefetch(part.times + slot, 0, 1);
        } else {
          FetchEdge(part, slot);
        }
        if (sole_ == nullptr) *owner++ = target.list.part;
        *pick++ = slot;
      });
    }
    if constexpr (Policy::kTimed) LeaveOrderOfTime();
  }

  // Calls in_tree(tree, edges taken) for each target of the block.
  template <typename InTree>
  void EachTree(InTree in_tree) const {
    for (int64_t t = 0; t < num_targets_; ++t) in_tree(block_[t].tree, block_[t].taken);
  }

  // Calls read(e, neighbour, part, place in the part's lists) for each edge of the block.
  template <typename Reader>
  void Read(Reader read) const {
    ForEachUnlessStopped(num_edges_, [&](int64_t e) {
      const AdjacencyPart& part = sole_ != nullptr ? *sole_ : *owners_[e];
      const int64_t slot = picks_[e];
      read(e, static_cast<int64_t>(static_cast<const Index*>(part.indices)[slot]), part, slot);
    });
  }

  static EdgeId EdgeIdAt(const AdjacencyPart& part, int64_t slot) {
    return static_cast<const EdgeId*>(part.edge_ids)[slot];
  }

 private:
  // A target of the block at hand: its list, and how many of its edges are taken.
  struct Target {
    ListView list;
    int64_t node_id;
    int64_t taken;
    int64_t tree;
    uint64_t key;
  };

  DrawAddress AddressOf(const Target& target) const {
    return {target.key, static_cast<uint64_t>(target.node_id), place_};
  }

  void FetchEdge(const AdjacencyPart& part, int64_t slot) const {
    __builtin_prefetch(static_cast<const Index*>(part.indices) + slot, 0, 1);
    if (with_edge_ids_) __builtin_prefetch(static_cast<const EdgeId*>(part.edge_ids) + slot, 0, 1);
  }

  const void* TimeSlot(const AdjacencyPart& part, int64_t place) const {
    return static_cast<const char*>(part.time_slots) + (place << (adjacency_.wide_time_slots ? 3 : 2));
  }

  // Replaces places in the order of time by those in the lists.
  void LeaveOrderOfTime() {
    bool inside = true;
    ForEachUnlessStopped(num_edges_, [&](int64_t e) {
      const AdjacencyPart& part = sole_ != nullptr ? *sole_ : *owners_[e];
      const void* const place = TimeSlot(part, picks_[e]);
      if (monotone_) times_[e] = part.times[picks_[e]];
      const int64_t slot = adjacency_.wide_time_slots ? *static_cast<const int64_t*>(place) : *static_cast<const int32_t*>(place);
      const bool valid = slot >= 0 && slot < part.num_edges;
      inside &= valid;
      picks_[e] = valid ? slot : 0;
      FetchEdge(part, picks_[e]);
    });
    if (!inside) ThrowDamaged("the order of time leaves the edges");
  }

  // Targets of a tree come one after the other, for the most part.
  uint64_t KeyOf(int64_t tree) {
    if (tree != key_tree_) {
      tree_key_ = TreeKey(key_, tree);
      key_tree_ = tree;
    }
    return tree_key_;
  }

  Target Find(int64_t name) {
    const int64_t position = PositionOf(name);
    const AdjacencyPart* part = adjacency_.Owner(position);
    if (part == nullptr) ThrowDamaged("a target lies outside all partitions");
    const int64_t number = position - part->first_target;
    const int64_t first = part->indptr[number];
    const int64_t last = part->indptr[number + 1];
    // Before anything is computed from them: the distance of damaged bounds may overflow.
    if (first < 0 || last < first || last > part->num_edges) {
      ThrowDamaged("indptr does not rise to the number of edges");
    }
    const ListView list{part, number, first, last - first};
    policy_.Fetch(list);
    const int64_t tree = TreeOf(name);
    return {list, target_ids_ == nullptr ? position : target_ids_[position], 0, tree,
            disjoint_ ? KeyOf(tree) : key_};
  }

  const AdjacencyView& adjacency_;
  const int64_t* const target_ids_;
  const AdjacencyPart* const sole_;  // the only part: then owners_ is not kept
  const uint64_t key_;
  const uint64_t place_;
  const bool disjoint_;
  const bool monotone_;
  const bool with_edge_ids_;
  const int64_t per_target_;  // edges, at most
  uint64_t tree_key_ = 0;
  int64_t key_tree_ = -1;
  Policy policy_;
  int64_t num_targets_ = 0;
  int64_t num_edges_ = 0;
  Target block_[kBlockTargets];
  std::vector<int64_t> picks_;
  std::vector<const AdjacencyPart*> owners_;
  std::vector<int64_t> times_;
};

}  // namespace gigl
