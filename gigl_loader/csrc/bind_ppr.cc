#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
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

  // Local seeds, local nodes, scores and hops: by channel.
  nb::tuple Neighbors(int seed_type, int type) const {
    RequireType(seed_type, batch().num_node_types());
    RequireType(type, batch().num_node_types());
    const PprNeighbors& found = ppr().neighbors(seed_type, type);
    nb::list scores, hops;
    for (const auto& each : found.scores) scores.append(Copied(each.view()));
    for (const auto& each : found.hops) hops.append(Copied(each.view()));
    return nb::make_tuple(Copied(found.seeds.view()), Copied(found.locals.view()), scores, hops);
  }
};

using ExcludedArrays = std::vector<std::tuple<int, Array<const int64_t>, Array<const int64_t>>>;

std::vector<PprExclusion> Exclusions(const ExcludedArrays& arrays) {
  std::vector<PprExclusion> excluded;
  for (const auto& [edge_type, targets, neighbors] : arrays) {
    Require(edge_type >= 0 && edge_type < (1 << 24), "an edge type is a number");
    Require(targets.shape(0) == neighbors.shape(0), "targets and neighbors differ in length");
    excluded.push_back({edge_type, Span(targets), Span(neighbors)});
  }
  return excluded;
}

void CheckRule(const PprRule& rule) {
  Require(rule.alpha > 0 && rule.alpha < 1, "alpha must lie in (0, 1)");
  Require(rule.eps > 0 && rule.eps < 1, "eps must lie in (0, 1)");
  Require(rule.max_nodes >= 1 && rule.max_neighbors >= 1 && rule.max_rounds >= 1, "numbers of a rule must be positive");
  const int num_states = static_cast<int>(rule.states.size());
  for (const PprEdges& edges : rule.edges) {
    RequireType(edges.state, num_states);
    RequireType(edges.next_state, num_states);
    Require(edges.edge_type >= 0, "an edge type is a number");
  }
  Require(!rule.starts.empty() && rule.shares.size() == rule.starts.size(), "a rule has a channel, and a share for each");
  int64_t shared = 0;
  for (const int64_t share : rule.shares) {
    Require(share >= 0, "shares must not be negative");
    shared += share;
  }
  Require(shared == rule.max_nodes, "shares must add up to max_nodes");
}

// Throws std::invalid_argument unless the states of a rule are of these node types.
void RequireFit(const PprRule& rule, int num_types) {
  for (const PprState& state : rule.states) RequireType(state.node_type, num_types);
  for (const std::vector<int>& starts : rule.starts) {
    Require(static_cast<int>(starts.size()) == num_types, "a channel has a start for each node type");
    for (int type = 0; type < num_types; ++type) {
      if (starts[type] < 0) continue;
      RequireType(starts[type], static_cast<int>(rule.states.size()));
      Require(rule.states[starts[type]].node_type == type && rule.states[starts[type]].kept, "seeds are kept, in a state of their type");
    }
  }
}

class BoundPprSampler : public BoundPpr {
 public:
  BoundPprSampler(nb::sequence adjacencies, const std::vector<uint32_t>& addresses, std::vector<NodeIds> node_ids,
                  const std::vector<int64_t>& num_nodes, const PprRule& rule)
      : nodes_(std::move(node_ids), num_nodes) {
    Require(nb::len(adjacencies) == addresses.size(), "adjacencies and addresses differ in length");
    Require(!rule.weighted, "weights are those of answers");
    RequireFit(rule, nodes_.size());
    std::vector<PprLists> lists;
    for (size_t e = 0; e < addresses.size(); ++e) {
      keep_.push_back(nb::borrow<nb::object>(adjacencies[e]));
      if (!nb::isinstance<Adjacency>(keep_.back())) throw nb::type_error("adjacencies must be of class Adjacency");
      Require(addresses[e] < (1u << 24), "an address has 24 bits");
      lists.push_back({&nb::cast<const Adjacency&>(keep_.back()).view(), addresses[e]});
    }
    for (const PprEdges& edges : rule.edges) {
      RequireType(edges.edge_type, static_cast<int>(lists.size()));
      const AdjacencyView& view = *lists[edges.edge_type].adjacency;
      const int64_t count = nodes_.plans()[rule.states[edges.state].node_type].count;
      Require(view.first_target() == 0 && view.end_target() == count, "an adjacency must cover its target type");
    }
    sampler_.emplace(nodes_.plans(), lists, rule);
  }

  const PprBatch& ppr() const override { return *sampler_; }
  size_t ScratchBytes() const override { return sampler_->nbytes(); }

