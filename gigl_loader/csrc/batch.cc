#include "batch.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
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
  excluded.clear();
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

Batch::Batch(const std::vector<NodeTypePlan>& node_types, const std::vector<EdgeEnds>& edge_types, Collect collect,
             bool disjoint, bool induced)
    : wanted_(collect), collect_(collect), disjoint_(disjoint), induced_(induced) {
  if (induced && disjoint) throw std::invalid_argument("an induced batch has no disjoint trees");
  for (const NodeTypePlan& plan : node_types) {
    BatchNodes& nodes = nodes_.emplace_back();
    nodes.plan = plan;
    if (plan.count > kPositionMask) throw std::length_error("a type of more than 2^40 nodes");
    nodes.table = NodeTable(disjoint || plan.count > INT32_MAX);
  }
  for (const EdgeEnds& ends : edge_types) {
    BatchEdges& edges = edges_.emplace_back();
    edges.ends = ends;
    edges.Clear();  // no batch yet: an empty one
  }
}

void Batch::Begin(std::span<const SeedGroup> groups, int64_t max_edges, std::span<const int64_t> tree_times) {
  room_ = BatchRoom(max_edges);
  inducing_ = false;
  monotone_ = !tree_times.empty();
  collect_ = induced_ ? Collect{false, false} : wanted_;
  for (BatchEdges& edges : edges_) edges.Clear();
  for (BatchNodes& nodes : nodes_) {
    nodes.table.Clear();
    nodes.frontier_begin = nodes.frontier_end = 0;
    nodes.per_hop.clear();
    nodes.bounds.Clear();
  }
  size_t num_seeds = 0;
  for (const SeedGroup& group : groups) {
    CheckStop(static_cast<int64_t>(group.seeds.size()));
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
    nodes_[group.type].table.InsertAll(group.seeds, locals);
    if (monotone_) {
      nodes_[group.type].Bound({locals, group.seeds.size()},
                               [&](size_t seed) { return tree_times[TreeOf(group.seeds[seed])]; });
    }
    locals += group.seeds.size();
  }
  EndHop();
}

