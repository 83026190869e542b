#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bound_adjacency.h"
#include "bound_batch.h"
#include "ppr_batch.h"

namespace gigl {
namespace {

template <typename T>
NewArray<T> Copied(std::span<const T> values) {
  std::unique_ptr<T[]> copy(new T[values.size() + 1]);
  std::copy(values.begin(), values.end(), copy.get());
  return HandOver(std::move(copy), values.size());
}

// A batch with the neighbours of its seeds.
class BoundPpr : public BoundBatch {
 public:
  virtual const PprBatch& ppr() const = 0;
  const Batch& batch() const override { return ppr().batch(); }

  // Local seeds, local nodes, scores and hops.
  nb::tuple Neighbors(int type) const {
    RequireType(type, batch().num_node_types());
    const PprNeighbors& found = ppr().neighbors(type);
    return nb::make_tuple(Copied(found.seeds.view()), Copied(found.locals.view()), Copied(found.scores.view()),
                          Copied(found.hops.view()));
  }
};

void CheckRule(const PprRule& rule) {
  Require(rule.alpha > 0 && rule.alpha < 1, "alpha must lie in (0, 1)");
  Require(rule.eps > 0 && rule.eps < 1, "eps must lie in (0, 1)");
  Require(rule.max_nodes >= 1 && rule.max_neighbors >= 1 && rule.max_rounds >= 1, "numbers of a rule must be positive");
}

class BoundPprSampler : public BoundPpr {
 public:
  BoundPprSampler(nb::sequence adjacencies, const std::vector<int>& target_types, const std::vector<int>& neighbor_types,
                  const std::vector<uint32_t>& addresses, std::vector<NodeIds> node_ids, const std::vector<int64_t>& num_nodes,
                  int seed_type, const PprRule& rule)
      : nodes_(std::move(node_ids), num_nodes) {
    const size_t count = target_types.size();
    Require(nb::len(adjacencies) == count && neighbor_types.size() == count && addresses.size() == count,
            "adjacencies, types and addresses differ in length");
    RequireType(seed_type, nodes_.size());
    CheckRule(rule);
    std::vector<PprEdgeType> edges;
    for (size_t e = 0; e < count; ++e) {
      keep_.push_back(nb::borrow<nb::object>(adjacencies[e]));
      if (!nb::isinstance<Adjacency>(keep_.back())) throw nb::type_error("adjacencies must be of class Adjacency");
      const AdjacencyView& view = nb::cast<const Adjacency&>(keep_.back()).view();
      RequireType(target_types[e], nodes_.size());
      RequireType(neighbor_types[e], nodes_.size());
      Require(view.first_target() == 0 && view.end_target() == nodes_.plans()[target_types[e]].count, "an adjacency must cover its target type");
      Require(addresses[e] < (1u << 24), "an address has 24 bits");
      edges.push_back({&view, {target_types[e], neighbor_types[e]}, addresses[e]});
    }
    sampler_.emplace(nodes_.plans(), edges, seed_type, rule);
  }

  const PprBatch& ppr() const override { return *sampler_; }
  size_t ScratchBytes() const override { return sampler_->nbytes(); }

  void Sample(const Array<const int64_t>& seeds, int64_t max_edges) {
    RequireBound(max_edges);
    ReleaseGil release;
    sampler_->Sample(Span(seeds), max_edges);
  }

 protected:
  Batch& mutable_batch() override { return sampler_->batch(); }

 private:
  std::vector<nb::object> keep_;
  NodePlans nodes_;
  std::optional<PprSampler> sampler_;
};

class BoundPprBuilder : public BoundPpr {
 public:
  BoundPprBuilder(const std::vector<int>& target_types, const std::vector<int>& neighbor_types, std::vector<NodeIds> node_ids,
                  const std::vector<int64_t>& num_nodes, int seed_type, const PprRule& rule)
      : nodes_(std::move(node_ids), num_nodes) {
    Require(target_types.size() == neighbor_types.size(), "target_types and neighbor_types differ in length");
    RequireType(seed_type, nodes_.size());
    CheckRule(rule);
    std::vector<EdgeEnds> ends;
    for (size_t e = 0; e < target_types.size(); ++e) {
      RequireType(target_types[e], nodes_.size());
      RequireType(neighbor_types[e], nodes_.size());
      ends.push_back({target_types[e], neighbor_types[e]});
    }
    builder_.emplace(nodes_.plans(), ends, seed_type, rule);
  }

