// Draws from adjacency lists, a block of targets at a time: what the fused sampler and the hops of a
// partition have in common.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "adjacency.h"
#include "draw_policy.h"
#include "stop.h"
#include "tree.h"

namespace gigl {

// Calls `run` with a value of the type that entries of 4 or 8 bytes have.
template <typename Run>
void WithWidth(bool wide, Run run) {
  wide ? run(int64_t{}) : run(int32_t{});
}

// Works in four steps a block: Fetch, Locate, Draw, Read. Each fetches into the caches what the next one will read. There
// is a class for each policy, which only block_drawer.cc knows: two calls a block choose among them, not two an edge.
class BlockDrawer {
 public:
  // A block must be long enough to hide a memory access (some 100 ns) and short enough to stay in the
  // first-level cache.
  static constexpr int64_t kBlockEdges = 96;
  static constexpr int64_t kBlockTargets = 64;

  virtual ~BlockDrawer() = default;

  // Asks for the list bounds and ids of the targets of the next block (at most kBlockTargets).
  void Fetch(std::span<const int64_t> targets) const;

  // Takes targets until the block is full, and returns their number. `bounds` are those of the targets, of a monotone
  // rule. Throws std::runtime_error for damaged lists.
  virtual int64_t Locate(std::span<const int64_t> targets, std::span<const int64_t> bounds) = 0;

  int64_t num_edges() const { return num_edges_; }

  // Calls each(tree, edges taken) for each target of the block.
  template <typename Each>
  void EachTarget(Each each) const {
    for (int64_t t = 0; t < num_targets_; ++t) each(block_[t].tree, block_[t].taken);
  }

  // Draws the edges of the block and fetches their neighbours and ids.
  virtual void Draw() = 0;

  // Of a monotone rule: the time of each edge of the block, once they are drawn.
  std::span<const int64_t> times() const { return {times_.data(), monotone_ ? static_cast<size_t>(num_edges_) : 0}; }

  // Calls read(e, neighbour, part, place in the part's lists) for each edge of the block.
  template <typename Reader>
  void Read(Reader read) const {
    ForEachUnlessStopped(num_edges_, [&](int64_t e) {
      const AdjacencyPart& part = sole_ != nullptr ? *sole_ : *owners_[e];
      const int64_t slot = picks_[e];
      read(e, EntryAt(part.indices, wide_indices_, slot), part, slot);
    });
  }

 protected:
  // A target of the block at hand: its list, and how many of its edges are taken.
  struct Target {
    ListView list;
    int64_t node_id;
    int64_t taken;
    int64_t tree;
    uint64_t key;
  };

  BlockDrawer(const AdjacencyView& adjacency, const int64_t* target_ids, const HopDraw& draw, bool with_edge_ids);

  const AdjacencyView& adjacency_;
  const int64_t* const target_ids_;
  const AdjacencyPart* const sole_;  // the only part: then owners_ is not kept
  const bool wide_indices_;
  const uint64_t key_;
  const uint64_t place_;
  const bool disjoint_;
  const bool monotone_;
  const bool with_edge_ids_;
  const int64_t per_target_;  // edges, at most
  uint64_t tree_key_ = 0;
  int64_t key_tree_ = -1;
  int64_t num_targets_ = 0;
  int64_t num_edges_ = 0;
  Target block_[kBlockTargets];
  std::vector<int64_t> picks_;
  std::vector<const AdjacencyPart*> owners_;
  std::vector<int64_t> times_;
};

// Returns what draws by the rule of `draw`. `target_ids` maps positions to node ids, nullptr for the identity. All
// arguments must outlive the result.
std::unique_ptr<BlockDrawer> MakeBlockDrawer(const AdjacencyView& adjacency, const int64_t* target_ids,
                                             const NeighborNodes& neighbors, const HopDraw& draw, bool with_edge_ids,
                                             DrawScratch& scratch);

}  // namespace gigl
