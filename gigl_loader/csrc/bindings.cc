// The Python face of the kernels: checks, drops the GIL, converts. Nothing else.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "adjacency.h"
#include "gather.h"
#include "neighbor_sampler.h"
#include "random.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gigl {
namespace {

template <typename T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using AnyArray = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<T> Span(const Array<T>& array) {
  return {array.data(), array.shape(0)};
}

void Require(bool holds, const std::string& rule) {
  if (!holds) throw nb::value_error(rule.c_str());
}

bool IsWide(const AnyArray& array, const char* what) {
  if (array.dtype() == nb::dtype<int64_t>()) return true;
  if (array.dtype() == nb::dtype<int32_t>()) return false;
  throw nb::type_error((std::string(what) + " must be int32 or int64").c_str());
}

void RequireBounds(std::span<const int64_t> bounds, size_t parts) {
  Require(bounds.size() == parts + 1, "bounds must have one entry more than there are parts");
  Require(bounds.front() == 0, "bounds must start at 0");
  for (size_t p = 0; p < parts; ++p) Require(bounds[p] <= bounds[p + 1], "bounds must not fall");
}

std::pair<uint64_t, uint64_t> BindPhilox(uint64_t key, uint64_t low, uint64_t high) {
  const Words words = Philox(key, low, high);
  return {words.first, words.second};
}

void BindPermutation(uint64_t run_seed, uint64_t epoch, const Array<int64_t>& out) {
  nb::gil_scoped_release release;
  Permutation(run_seed, epoch, Span(out));
}

void BindBuildAdjacency(const Array<const int64_t>& targets, const Array<const int64_t>& neighbor_ids,
                        const Array<const int64_t>& edge_ids, const Array<int64_t>& indptr,
                        const Array<int64_t>& order) {
  Require(neighbor_ids.shape(0) == targets.shape(0), "neighbor_ids and targets differ in length");
  Require(edge_ids.shape(0) == targets.shape(0), "edge_ids and targets differ in length");
  Require(order.shape(0) == targets.shape(0), "order and targets differ in length");
  Require(indptr.shape(0) > 0, "indptr needs at least one entry");
  int64_t wrong;
  {
    nb::gil_scoped_release release;
    wrong = BuildAdjacency(Span(targets), Span(neighbor_ids), Span(edge_ids), Span(indptr), Span(order));
  }
  Require(wrong < 0, "edge " + std::to_string(wrong) + " has a target outside [0, " +
                         std::to_string(indptr.shape(0) - 1) + ")");
}

void BindGather(const std::vector<Rows>& parts, const Array<const int64_t>& bounds,
                const Array<const int64_t>& positions,
                const nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& out) {
  RequireBounds(Span(bounds), parts.size());
  Require(out.shape(0) == positions.shape(0), "out and positions differ in length");
  std::vector<const std::byte*> data;
  for (size_t p = 0; p < parts.size(); ++p) {
    Require(parts[p].shape(1) == out.shape(1), "all parts and out need rows of the same size");
    Require(static_cast<int64_t>(parts[p].shape(0)) == bounds(p + 1) - bounds(p), "a part has other rows than its bounds say");
    data.push_back(reinterpret_cast<const std::byte*>(parts[p].data()));
  }
  int64_t wrong;
  {
    nb::gil_scoped_release release;
    wrong = Gather(data, Span(bounds), Span(positions), static_cast<int64_t>(out.shape(1)),
                   reinterpret_cast<std::byte*>(out.data()));
  }
  Require(wrong < 0, "position " + std::to_string(wrong < 0 ? 0 : positions(wrong)) + " lies outside [0, " +
                         std::to_string(bounds(parts.size())) + ")");
}

void BindExpandEdges(const Array<const int32_t>& rows, const Array<const int64_t>& colptr,
                     const nb::ndarray<int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& out) {
  const int64_t num_edges = static_cast<int64_t>(rows.shape(0));
  Require(out.shape(0) == 2 && static_cast<int64_t>(out.shape(1)) == num_edges, "out must be [2, number of edges]");
  Require(colptr.shape(0) > 0, "colptr needs at least one entry");
  const std::span<const int64_t> ends = Span(colptr);
  Require(ends.front() == 0 && ends.back() == num_edges, "colptr must run from 0 to the number of edges");
  for (size_t t = 0; t + 1 < ends.size(); ++t) Require(ends[t] <= ends[t + 1], "colptr must not fall");
  nb::gil_scoped_release release;
  ExpandEdges(Span(rows), ends, out.data(), out.data() + num_edges);
}

// One edge type with the arrays that it lies in.
class Adjacency {
 public:
  Adjacency(const Array<const int64_t>& bounds, std::vector<Array<const int64_t>> indptr,
            std::vector<AnyArray> indices, std::vector<AnyArray> edge_ids)
      : indptr_(std::move(indptr)), indices_(std::move(indices)), edge_ids_(std::move(edge_ids)) {
    const size_t parts = indptr_.size();
    Require(parts > 0, "an adjacency needs at least one part");
    Require(indices_.size() == parts && edge_ids_.size() == parts, "indptr, indices and edge_ids differ in number of parts");
    RequireBounds(Span(bounds), parts);
    view_.wide_indices = IsWide(indices_[0], "indices");
    view_.wide_edge_ids = IsWide(edge_ids_[0], "edge_ids");
    for (size_t p = 0; p < parts; ++p) Add(p, bounds(p), bounds(p + 1));
  }

