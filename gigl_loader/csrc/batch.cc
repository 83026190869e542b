#include "batch.h"

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

void Batch::Begin(int seed_type, std::span<const int64_t> seeds, int64_t max_edges) {
  room_ = BatchRoom(max_edges);
  for (BatchEdges& edges : edges_) edges.Clear();
  for (BatchNodes& nodes : nodes_) {
    std::visit([](auto& table) { table.Clear(); }, nodes.table);
    nodes.frontier_begin = nodes.frontier_end = 0;
    nodes.per_hop.clear();
  }
  BatchNodes& seed_nodes = nodes_.at(seed_type);
  for (const int64_t seed : seeds) {
    if (seed < 0 || seed >= seed_nodes.plan.count) {
      throw std::out_of_range("seed position " + std::to_string(seed) + " of a type with " +
                              std::to_string(seed_nodes.plan.count) + " nodes");
    }
  }
  std::vector<int32_t> locals(seeds.size());
  std::visit([&](auto& table) { table.InsertAll(seeds, locals.data()); }, seed_nodes.table);
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
