#include "block_drawer.h"

#include <algorithm>

#include "random.h"

namespace gigl {
namespace {

template <DrawPolicy Policy>
class PolicyDrawer final : public BlockDrawer {
 public:
  PolicyDrawer(const AdjacencyView& adjacency, const int64_t* target_ids, const HopDraw& draw, bool with_edge_ids,
               Policy policy)
      : BlockDrawer(adjacency, target_ids, draw, with_edge_ids), policy_(policy) {}

  int64_t Locate(std::span<const int64_t> targets, std::span<const int64_t> bounds) override {
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
    }
    return num_targets_;
  }

  void Draw() override {
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
          __builtin_prefetch(EntryAddress(part.time_slots, adjacency_.wide_time_slots, slot), 0, 1);
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

 private:
  DrawAddress AddressOf(const Target& target) const {
    return {target.key, static_cast<uint64_t>(target.node_id), place_};
  }

  void FetchEdge(const AdjacencyPart& part, int64_t slot) const {
    __builtin_prefetch(EntryAddress(part.indices, wide_indices_, slot), 0, 1);
    if (with_edge_ids_) __builtin_prefetch(EntryAddress(part.edge_ids, adjacency_.wide_edge_ids, slot), 0, 1);
  }

  // Replaces places in the order of time by those in the lists.
  void LeaveOrderOfTime() {
    bool inside = true;
    ForEachUnlessStopped(num_edges_, [&](int64_t e) {
      const AdjacencyPart& part = sole_ != nullptr ? *sole_ : *owners_[e];
      if (monotone_) times_[e] = part.times[picks_[e]];
      const int64_t slot = EntryAt(part.time_slots, adjacency_.wide_time_slots, picks_[e]);
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

  Policy policy_;
};

}  // namespace

BlockDrawer::BlockDrawer(const AdjacencyView& adjacency, const int64_t* target_ids, const HopDraw& draw,
                         bool with_edge_ids)
    : adjacency_(adjacency), target_ids_(target_ids), sole_(adjacency.Sole()), wide_indices_(adjacency.wide_indices),
      key_(draw.key), place_(draw.place()), disjoint_(draw.disjoint), monotone_(draw.rule.monotone),
      with_edge_ids_(with_edge_ids), per_target_(draw.rule.fanout > 0 ? draw.rule.fanout : kBlockEdges) {}

void BlockDrawer::Fetch(std::span<const int64_t> targets) const {
  for (const int64_t name : targets) {
    const int64_t target = PositionOf(name);
    const AdjacencyPart* part = adjacency_.Owner(target);
    if (part != nullptr) __builtin_prefetch(part->indptr + (target - part->first_target), 0, 1);
    if (target_ids_ != nullptr) __builtin_prefetch(target_ids_ + target, 0, 1);
  }
}

std::unique_ptr<BlockDrawer> MakeBlockDrawer(const AdjacencyView& adjacency, const int64_t* target_ids,
                                             const NeighborNodes& neighbors, const HopDraw& draw, bool with_edge_ids,
                                             DrawScratch& scratch) {
  return WithPolicy(draw, adjacency, neighbors, scratch, [&](auto policy) -> std::unique_ptr<BlockDrawer> {
    return std::make_unique<PolicyDrawer<decltype(policy)>>(adjacency, target_ids, draw, with_edge_ids, policy);
  });
}

}  // namespace gigl
