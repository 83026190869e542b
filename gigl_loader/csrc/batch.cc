#include "batch.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "tree.h"

namespace gigl {

void BatchRoom::Refuse() const {
  throw BatchTooLarge("more than " + std::to_string(max_edges_) + " edges");
}

void BatchEdges::Clear() {
  rows.Clear();
  colptr.Clear();
  colptr.Push(0);
  edge_ids.Clear();
  slots.Clear();
  per_hop.clear();
}

void BatchEdges::AddNone(int64_t num_targets) {
  const int64_t end = colptr[colptr.size() - 1];
  for (int64_t i = 0; i < num_targets; ++i) colptr.Push(end);
  per_hop.push_back(0);
}

void BatchEdges::Remove(std::span<const int64_t> removed) {
  if (removed.empty()) return;
  const int64_t num_targets = static_cast<int64_t>(colptr.size()) - 1;
  rows.Remove(removed);
  if (edge_ids.size() > 0) edge_ids.Remove(removed);
  if (slots.size() > 0) slots.Remove(removed);
  int64_t hop_end = 0;
  size_t before = 0;
  for (int64_t& count : per_hop) {  // edges lie in the order of the hops
    hop_end += count;
    for (; before < removed.size() && removed[before] < hop_end; ++before) --count;
  }
  before = 0;
  for (int64_t t = 1; t <= num_targets; ++t) {
    int64_t& end = colptr.data()[t];
    while (before < removed.size() && removed[before] < end) ++before;
    end -= static_cast<int64_t>(before);
  }
}

Batch::Batch(std::vector<NodeTypePlan> node_types, const std::vector<EdgeEnds>& edge_types, Collect collect,
             bool disjoint)
    : collect_(collect), disjoint_(disjoint) {
  for (const NodeTypePlan& plan : node_types) {
    BatchNodes& nodes = nodes_.emplace_back();
    nodes.plan = plan;
    if (plan.count > kPositionMask) throw std::length_error("a type of more than 2^40 nodes");
    if (disjoint || plan.count > INT32_MAX) nodes.table.emplace<NodeTable<uint64_t>>();
  }
  for (const EdgeEnds& ends : edge_types) {
    BatchEdges& edges = edges_.emplace_back();
    edges.ends = ends;
    edges.Clear();  // no batch yet: an empty one
  }
}

void Batch::Begin(std::span<const SeedGroup> groups, int64_t max_edges) {
  room_ = BatchRoom(max_edges);
  for (BatchEdges& edges : edges_) edges.Clear();
  for (BatchNodes& nodes : nodes_) {
    std::visit([](auto& table) { table.Clear(); }, nodes.table);
    nodes.frontier_begin = nodes.frontier_end = 0;
    nodes.per_hop.clear();
  }
  size_t num_seeds = 0;
  for (const SeedGroup& group : groups) {
    const int64_t count = nodes_.at(group.type).plan.count;
    for (const int64_t seed : group.seeds) {
      const int64_t position = disjoint_ ? PositionOf(seed) : seed;
      if (seed < 0 || position >= count) {
        throw std::out_of_range("seed position " + std::to_string(position) + " of a type with " +
                                std::to_string(count) + " nodes");
      }
    }
    num_seeds += group.seeds.size();
  }
  seed_locals_.resize(num_seeds);
  int32_t* locals = seed_locals_.data();
  for (const SeedGroup& group : groups) {
    std::visit([&](auto& table) { table.InsertAll(group.seeds, locals); }, nodes_[group.type].table);
    locals += group.seeds.size();
  }
  EndHop();
}

void Batch::Exclude(int edge_type, std::span<const int64_t> targets, std::span<const int64_t> neighbors) {
  BatchEdges& edges = edges_.at(edge_type);
  const std::span<const int64_t> target_names = nodes_.at(edges.ends.target_type).names();
  const std::span<const int64_t> neighbor_names = nodes_.at(edges.ends.neighbor_type).names();
  std::vector<std::pair<int64_t, int64_t>> pairs;  // positions
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto target = static_cast<size_t>(targets[i]), neighbor = static_cast<size_t>(neighbors[i]);
    if (target >= target_names.size() || neighbor >= neighbor_names.size()) continue;
    pairs.emplace_back(PositionOf(target_names[target]), PositionOf(neighbor_names[neighbor]));
  }
  std::sort(pairs.begin(), pairs.end());
  std::vector<int64_t> removed;  // ascending
  const auto look = [&](int64_t target) {
    const int64_t position = PositionOf(target_names[target]);
    const auto group = std::lower_bound(pairs.begin(), pairs.end(), std::pair<int64_t, int64_t>(position, 0));
    if (group == pairs.end() || group->first != position) return;
    for (int64_t e = edges.colptr[target]; e < edges.colptr[target + 1]; ++e) {
      const std::pair<int64_t, int64_t> pair(position, PositionOf(neighbor_names[edges.rows[e]]));
      if (std::binary_search(group, pairs.end(), pair)) removed.push_back(e);
    }
  };
  const int64_t num_targets = static_cast<int64_t>(edges.colptr.size()) - 1;
  if (disjoint_) {
    for (int64_t target = 0; target < num_targets; ++target) look(target);
  } else {  // A node is there once: no other target has its position.
    std::vector<int64_t> distinct(targets.begin(), targets.end());
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    for (const int64_t target : distinct) {
      if (target >= 0 && target < num_targets) look(target);
    }
  }
  edges.Remove(removed);
}

void Batch::EndHop() {
  for (BatchNodes& nodes : nodes_) {
    nodes.frontier_begin = nodes.frontier_end;
    nodes.frontier_end = static_cast<int64_t>(nodes.names().size());
    nodes.per_hop.push_back(nodes.frontier_end - nodes.frontier_begin);
  }
}

size_t Batch::nbytes() const {
  size_t total = 0;
  for (const BatchNodes& nodes : nodes_) {
    total += std::visit([](const auto& table) { return table.nbytes(); }, nodes.table);
  }
  for (const BatchEdges& edges : edges_) {
    total += edges.rows.nbytes() + edges.colptr.nbytes() + edges.edge_ids.nbytes() + edges.slots.nbytes();
  }
  return total;
}

}  // namespace gigl