  const AdjacencyView& view() const { return view_; }
  int64_t num_targets() const { return view_.parts.back().first_target + view_.parts.back().num_targets; }
  int64_t num_edges() const { return view_.parts.back().first_slot + view_.parts.back().num_edges; }

 private:
  void Add(size_t p, int64_t first, int64_t last) {
    Require(IsWide(indices_[p], "indices") == view_.wide_indices, "indices of all parts need one dtype");
    Require(IsWide(edge_ids_[p], "edge_ids") == view_.wide_edge_ids, "edge_ids of all parts need one dtype");
    Require(static_cast<int64_t>(indptr_[p].shape(0)) == last - first + 1, "indptr must have one entry more than its part has targets");
    Require(edge_ids_[p].shape(0) == indices_[p].shape(0), "edge_ids and indices differ in length");
    const int64_t before = view_.parts.empty() ? 0 : num_edges();
    view_.parts.push_back({indptr_[p].data(), indices_[p].data(), edge_ids_[p].data(), last - first,
                           static_cast<int64_t>(indices_[p].shape(0)), first, before});
  }

  std::vector<Array<const int64_t>> indptr_;
  std::vector<AnyArray> indices_;
  std::vector<AnyArray> edge_ids_;
  AdjacencyView view_;
};

// A sampler with the objects that its plans point into.
class BoundSampler {
 public:
  BoundSampler(nb::sequence adjacencies, const std::vector<int>& target_types,
               const std::vector<int>& neighbor_types, const std::vector<uint32_t>& addresses,
               const std::vector<std::vector<int32_t>>& fanouts,
               std::vector<std::optional<Array<const int64_t>>> node_ids, const std::vector<int64_t>& num_nodes,
               bool replace, bool with_edge_ids, bool with_slots)
      : node_ids_(std::move(node_ids)), options_{replace, with_edge_ids, with_slots} {
    Require(node_ids_.size() == num_nodes.size(), "node_ids and num_nodes differ in length");
    std::vector<NodeTypePlan> nodes;
    for (size_t t = 0; t < num_nodes.size(); ++t) {
      Require(num_nodes[t] >= 0, "num_nodes must not be negative");
      Require(!node_ids_[t] || static_cast<int64_t>(node_ids_[t]->shape(0)) == num_nodes[t], "node_ids must have one entry per node");
      nodes.push_back({num_nodes[t], node_ids_[t] ? node_ids_[t]->data() : nullptr});
    }
    const size_t count = target_types.size();
    Require(nb::len(adjacencies) == count && neighbor_types.size() == count && addresses.size() == count && fanouts.size() == count,
            "adjacencies, types, addresses and fanouts differ in length");
    std::vector<EdgeTypePlan> edges;
    for (size_t e = 0; e < count; ++e) {
      keep_.push_back(nb::borrow<nb::object>(adjacencies[e]));
      if (!nb::isinstance<Adjacency>(keep_.back())) throw nb::type_error("adjacencies must be of class Adjacency");
      const Adjacency& adjacency = nb::cast<const Adjacency&>(keep_.back());
      RequireType(target_types[e], nodes.size());
      RequireType(neighbor_types[e], nodes.size());
      Require(adjacency.num_targets() == nodes[target_types[e]].count, "an adjacency must cover its target type");
      Require(addresses[e] < (1u << 24), "an address has 24 bits");
      Require(fanouts[e].size() == fanouts[0].size() && fanouts[e].size() < 255, "all edge types need the same number of hops, below 255");
      for (const int32_t fanout : fanouts[e]) Require(fanout >= -1, "a fanout is -1, 0 or positive");
      edges.push_back({&adjacency.view(), target_types[e], neighbor_types[e], addresses[e], fanouts[e]});
    }
    num_edge_types_ = count;
    sampler_ = std::make_unique<NeighborSampler>(std::move(nodes), std::move(edges), options_);
  }

  void Sample(int seed_type, const Array<const int64_t>& seeds, uint64_t key) {
    RequireType(seed_type, node_ids_.size());
    nb::gil_scoped_release release;
    sampler_->Sample(seed_type, Span(seeds), key);
  }

  std::vector<int64_t> NodesPerHop(int type) const { return Nodes(type).per_hop; }
  std::vector<int64_t> EdgesPerHop(int type) const { return Edges(type).per_hop; }
  int64_t NumTargets(int type) const { return static_cast<int64_t>(Edges(type).colptr.size()) - 1; }

  void WritePositions(int type, const Array<int64_t>& out) const { Write(Nodes(type).positions, out); }
  void WriteRows(int type, const Array<int32_t>& out) const { Write(Edges(type).rows, out); }
  void WriteColptr(int type, const Array<int64_t>& out) const { Write(Edges(type).colptr, out); }

