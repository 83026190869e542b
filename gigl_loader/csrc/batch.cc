#include "batch.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

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

void BatchEdges::Exclude(std::span<const int64_t> targets, std::span<const int64_t> neighbors) {
  const int64_t num_targets = static_cast<int64_t>(colptr.size()) - 1;
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] >= 0 && targets[i] < num_targets) pairs.emplace_back(targets[i], neighbors[i]);
  }
  std::sort(pairs.begin(), pairs.end());
  std::vector<int64_t> removed;  // edges, ascending
  for (auto group = pairs.begin(); group != pairs.end();) {
    const int64_t target = group->first;
    const auto end = std::find_if(group, pairs.end(), [=](const auto& pair) { return pair.first != target; });
    for (int64_t e = colptr[target]; e < colptr[target + 1]; ++e) {
      if (std::binary_search(group, end, std::pair<int64_t, int64_t>(target, rows[e]))) removed.push_back(e);
    }
    group = end;
  }
  if (removed.empty()) return;
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

Batch::Batch(std::vector<NodeTypePlan> node_types, const std::vector<EdgeEnds>& edge_types, Collect collect)
    : collect_(collect) {
  for (const NodeTypePlan& plan : node_types) {
    BatchNodes& nodes = nodes_.emplace_back();
    nodes.plan = plan;
    if (plan.count > INT32_MAX) nodes.table.emplace<NodeTable<uint64_t>>();
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
      if (seed < 0 || seed >= count) {
        throw std::out_of_range("seed position " + std::to_string(seed) + " of a type with " +
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

void Batch::EndHop() {
  for (BatchNodes& nodes : nodes_) {
    nodes.frontier_begin = nodes.frontier_end;
    nodes.frontier_end = static_cast<int64_t>(nodes.positions().size());
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