  void Sample(const std::vector<SeedArrays>& seeds, const ExcludedArrays& excluded, int64_t max_edges) {
    RequireBound(max_edges);
    const std::vector<SeedGroup> groups = Groups(seeds, nodes_.size());
    const std::vector<PprExclusion> exclusions = Exclusions(excluded);
    ReleaseGil release;
    sampler_->Sample(groups, exclusions, max_edges);
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
  BoundPprBuilder(std::vector<NodeIds> node_ids, const std::vector<int64_t>& num_nodes, const PprRule& rule)
      : nodes_(std::move(node_ids), num_nodes) {
    RequireFit(rule, nodes_.size());
    builder_.emplace(nodes_.plans(), rule);
  }

  const PprBatch& ppr() const override { return *builder_; }
  size_t ScratchBytes() const override { return builder_->nbytes(); }

  void Begin(const std::vector<SeedArrays>& seeds, const ExcludedArrays& excluded, int64_t max_edges) {
    RequireBound(max_edges);
    const std::vector<SeedGroup> groups = Groups(seeds, nodes_.size());
    const std::vector<PprExclusion> exclusions = Exclusions(excluded);
    ReleaseGil release;
    builder_->Begin(groups, exclusions, max_edges);
  }

  int64_t Room() const { return batch().room().left(); }

  // State, fanout and positions.
  nb::list Advance() {
    std::vector<PprRequest> requests;
    {
      ReleaseGil release;
      requests = builder_->Advance();
    }
    nb::list result;
    for (const PprRequest& each : requests) {
      result.append(nb::make_tuple(each.state, each.fanout, Copied<int64_t>(each.positions)));
    }
    return result;
  }

  void Append(int state, int32_t fanout, const Array<const int64_t>& positions,
              const std::vector<std::tuple<Array<const int32_t>, AnyArray, std::optional<Array<const double>>>>& arrays) {
    RequireType(state, static_cast<int>(builder_->rule().states.size()));
    std::vector<PprAnswer> answers;
    for (const auto& [counts, neighbors, weights] : arrays) {
      answers.push_back({Span(counts), neighbors.data(), static_cast<int64_t>(neighbors.shape(0)), IsWide(neighbors, "neighbors"),
                         weights ? Span(*weights) : std::span<const double>()});
    }
    ReleaseGil release;
    builder_->Append(state, fanout, Span(positions), answers);
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
           [](PprRule* self, double alpha, double eps, int64_t max_nodes, bool top_up, int32_t max_neighbors, int64_t max_rounds,
              bool weighted, const std::vector<std::pair<int, bool>>& states, const std::vector<std::tuple<int, int, int>>& edges,
              const std::vector<std::vector<int>>& starts, const std::vector<int64_t>& shares) {
             PprRule rule{alpha, eps, max_nodes, top_up, max_neighbors, max_rounds, weighted, {}, {}, starts, shares};
             for (const auto& [type, kept] : states) rule.states.push_back({type, kept});
             for (const auto& [state, next, type] : edges) rule.edges.push_back({state, next, type});
             CheckRule(rule);
             new (self) PprRule(std::move(rule));
           },
           nb::kw_only(), "alpha"_a, "eps"_a, "max_nodes"_a, "top_up"_a, "max_neighbors"_a, "max_rounds"_a, "weighted"_a,
           "states"_a, "edges"_a, "starts"_a, "shares"_a);

  nb::class_<BoundPpr, BoundBatch>(m, "PPRBatch").def("neighbors", &BoundPpr::Neighbors, "seed_type"_a, "node_type"_a);

  nb::class_<BoundPprSampler, BoundPpr>(m, "PPRSampler")
      .def(nb::init<nb::sequence, const std::vector<uint32_t>&, std::vector<NodeIds>, const std::vector<int64_t>&, const PprRule&>(),
           nb::kw_only(), "adjacencies"_a, "addresses"_a, "node_ids"_a.noconvert(), "num_nodes"_a, "rule"_a)
      .def("sample", &BoundPprSampler::Sample, "seeds"_a.noconvert(), nb::kw_only(), "excluded"_a.noconvert() = ExcludedArrays(),
           "max_edges"_a = INT64_MAX);

  nb::class_<BoundPprBuilder, BoundPpr>(m, "PPRBuilder")
      .def(nb::init<std::vector<NodeIds>, const std::vector<int64_t>&, const PprRule&>(), nb::kw_only(), "node_ids"_a.noconvert(),
           "num_nodes"_a, "rule"_a)
      .def("begin", &BoundPprBuilder::Begin, "seeds"_a.noconvert(), nb::kw_only(), "excluded"_a.noconvert() = ExcludedArrays(),
           "max_edges"_a = INT64_MAX)
      .def_prop_ro("room", &BoundPprBuilder::Room)
      .def("advance", &BoundPprBuilder::Advance)
      .def("append", &BoundPprBuilder::Append, "state"_a, "fanout"_a, "positions"_a.noconvert(), "answers"_a.noconvert());
}

}  // namespace gigl