void Batch::Exclude(int edge_type, std::span<const int64_t> targets, std::span<const int64_t> neighbors) {
  BatchEdges& edges = edges_.at(edge_type);
  const std::span<const int64_t> target_names = nodes_.at(edges.ends.target_type).names();
  const std::span<const int64_t> neighbor_names = nodes_.at(edges.ends.neighbor_type).names();
  std::vector<NodePair>& pairs = edges.excluded;
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto target = static_cast<size_t>(targets[i]), neighbor = static_cast<size_t>(neighbors[i]);
    if (target >= target_names.size() || neighbor >= neighbor_names.size()) continue;
    pairs.emplace_back(PositionOf(target_names[target]), PositionOf(neighbor_names[neighbor]));
  }
  SortUnlessStopped(pairs.begin(), pairs.end(), std::less<NodePair>());
  std::vector<int64_t> removed;  // ascending
  WorkCounter work;
  const auto look = [&](int64_t target) {
    const int64_t position = PositionOf(target_names[target]);
    work.Add(edges.colptr[target + 1] - edges.colptr[target] + 16);
    const auto group = std::lower_bound(pairs.begin(), pairs.end(), NodePair(position, 0));
    if (group == pairs.end() || group->first != position) return;
    for (int64_t e = edges.colptr[target]; e < edges.colptr[target + 1]; ++e) {
      const NodePair pair(position, PositionOf(neighbor_names[edges.rows[e]]));
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

std::span<const int32_t> Batch::BothDirections(int edge_type, int reverse_type) {
  const BatchEdges& own = edges_.at(edge_type);
  const BatchEdges& other = edges_.at(reverse_type);
  if (own.ends.target_type != other.ends.neighbor_type || own.ends.neighbor_type != other.ends.target_type) {
    throw std::invalid_argument("edge types that do not join the same node types are no reverses of each other");
  }
  const size_t num_own = own.rows.size(), num_other = other.rows.size();
  room_.Take(static_cast<int64_t>(num_other), 0);
  if (num_own + num_other > INT32_MAX) throw BatchTooLarge("more than 2^31 edges of one type");
  const std::span<const int64_t> targets = nodes_.at(own.ends.target_type).names();
  const std::span<const int64_t> neighbors = nodes_.at(own.ends.neighbor_type).names();

  // ends[t] serves as the cursor of group t while edges are placed: it ends where group t + 1 begins.
  std::vector<size_t> ends(targets.size() + 1);
  const int64_t num_own_targets = static_cast<int64_t>(own.colptr.size()) - 1;
  const int64_t num_other_targets = static_cast<int64_t>(other.colptr.size()) - 1;
  for (int64_t t = 0; t < num_own_targets; ++t) ends[t + 1] += own.colptr[t + 1] - own.colptr[t];
  for (const int32_t target : other.rows.view()) ++ends[target + 1];
  for (size_t t = 0; t < targets.size(); ++t) ends[t + 1] += ends[t];
  directions_.Clear();
  Direction* const all = directions_.Extend(num_own + num_other);
  WorkCounter work;
  for (int64_t t = 0; t < num_own_targets; ++t) {
    work.Add(own.colptr[t + 1] - own.colptr[t]);
    for (int64_t e = own.colptr[t]; e < own.colptr[t + 1]; ++e) all[ends[t]++] = {own.rows[e], static_cast<int32_t>(e)};
  }
  for (int64_t t = 0; t < num_other_targets; ++t) {
    work.Add(other.colptr[t + 1] - other.colptr[t]);
    for (int64_t e = other.colptr[t]; e < other.colptr[t + 1]; ++e) {
      all[ends[other.rows[e]]++] = {static_cast<int32_t>(t), static_cast<int32_t>(num_own + e)};
    }
  }

  merged_.Clear();
  size_t begin = 0;
  for (size_t t = 0; t < targets.size(); begin = ends[t], ++t) {
    SortUnlessStopped(all + begin, all + ends[t], [](const Direction& a, const Direction& b) {
      return std::tie(a.neighbor, a.place) < std::tie(b.neighbor, b.place);
    });
    for (size_t i = begin; i < ends[t]; ++i) {
      if (i > begin && all[i].neighbor == all[i - 1].neighbor) continue;
      if (!own.excluded.empty()) {
        const NodePair pair(PositionOf(targets[t]), PositionOf(neighbors[all[i].neighbor]));
        if (std::binary_search(own.excluded.begin(), own.excluded.end(), pair)) continue;
      }
      merged_.Push(all[i].place);
    }
  }
  return merged_.view();
}

void Batch::BeginInduced() {
  inducing_ = true;
  collect_ = wanted_;
  room_ = BatchRoom(room_.max_edges());
  for (BatchEdges& edges : edges_) edges.Clear();
  for (BatchNodes& nodes : nodes_) nodes.frontier_begin = 0;
}

void Batch::EndHop() {
  for (BatchNodes& nodes : nodes_) {
    nodes.frontier_begin = nodes.frontier_end;
    nodes.frontier_end = static_cast<int64_t>(nodes.names().size());
    nodes.per_hop.push_back(nodes.frontier_end - nodes.frontier_begin);
  }
}

size_t Batch::nbytes() const {
  size_t total = directions_.nbytes() + merged_.nbytes();
  for (const BatchNodes& nodes : nodes_) {
    total += nodes.table.nbytes() + nodes.bounds.nbytes();
  }
  for (const BatchEdges& edges : edges_) {
    total += edges.rows.nbytes() + edges.colptr.nbytes() + edges.edge_ids.nbytes() + edges.slots.nbytes();
  }
  return total;
}

}  // namespace gigl