  const PprBatch& ppr() const override { return *builder_; }
  size_t ScratchBytes() const override { return builder_->nbytes(); }

  void Begin(const Array<const int64_t>& seeds, int64_t max_edges) {
    RequireBound(max_edges);
    ReleaseGil release;
    builder_->Begin(Span(seeds), max_edges);
  }

  int64_t Room() const { return batch().room().left(); }

  // Node type, fanout and positions.
  nb::list Advance() {
    std::vector<PprRequest> requests;
    {
      ReleaseGil release;
      requests = builder_->Advance();
    }
    nb::list result;
    for (const PprRequest& each : requests) {
      result.append(nb::make_tuple(each.type, each.fanout, Copied<int64_t>(each.positions)));
    }
    return result;
  }

  void Append(int type, int32_t fanout, const Array<const int64_t>& positions,
              const std::vector<std::tuple<Array<const int32_t>, AnyArray>>& arrays) {
    RequireType(type, batch().num_node_types());
    std::vector<PprAnswer> answers;
    for (const auto& [counts, neighbors] : arrays) {
      answers.push_back({Span(counts), neighbors.data(), static_cast<int64_t>(neighbors.shape(0)), IsWide(neighbors, "neighbors")});
    }
    ReleaseGil release;
    builder_->Append(type, fanout, Span(positions), answers);
  }

 protected:
  Batch& mutable_batch() override { return builder_->batch(); }

 private:
  NodePlans nodes_;
  std::optional<PprBuilder> builder_;
};

}  // namespace

void BindPpr(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<PprRule>(m, "PPRRule")
      .def("__init__",
           [](PprRule* self, double alpha, double eps, int64_t max_nodes, bool top_up, int32_t max_neighbors, int64_t max_rounds) {
             const PprRule rule{alpha, eps, max_nodes, top_up, max_neighbors, max_rounds};
             CheckRule(rule);
             new (self) PprRule(rule);
           },
           nb::kw_only(), "alpha"_a, "eps"_a, "max_nodes"_a, "top_up"_a, "max_neighbors"_a, "max_rounds"_a);

  nb::class_<BoundPpr, BoundBatch>(m, "PPRBatch").def("neighbors", &BoundPpr::Neighbors, "node_type"_a);

  nb::class_<BoundPprSampler, BoundPpr>(m, "PPRSampler")
      .def(nb::init<nb::sequence, const std::vector<int>&, const std::vector<int>&, const std::vector<uint32_t>&,
                    std::vector<NodeIds>, const std::vector<int64_t>&, int, const PprRule&>(),
           nb::kw_only(), "adjacencies"_a, "target_types"_a, "neighbor_types"_a, "addresses"_a, "node_ids"_a.noconvert(),
           "num_nodes"_a, "seed_type"_a, "rule"_a)
      .def("sample", &BoundPprSampler::Sample, "seeds"_a.noconvert(), nb::kw_only(), "max_edges"_a = INT64_MAX);

  nb::class_<BoundPprBuilder, BoundPpr>(m, "PPRBuilder")
      .def(nb::init<const std::vector<int>&, const std::vector<int>&, std::vector<NodeIds>, const std::vector<int64_t>&, int,
                    const PprRule&>(),
           nb::kw_only(), "target_types"_a, "neighbor_types"_a, "node_ids"_a.noconvert(), "num_nodes"_a, "seed_type"_a, "rule"_a)
      .def("begin", &BoundPprBuilder::Begin, "seeds"_a.noconvert(), nb::kw_only(), "max_edges"_a = INT64_MAX)
      .def_prop_ro("room", &BoundPprBuilder::Room)
      .def("advance", &BoundPprBuilder::Advance)
      .def("append", &BoundPprBuilder::Append, "node_type"_a, "fanout"_a, "positions"_a.noconvert(), "answers"_a.noconvert());
}

}  // namespace gigl
