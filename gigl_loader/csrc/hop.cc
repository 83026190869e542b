#include "hop.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace gigl {
namespace {

constexpr int64_t kRoomEdges = 1 << 20;  // set aside before anything is known of the degrees

void Run(const AdjacencyView& adjacency, BlockDrawer& drawer, int64_t num_neighbors, std::span<const int64_t> targets,
         std::span<const int64_t> bounds, int64_t room, Collect collect, BatchRoom bound, DrawnHop& out) {
  CopiedEntries positions(adjacency.wide_indices, out.positions);
  CopiedEntries edge_ids(adjacency.wide_edge_ids, out.edge_ids);
  positions.Reserve(room);
  if (collect.with_edge_ids) edge_ids.Reserve(room);
  if (collect.with_slots) out.slots.Reserve(room);
  int32_t* count = out.counts.Extend(targets.size());
  bool inside = true;
  ListsAhead lists(adjacency, collect.with_edge_ids);
  drawer.Fetch(targets.first(std::min<size_t>(BlockDrawer::kBlockTargets, targets.size())));
  while (!targets.empty()) {
    lists.Advance(targets);
    bool countable = true;
    const int64_t done = drawer.Locate(targets, bounds);
    drawer.EachTarget([&](int64_t, int64_t taken) {
      countable &= taken <= INT32_MAX;
      *count++ = static_cast<int32_t>(taken);
    });
    if (!countable) throw std::length_error("more than 2^31 neighbours of one target");
    bound.Take(drawer.num_edges(), 0);
    targets = targets.subspan(done);
    if (!bounds.empty()) bounds = bounds.subspan(done);
    drawer.Draw();
    std::copy(drawer.times().begin(), drawer.times().end(), out.times.Extend(drawer.times().size()));
    drawer.Fetch(targets.first(std::min<size_t>(BlockDrawer::kBlockTargets, targets.size())));
    const int64_t num_edges = drawer.num_edges();
    positions.Extend(num_edges);
    if (collect.with_edge_ids) edge_ids.Extend(num_edges);
    int64_t* const slots = collect.with_slots ? out.slots.Extend(num_edges) : nullptr;
    drawer.Read([&](int64_t e, int64_t neighbor, const AdjacencyPart& part, int64_t slot) {
      positions.Set(e, neighbor);
      if (collect.with_edge_ids) edge_ids.Set(e, EntryAt(part.edge_ids, adjacency.wide_edge_ids, slot));
      if (slots != nullptr) slots[e] = part.first_slot + slot;
      inside &= neighbor >= 0 && neighbor < num_neighbors;
    });
    if (!inside) ThrowDamaged("a neighbour lies outside its node type");
  }
}

}  // namespace

DrawnHop DrawHop(const AdjacencyView& adjacency, const int64_t* target_ids, const NeighborNodes& neighbors,
                 std::span<const int64_t> targets, const HopDraw& draw, Collect collect, int64_t max_edges,
                 std::span<const int64_t> bounds) {
  if (draw.disjoint) {
    std::vector<int64_t> positions(targets.size());
    std::transform(targets.begin(), targets.end(), positions.begin(), PositionOf);
    RequireInside(adjacency, positions);
  } else {
    RequireInside(adjacency, targets);
  }
  DrawnHop out;
  DrawScratch scratch;
  const int64_t num_targets = static_cast<int64_t>(targets.size());
  const int64_t per_target = std::clamp<int64_t>(draw.rule.fanout < 0 ? 16 : draw.rule.fanout, 0, kRoomEdges);
  const int64_t room = std::min({num_targets * per_target, std::max(kRoomEdges, num_targets), max_edges});
  const auto drawer = MakeBlockDrawer(adjacency, target_ids, neighbors, draw, collect.with_edge_ids, scratch);
  Run(adjacency, *drawer, neighbors.count, targets, bounds, room, collect, BatchRoom(max_edges), out);
  return out;
}

}  // namespace gigl
