#include "neighbor_sampler.h"

#include <algorithm>
#include <utility>

#include "block_drawer.h"
#include "induced.h"

namespace gigl {
namespace {

// Expands the frontier of one edge type at one hop.
class Expansion {
 public:
  Expansion(const EdgeTypePlan& plan, const BatchNodes& targets, BatchNodes& neighbors, BatchEdges& edges,
            Batch& batch, const HopDraw& draw, BlockDrawer& drawer)
      : adjacency_(*plan.adjacency), targets_(targets), neighbors_(neighbors), edges_(edges), room_(batch.room()),
        collect_(batch.collect()), disjoint_(draw.disjoint), monotone_(batch.monotone()), drawer_(drawer),
        lists_(adjacency_, collect_.with_edge_ids) {}

  void Run() {
    const int64_t before = static_cast<int64_t>(edges_.rows.size());
    int64_t at = targets_.frontier_begin;
    while (at < targets_.frontier_end) at += Block(at);
    edges_.per_hop.push_back(static_cast<int64_t>(edges_.rows.size()) - before);
  }

 private:
  // Works on some targets from local index `at` on and returns their number.
  int64_t Block(int64_t at) {
    lists_.Advance(targets_.names().subspan(at, targets_.frontier_end - at));
    const int64_t most = std::min(BlockDrawer::kBlockTargets, targets_.frontier_end - at);
    const std::span<const int64_t> nodes = targets_.names().subspan(at, most);  // until Relabel: the table may grow
    drawer_.Fetch(nodes);
    int64_t end = edges_.colptr[edges_.colptr.size() - 1];
    const auto bounds = monotone_ ? targets_.bounds.view().subspan(at, most) : std::span<const int64_t>();
    const int64_t count = drawer_.Locate(nodes, bounds);
    drawer_.EachTarget([&](int64_t, int64_t taken) { edges_.colptr.Push(end += taken); });
    room_.Take(drawer_.num_edges(), count);
    PrefetchOutputs(drawer_.num_edges());
    drawer_.Draw();
    Read(drawer_.num_edges());
    const auto num_edges = static_cast<size_t>(drawer_.num_edges());
    int32_t* const rows = edges_.rows.Extend(num_edges);
    neighbors_.table.InsertAll({found_.data(), num_edges}, rows);
    if (monotone_) Bound(at, {rows, num_edges});
    return count;
  }

  // Gives bounds to new nodes: the time of the edge to each, or, where edges have none, the bound of its target.
  void Bound(int64_t at, std::span<const int32_t> rows) {
    const std::span<const int64_t> times = drawer_.times();
    if (!times.empty()) return neighbors_.Bound(rows, [&](size_t e) { return times[e]; });
    size_t e = 0;
    drawer_.EachTarget([&](int64_t, int64_t taken) {
      const int64_t bound = targets_.bounds[at++];
      neighbors_.Bound(rows.subspan(e, taken), [bound](size_t) { return bound; });
      e += taken;
    });
  }

  void PrefetchOutputs(int64_t num_edges) {
    edges_.rows.PrefetchEnd(2 * num_edges);
    edges_.colptr.PrefetchEnd(2 * BlockDrawer::kBlockTargets);
    if (collect_.with_edge_ids) edges_.edge_ids.PrefetchEnd(2 * num_edges);
    if (collect_.with_slots) edges_.slots.PrefetchEnd(2 * num_edges);
  }

  // Reads neighbours and edge ids, and fetches the neighbours' places in the table.
  void Read(int64_t num_edges) {
    if (static_cast<int64_t>(found_.size()) < num_edges) found_.resize(num_edges);
    int64_t* const found = found_.data();
    int64_t* const ids = collect_.with_edge_ids ? edges_.edge_ids.Extend(num_edges) : nullptr;
    int64_t* const slots = collect_.with_slots ? edges_.slots.Extend(num_edges) : nullptr;
    const int64_t num_neighbors = neighbors_.plan.count;
    const TableLines lines = neighbors_.table.lines();
    const bool wide_edge_ids = adjacency_.wide_edge_ids;
    bool inside = true;
    drawer_.Read([&](int64_t e, int64_t neighbor, const AdjacencyPart& part, int64_t slot) {
      if (ids != nullptr) ids[e] = EntryAt(part.edge_ids, wide_edge_ids, slot);
      if (slots != nullptr) slots[e] = part.first_slot + slot;
      inside &= neighbor >= 0 && neighbor < num_neighbors;
      found[e] = neighbor;
      if (!disjoint_) lines.Prefetch(neighbor);
    });
    if (!inside) ThrowDamaged("a neighbour lies outside its node type");
    if (disjoint_) MoveToTrees(lines);
  }

  // A neighbour is in the tree of its target.
  void MoveToTrees(const TableLines& lines) {
    int64_t* next = found_.data();
    drawer_.EachTarget([&](int64_t tree, int64_t taken) {
      ForEachUnlessStopped(taken, [&](int64_t i) {
        next[i] |= tree << kTreeShift;
        lines.Prefetch(next[i]);
      });
      next += taken;
    });
  }

