#include "induced.h"

#include <stdexcept>
#include <string>

#include "batch.h"
#include "block_drawer.h"
#include "node_table.h"

namespace gigl {
namespace {

template <typename Index>
class HopSink {
 public:
  HopSink(const AdjacencyView& adjacency, DrawnHop& out, Collect collect, int64_t max_edges)
      : adjacency_(adjacency), counts_(out.counts), positions_(out.positions.emplace<Buffer<Index>>()),
        edge_ids_(adjacency.wide_edge_ids, out.edge_ids), slots_(out.slots), collect_(collect), bound_(max_edges) {}

  void Take(const AdjacencyPart& part, std::span<const int64_t> slots, std::span<const int32_t>) {
    bound_.Take(static_cast<int64_t>(slots.size()), 0);
    count_ += static_cast<int64_t>(slots.size());
    Index* const positions = positions_.Extend(slots.size());
    if (collect_.with_edge_ids) edge_ids_.Extend(static_cast<int64_t>(slots.size()));
    int64_t* const places = collect_.with_slots ? slots_.Extend(slots.size()) : nullptr;
    for (size_t i = 0; i < slots.size(); ++i) {
      positions[i] = static_cast<const Index*>(part.indices)[slots[i]];
      if (collect_.with_edge_ids) {
        edge_ids_.Set(static_cast<int64_t>(i), EntryAt(part.edge_ids, adjacency_.wide_edge_ids, slots[i]));
      }
      if (places != nullptr) places[i] = part.first_slot + slots[i];
    }
  }

  void EndTarget() {
    if (count_ > INT32_MAX) throw std::length_error("more than 2^31 neighbours of one target");
    counts_.Push(static_cast<int32_t>(count_));
    count_ = 0;
  }

 private:
  const AdjacencyView& adjacency_;
  Buffer<int32_t>& counts_;
  Buffer<Index>& positions_;
  CopiedEntries edge_ids_;
  Buffer<int64_t>& slots_;
  const Collect collect_;
  BatchRoom bound_;
  int64_t count_ = 0;
};

template <typename Index>
void Scan(const AdjacencyView& adjacency, const NeighborNodes& neighbors, std::span<const int64_t> targets,
          std::span<const int64_t> nodes, bool weighted, HopSink<Index>& sink) {
  NodeTable set(neighbors.count > INT32_MAX);
  std::vector<int32_t> locals(nodes.size());
  set.InsertAll(nodes, locals.data());
  InducedScan<Index, HopSink<Index>>(adjacency, neighbors, set, weighted, sink).Run(targets);
}

}  // namespace

DrawnHop InducedEdges(const AdjacencyView& adjacency, const NeighborNodes& neighbors, std::span<const int64_t> targets,
                      std::span<const int64_t> nodes, bool weighted, Collect collect, int64_t max_edges) {
  RequireInside(adjacency, targets);
  for (const int64_t node : nodes) {
    if (node < 0 || node >= neighbors.count) {
      throw std::invalid_argument("node position " + std::to_string(node) + " of a type with " +
                                  std::to_string(neighbors.count) + " nodes");
    }
  }
  DrawnHop out;
  WithWidth(adjacency.wide_indices, [&](auto index) {
    HopSink<decltype(index)> sink(adjacency, out, collect, max_edges);
    Scan(adjacency, neighbors, targets, nodes, weighted, sink);
  });
  return out;
}

}  // namespace gigl
