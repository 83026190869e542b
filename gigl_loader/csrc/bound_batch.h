// What bindings of batches share: their nodes, their seeds, and how they are read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "batch.h"
#include "binding.h"
#include "bound_adjacency.h"
#include "tree.h"

namespace gigl {

inline void RequireType(int type, int count) {
  Require(type >= 0 && type < count, "type " + std::to_string(type) + " of " + std::to_string(count));
}

inline void RequireBound(int64_t max_edges) { Require(max_edges >= 0, "max_edges must not be negative"); }

// The nodes of a batch's types, with the arrays that they lie in.
class NodePlans {
 public:
  NodePlans(std::vector<NodeIds> node_ids, const std::vector<int64_t>& num_nodes) : node_ids_(std::move(node_ids)) {
    Require(node_ids_.size() == num_nodes.size(), "node_ids and num_nodes differ in length");
    for (size_t t = 0; t < num_nodes.size(); ++t) {
      Require(num_nodes[t] >= 0, "num_nodes must not be negative");
      Require(!node_ids_[t] || static_cast<int64_t>(node_ids_[t]->shape(0)) == num_nodes[t], "node_ids must have one entry per node");
      plans_.push_back({num_nodes[t], node_ids_[t] ? node_ids_[t]->data() : nullptr});
    }
  }

  const std::vector<NodeTypePlan>& plans() const { return plans_; }
  int size() const { return static_cast<int>(plans_.size()); }

 private:
  std::vector<NodeIds> node_ids_;
  std::vector<NodeTypePlan> plans_;
};

// Seeds of one node type.
using SeedArrays = std::pair<int, Array<const int64_t>>;

inline std::vector<SeedGroup> Groups(const std::vector<SeedArrays>& arrays, int num_types) {
  std::vector<SeedGroup> groups;
  for (const auto& [type, seeds] : arrays) {
    RequireType(type, num_types);
    groups.push_back({type, Span(seeds)});
  }
  return groups;
}

// What can be read of a batch, however it was sampled.
class BoundBatch {
 public:
  BoundBatch() = default;
  BoundBatch(const BoundBatch&) = delete;
  virtual ~BoundBatch() = default;
  virtual const Batch& batch() const = 0;
  virtual size_t ScratchBytes() const { return batch().nbytes(); }

  std::vector<int64_t> NodesPerHop(int type) const { return Nodes(type).per_hop; }
  std::vector<int64_t> EdgesPerHop(int type) const { return Edges(type).per_hop; }
  int64_t NumTargets(int type) const { return static_cast<int64_t>(Edges(type).colptr.size()) - 1; }

  void WritePositions(int type, const Array<int64_t>& out) const {
    WriteEach(type, out, [](int64_t name) { return PositionOf(name); });
  }

  void WriteTrees(int type, const Array<int32_t>& out) const {
    WriteEach(type, out, [](int64_t name) { return static_cast<int32_t>(TreeOf(name)); });
  }
  void WriteRows(int type, const Array<int32_t>& out) const { Write(Edges(type).rows.view(), out); }
  void WriteColptr(int type, const Array<int64_t>& out) const { Write(Edges(type).colptr.view(), out); }

  NewArray<int64_t> SeedLocals() const {
    const std::span<const int32_t> locals = batch().seed_locals();
    std::unique_ptr<int64_t[]> copy(new int64_t[locals.size() + 1]);
    std::copy(locals.begin(), locals.end(), copy.get());
    return HandOver(std::move(copy), locals.size());
  }

  void Exclude(int edge_type, const Array<const int64_t>& targets, const Array<const int64_t>& neighbors) {
    Edges(edge_type);  // checks the type
    Require(targets.shape(0) == neighbors.shape(0), "targets and neighbors differ in length");
    ReleaseGil release;
    mutable_batch().Exclude(edge_type, Span(targets), Span(neighbors));
  }

  NewArray<int32_t> BothDirections(int edge_type, int reverse_type) {
    Edges(edge_type);  // checks the types
    Edges(reverse_type);
    std::unique_ptr<int32_t[]> copy;
    size_t count = 0;
    {
      ReleaseGil release;
      const std::span<const int32_t> merged = mutable_batch().BothDirections(edge_type, reverse_type);
      count = merged.size();
      copy.reset(new int32_t[count + 1]);
      std::copy(merged.begin(), merged.end(), copy.get());
    }
    return HandOver(std::move(copy), count);
  }

  void WriteEdgeIds(int type, const Array<int64_t>& out) const {
    Require(batch().collect().with_edge_ids, "this sampler does not collect edge ids");
    Write(Edges(type).edge_ids.view(), out);
  }

  void WriteSlots(int type, const Array<int64_t>& out) const {
    Require(batch().collect().with_slots, "this sampler does not collect slots");
    Write(Edges(type).slots.view(), out);
  }

  void WriteNodeIds(int type, const Array<int64_t>& out) const {
    const int64_t* ids = Nodes(type).plan.ids;
    if (ids == nullptr) return WritePositions(type, out);
    WriteEach(type, out, [ids](int64_t name) { return ids[PositionOf(name)]; });
  }

 protected:
  virtual Batch& mutable_batch() = 0;

  const BatchNodes& Nodes(int type) const {
    RequireType(type, batch().num_node_types());
    return batch().nodes(type);
  }
  const BatchEdges& Edges(int type) const {
    RequireType(type, batch().num_edge_types());
    return batch().edges(type);
  }

 private:
  static void RequireLength(size_t have, size_t given) {
    Require(have == given, "out has " + std::to_string(given) + " entries, needs " + std::to_string(have));
  }

  // Writes a number for each node of a type.
  template <typename T, typename Value>
  void WriteEach(int type, const Array<T>& out, Value value) const {
    const std::span<const int64_t> names = Nodes(type).names();
    RequireLength(names.size(), out.shape(0));
    ReleaseGil release;
    std::transform(names.begin(), names.end(), out.data(), value);
  }

  template <typename T>
  static void Write(std::span<const T> values, const Array<std::remove_const_t<T>>& out) {
    RequireLength(values.size(), out.shape(0));
    ReleaseGil release;
    std::copy(values.begin(), values.end(), out.data());
  }
};

}  // namespace gigl