  const AdjacencyView& adjacency_;
  const BatchNodes& targets_;
  BatchNodes& neighbors_;
  BatchEdges& edges_;
  BatchRoom& room_;
  const Collect& collect_;
  const bool disjoint_;
  const bool monotone_;
  BlockDrawer& drawer_;
  ListsAhead lists_;
  std::vector<int64_t> found_;
};

// Adds induced edges to a batch.
class InducedSink {
 public:
  InducedSink(const AdjacencyView& adjacency, BatchEdges& edges, BatchRoom& room, const Collect& collect)
      : adjacency_(adjacency), edges_(edges), room_(room), collect_(collect) {}

  void Take(const AdjacencyPart& part, std::span<const int64_t> slots, std::span<const int32_t> locals) {
    room_.Take(static_cast<int64_t>(slots.size()), 0);
    std::copy(locals.begin(), locals.end(), edges_.rows.Extend(locals.size()));
    if (collect_.with_edge_ids) {
      std::transform(slots.begin(), slots.end(), edges_.edge_ids.Extend(slots.size()),
                     [&](int64_t slot) { return EntryAt(part.edge_ids, adjacency_.wide_edge_ids, slot); });
    }
    if (collect_.with_slots) {
      std::transform(slots.begin(), slots.end(), edges_.slots.Extend(slots.size()),
                     [&](int64_t slot) { return part.first_slot + slot; });
    }
  }

  void EndTarget() { edges_.colptr.Push(static_cast<int64_t>(edges_.rows.size())); }

 private:
  const AdjacencyView& adjacency_;
  BatchEdges& edges_;
  BatchRoom& room_;
  const Collect& collect_;
};

std::vector<EdgeEnds> EndsOf(const std::vector<EdgeTypePlan>& plans) {
  std::vector<EdgeEnds> ends;
  ends.reserve(plans.size());
  for (const EdgeTypePlan& plan : plans) ends.push_back(plan.ends);
  return ends;
}

}  // namespace

NeighborSampler::NeighborSampler(const std::vector<NodeTypePlan>& node_types, std::vector<EdgeTypePlan> edge_types,
                                 Collect collect, bool disjoint, bool induced)
    : plans_(std::move(edge_types)), batch_(node_types, EndsOf(plans_), collect, disjoint, induced) {
  if (!plans_.empty()) num_hops_ = static_cast<int>(plans_.front().rules.size());
  for (const EdgeTypePlan& plan : plans_) {
    for (const DrawRule& rule : plan.rules) monotone_ |= rule.monotone;
  }
}

void NeighborSampler::Sample(std::span<const SeedGroup> seeds, uint64_t key, int64_t max_edges, TreeSpans trees,
                             uint64_t number) {
  batch_.Begin(seeds, max_edges, monotone_ ? trees.times : std::span<const int64_t>());
  for (int hop = 0; hop < num_hops_; ++hop) {
    for (int edge_type = 0; edge_type < batch_.num_edge_types(); ++edge_type) Expand(edge_type, hop, key, trees, number);
    batch_.EndHop();
  }
  if (!batch_.induced()) return;
  batch_.BeginInduced();
  for (int edge_type = 0; edge_type < batch_.num_edge_types(); ++edge_type) Induce(edge_type);
}

void NeighborSampler::Induce(int edge_type) {
  const EdgeTypePlan& plan = plans_[edge_type];
  BatchEdges& edges = batch_.edges(edge_type);
  const std::span<const int64_t> targets = batch_.nodes(plan.ends.target_type).names();
  const BatchNodes& neighbors = batch_.nodes(plan.ends.neighbor_type);
  batch_.room().Take(0, static_cast<int64_t>(targets.size()));
  const bool skipped = !plan.rules.empty() &&
                       std::all_of(plan.rules.begin(), plan.rules.end(), [](const DrawRule& rule) { return rule.fanout == 0; });
  if (skipped) return edges.AddNone(static_cast<int64_t>(targets.size()));
  const bool weighted = !plan.rules.empty() && plan.rules.front().weighted();
  WithWidth(plan.adjacency->wide_indices, [&](auto index) {
    InducedSink sink(*plan.adjacency, edges, batch_.room(), batch_.collect());
    InducedScan<decltype(index), InducedSink>(*plan.adjacency, {neighbors.plan.count, neighbors.plan.ids}, neighbors.table,
                                              weighted, sink)
        .Run(targets);
  });
  edges.per_hop.push_back(static_cast<int64_t>(edges.rows.size()));
}

void NeighborSampler::Expand(int edge_type, int hop, uint64_t key, TreeSpans trees, uint64_t number) {
  const EdgeTypePlan& plan = plans_[edge_type];
  BatchEdges& edges = batch_.edges(edge_type);
  const BatchNodes& targets = batch_.nodes(plan.ends.target_type);
  BatchNodes& neighbors = batch_.nodes(plan.ends.neighbor_type);
  const HopDraw draw{key, plan.address, hop, plan.rules[hop], batch_.disjoint(), trees, number};
  if (draw.rule.fanout == 0) {
    const int64_t num_targets = static_cast<int64_t>(targets.frontier().size());
    batch_.room().Take(0, num_targets);
    return edges.AddNone(num_targets);
  }
  const auto drawer = MakeBlockDrawer(*plan.adjacency, targets.plan.ids, {neighbors.plan.count, neighbors.plan.ids}, draw,
                                      batch_.collect().with_edge_ids, scratch_);
  Expansion(plan, targets, neighbors, edges, batch_, draw, *drawer).Run();
}

}  // namespace gigl