  void WriteEdgeIds(int type, const Array<int64_t>& out) const {
    Require(options_.with_edge_ids, "this sampler does not collect edge ids");
    Write(Edges(type).edge_ids, out);
  }

  void WriteSlots(int type, const Array<int64_t>& out) const {
    Require(options_.with_slots, "this sampler does not collect slots");
    Write(Edges(type).slots, out);
  }

  void WriteNodeIds(int type, const Array<int64_t>& out) const {
    const std::span<const int64_t> positions = Nodes(type).positions;
    const int64_t* ids = sampler_->Plan(type).ids;
    if (ids == nullptr) return Write(positions, out);
    RequireLength(positions.size(), out.shape(0));
    nb::gil_scoped_release release;
    for (size_t i = 0; i < positions.size(); ++i) out.data()[i] = ids[positions[i]];
  }

 private:
  static void RequireType(int type, size_t count) {
    Require(type >= 0 && static_cast<size_t>(type) < count, "type " + std::to_string(type) + " of " + std::to_string(count));
  }
  static void RequireLength(size_t have, size_t given) {
    Require(have == given, "out has " + std::to_string(given) + " entries, needs " + std::to_string(have));
  }
  SampledNodes Nodes(int type) const {
    RequireType(type, node_ids_.size());
    return sampler_->Nodes(type);
  }
  SampledEdges Edges(int type) const {
    RequireType(type, num_edge_types_);
    return sampler_->Edges(type);
  }

  template <typename T>
  static void Write(std::span<const T> values, const Array<T>& out) {
    RequireLength(values.size(), out.shape(0));
    nb::gil_scoped_release release;
    std::copy(values.begin(), values.end(), out.data());
  }

  std::vector<nb::object> keep_;
  std::vector<std::optional<Array<const int64_t>>> node_ids_;
  SamplerOptions options_;
  size_t num_edge_types_ = 0;
  std::unique_ptr<NeighborSampler> sampler_;
};

}  // namespace
}  // namespace gigl

NB_MODULE(_core, m) {
  using namespace gigl;
  m.def("philox", &BindPhilox, "key"_a, "low"_a, "high"_a);
  m.def("batch_key", [](uint64_t run_seed, uint64_t epoch, const Array<const int64_t>& seeds) {
    return BatchKey(run_seed, epoch, Span(seeds));
  }, "run_seed"_a, "epoch"_a, "seeds"_a.noconvert());
  m.def("permutation", &BindPermutation, "run_seed"_a, "epoch"_a, "out"_a.noconvert());
  m.def("build_adjacency", &BindBuildAdjacency, "targets"_a.noconvert(), "neighbor_ids"_a.noconvert(),
        "edge_ids"_a.noconvert(), "indptr"_a.noconvert(), "order"_a.noconvert());
  m.def("gather", &BindGather, "parts"_a.noconvert(), "bounds"_a.noconvert(), "positions"_a.noconvert(), "out"_a.noconvert());
  m.def("expand_edges", &BindExpandEdges, "rows"_a.noconvert(), "colptr"_a.noconvert(), "out"_a.noconvert());

  nb::class_<Adjacency>(m, "Adjacency")
      .def(nb::init<const Array<const int64_t>&, std::vector<Array<const int64_t>>, std::vector<AnyArray>, std::vector<AnyArray>>(),
           "bounds"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(), "edge_ids"_a.noconvert())
      .def_prop_ro("num_edges", &Adjacency::num_edges);

  nb::class_<BoundSampler>(m, "NeighborSampler")
      .def(nb::init<nb::sequence, const std::vector<int>&, const std::vector<int>&, const std::vector<uint32_t>&,
                    const std::vector<std::vector<int32_t>>&, std::vector<std::optional<Array<const int64_t>>>,
                    const std::vector<int64_t>&, bool, bool, bool>(),
           nb::kw_only(), "adjacencies"_a, "target_types"_a, "neighbor_types"_a, "addresses"_a, "fanouts"_a, "node_ids"_a.noconvert(),
           "num_nodes"_a, "replace"_a, "with_edge_ids"_a, "with_slots"_a)
      .def("sample", &BoundSampler::Sample, "seed_type"_a, "seeds"_a.noconvert(), "key"_a)
      .def("nodes_per_hop", &BoundSampler::NodesPerHop, "node_type"_a)
      .def("edges_per_hop", &BoundSampler::EdgesPerHop, "edge_type"_a)
      .def("num_targets", &BoundSampler::NumTargets, "edge_type"_a)
      .def("write_positions", &BoundSampler::WritePositions, "node_type"_a, "out"_a.noconvert())
      .def("write_node_ids", &BoundSampler::WriteNodeIds, "node_type"_a, "out"_a.noconvert())
      .def("write_rows", &BoundSampler::WriteRows, "edge_type"_a, "out"_a.noconvert())
      .def("write_colptr", &BoundSampler::WriteColptr, "edge_type"_a, "out"_a.noconvert())
      .def("write_edge_ids", &BoundSampler::WriteEdgeIds, "edge_type"_a, "out"_a.noconvert())
      .def("write_slots", &BoundSampler::WriteSlots, "edge_type"_a, "out"_a.noconvert());
}
