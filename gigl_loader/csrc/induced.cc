#include "induced.h"

#include <stdexcept>
#include <string>

#include "batch.h"
#include "block_drawer.h"
#include "node_table.h"

namespace gigl {
namespace {

template <typename Index, typename EdgeId>
class HopSink {
 public:
  HopSink(DrawnHop& out, Collect collect, int64_t max_edges)
      : counts_(out.counts), positions_(out.positions.emplace<Buffer<Index>>()),
        edge_ids_(out.edge_ids.emplace<Buffer<EdgeId>>()), slots_(out.slots), collect_(collect), bound_(max_edges) {}

  void Take(const AdjacencyPart& part, std::span<const int64_t> slots, std::span<const int32_t>) {
    bound_.Take(static_cast<int64_t>(slots.size()), 0);
    count_ += static_cast<int64_t>(slots.size());
    Index* const positions = positions_.Extend(slots.size());
    EdgeId* const ids = collect_.with_edge_ids ? edge_ids_.Extend(slots.size()) : nullptr;
    int64_t* const places = collect_.with_slots ? slots_.Extend(slots.size()) : nullptr;
    for (size_t i = 0; i < slots.size(); ++i) {
      positions[i] = static_cast<const Index*>(part.indices)[slots[i]];
      if (ids != nullptr) ids[i] = static_cast<const EdgeId*>(part.edge_ids)[slots[i]];
      if (places != nullptr) places[i] = part.first_slot + slots[i];
    }
  }

  void EndTarget() {
    if (count_ > INT32_MAX) throw std::length_error("more than 2^31 neighbours of one target");
    counts_.Push(static_cast<int32_t>(count_));
    count_ = 0;
  }

 private:
  Buffer<int32_t>& counts_;
  Buffer<Index>& positions_;
  Buffer<EdgeId>& edge_ids_;
  Buffer<int64_t>& slots_;
  const Collect collect_;
  BatchRoom bound_;
  int64_t count_ = 0;
};

template <typename Key, typename Index, typename EdgeId>
void Scan(const AdjacencyView& adjacency, const NeighborNodes& neighbors, std::span<const int64_t> targets,
          std::span<const int64_t> nodes, bool weighted, HopSink<Index, EdgeId>& sink) {
  NodeTable<Key> set;
  std::vector<int32_t> locals(nodes.size());
  set.InsertAll(nodes, locals.data());
  InducedScan<Index, NodeTable<Key>, HopSink<Index, EdgeId>>(adjacency, neighbors, set, weighted, sink).Run(targets);
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
    WithWidth(adjacency.wide_edge_ids, [&](auto edge_id) {
      HopSink<decltype(index), decltype(edge_id)> sink(out, collect, max_edges);
      if (neighbors.count > INT32_MAX) {
        Scan<uint64_t>(adjacency, neighbors, targets, nodes, weighted, sink);
      } else {
        Scan<uint32_t>(adjacency, neighbors, targets, nodes, weighted, sink);
      }
    });
  });
  return out;
}

}  // namespace gigl
