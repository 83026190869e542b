#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <variant>

#include "bound_adjacency.h"
#include "edge_lookup.h"
#include "hop.h"
#include "induced.h"

namespace gigl {
namespace {

void BindBuildAdjacency(const Array<const int64_t>& targets, const Array<const int64_t>& neighbor_ids,
                        const Array<const int64_t>& edge_ids, const Array<int64_t>& indptr,
                        const Array<int64_t>& order) {
  Require(neighbor_ids.shape(0) == targets.shape(0), "neighbor_ids and targets differ in length");
  Require(edge_ids.shape(0) == targets.shape(0), "edge_ids and targets differ in length");
  Require(order.shape(0) == targets.shape(0), "order and targets differ in length");
  Require(indptr.shape(0) > 0, "indptr needs at least one entry");
  int64_t wrong;
  {
    ReleaseGil release;
    wrong = BuildAdjacency(Span(targets), Span(neighbor_ids), Span(edge_ids), Span(indptr), Span(order));
  }
  Require(wrong < 0, "edge " + std::to_string(wrong) + " has a target outside [0, " +
                         std::to_string(indptr.shape(0) - 1) + ")");
}

HopDraw CheckedDraw(uint64_t key, uint32_t address, int hop, const DrawRule& rule, bool disjoint, const Times& times,
                    const Times& starts, std::span<const int64_t> targets, uint64_t number) {
  Require(address < (1u << 24), "an address has 24 bits");
  Require(hop >= 0 && hop < 254, "a hop lies in [0, 254)");
  if (!rule.timed()) return {key, address, hop, rule, disjoint, {}, number};
  Require(disjoint && times, "a timed rule needs disjoint trees and their tree_times");
  const TreeSpans trees{SpanOf(times), SpanOf(starts)};
  RequireTimes(targets, trees, rule.window);
  return {key, address, hop, rule, disjoint, trees};
}

// An array of either width as Python gets it; None where it was not asked for.
nb::object HandOverEither(NarrowOrWide&& buffer) {
  return std::visit([](auto& each) { return nb::cast(gigl::HandOver(std::move(each))); }, buffer);
}

nb::tuple BindDrawHop(const Adjacency& adjacency, const NodeIds& node_ids, int64_t num_neighbors,
                      const Array<const int64_t>& targets, uint64_t key, uint32_t address, int hop, const DrawRule& rule,
                      bool with_edge_ids, bool with_slots, int64_t max_edges, bool disjoint, const NodeIds& neighbor_ids,
                      const Times& tree_times, const Times& tree_starts, const Times& bounds, uint64_t number) {
  const HopDraw draw = CheckedDraw(key, address, hop, rule, disjoint, tree_times, tree_starts, Span(targets), number);
  Require(SpanOf(bounds).size() == (rule.monotone ? targets.shape(0) : 0), "a monotone rule needs bounds, one for each target");
  Require(max_edges >= 0, "max_edges must not be negative");
  adjacency.RequireFit(rule);
  Require(!neighbor_ids || static_cast<int64_t>(neighbor_ids->shape(0)) >= num_neighbors, "neighbor_ids must have an entry for every neighbour");
  Require(!node_ids || static_cast<int64_t>(node_ids->shape(0)) >= adjacency.view().end_target(), "node_ids must have an entry for every target");
  DrawnHop drawn;
  {
    ReleaseGil release;
    drawn = DrawHop(adjacency.view(), node_ids ? node_ids->data() : nullptr,
                    {num_neighbors, neighbor_ids ? neighbor_ids->data() : nullptr}, Span(targets), draw,
                    {with_edge_ids, with_slots}, max_edges, SpanOf(bounds));
  }
  return nb::make_tuple(HandOver(std::move(drawn.counts)), HandOverEither(std::move(drawn.positions)),
                        with_edge_ids ? HandOverEither(std::move(drawn.edge_ids)) : nb::none(),
                        with_slots ? nb::cast(HandOver(std::move(drawn.slots))) : nb::none(),
                        rule.monotone ? nb::cast(HandOver(std::move(drawn.times))) : nb::none());
}

nb::tuple BindInducedEdges(const Adjacency& adjacency, const NodeIds& neighbor_ids, int64_t num_neighbors,
                           const Array<const int64_t>& targets, const Array<const int64_t>& nodes, bool weighted,
                           bool with_edge_ids, bool with_slots, int64_t max_edges) {
  Require(num_neighbors >= 0, "num_neighbors must not be negative");
  Require(max_edges >= 0, "max_edges must not be negative");
  Require(!weighted || adjacency.has_weights(), "edges without weight need an adjacency with weights");
  Require(!neighbor_ids || static_cast<int64_t>(neighbor_ids->shape(0)) >= num_neighbors, "neighbor_ids must have an entry for every neighbour");
  DrawnHop found;
  {
    ReleaseGil release;
    found = InducedEdges(adjacency.view(), {num_neighbors, neighbor_ids ? neighbor_ids->data() : nullptr}, Span(targets),
                         Span(nodes), weighted, {with_edge_ids, with_slots}, max_edges);
  }
  return nb::make_tuple(HandOver(std::move(found.counts)), HandOverEither(std::move(found.positions)),
                        with_edge_ids ? HandOverEither(std::move(found.edge_ids)) : nb::none(),
                        with_slots ? nb::cast(HandOver(std::move(found.slots))) : nb::none());
}

void BindFindEdges(const Adjacency& adjacency, const NodeIds& neighbor_ids, int64_t num_neighbors,
                   const Array<const int64_t>& targets, const Array<const int64_t>& neighbors,
                   const Array<uint8_t>& found) {
  Require(num_neighbors >= 0, "num_neighbors must not be negative");
  Require(!neighbor_ids || static_cast<int64_t>(neighbor_ids->shape(0)) >= num_neighbors, "neighbor_ids must have an entry for every neighbour");
  Require(neighbors.shape(0) == targets.shape(0) && found.shape(0) == targets.shape(0), "targets, neighbors and found differ in length");
  ReleaseGil release;
  FindEdges(adjacency.view(), neighbor_ids ? neighbor_ids->data() : nullptr, num_neighbors, Span(targets), Span(neighbors),
            Span(found));
}

}  // namespace

void BindAdjacency(nb::module_& m) {
  using namespace nb::literals;
  m.def("build_adjacency", &BindBuildAdjacency, "targets"_a.noconvert(), "neighbor_ids"_a.noconvert(),
        "edge_ids"_a.noconvert(), "indptr"_a.noconvert(), "order"_a.noconvert());

  nb::class_<DrawRule>(m, "DrawRule")
      .def("__init__",
           [](DrawRule* self, int32_t fanout, bool replace, bool weighted, bool labor, bool timed, bool last, bool window,
              bool monotone, bool strictly_earlier, int32_t batch_dependency) {
             new (self) DrawRule(DrawRule::Of({.fanout = fanout,
                                               .replace = replace,
                                               .weighted = weighted,
                                               .labor = labor,
                                               .timed = timed,
                                               .last = last,
                                               .window = window,
                                               .monotone = monotone,
                                               .strictly_earlier = strictly_earlier,
                                               .batch_dependency = batch_dependency}));
           },
           "fanout"_a, nb::kw_only(), "replace"_a = false, "weighted"_a = false, "labor"_a = false, "timed"_a = false,
           "last"_a = false, "window"_a = false, "monotone"_a = false,
           "strictly_earlier"_a = false, "batch_dependency"_a = 1)
      .def_ro("fanout", &DrawRule::fanout)
      .def_ro("replace", &DrawRule::replace)
      .def_prop_ro("weighted", &DrawRule::weighted)
      .def_prop_ro("labor", &DrawRule::labor)
      .def_prop_ro("timed", &DrawRule::timed)
      .def_prop_ro("last", &DrawRule::last)
      .def_ro("window", &DrawRule::window)
      .def_ro("monotone", &DrawRule::monotone)
      .def_ro("strictly_earlier", &DrawRule::strictly_earlier)
      .def_ro("batch_dependency", &DrawRule::batch_dependency);

  nb::class_<Adjacency>(m, "Adjacency")
      .def(nb::init<const Array<const int64_t>&, std::vector<Array<const int64_t>>, std::vector<AnyArray>, std::vector<AnyArray>,
                    std::vector<Array<const int64_t>>, std::vector<Array<const int64_t>>, std::vector<Array<const int64_t>>,
                    std::vector<AnyArray>, std::vector<Array<const int64_t>>, bool>(),
           "bounds"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(), "edge_ids"_a.noconvert(),
           "weight_sums"_a.noconvert() = nb::list(), "weight_counts"_a.noconvert() = nb::list(),
           nb::kw_only(), "times"_a.noconvert() = nb::list(), "time_slots"_a.noconvert() = nb::list(),
           "time_sums"_a.noconvert() = nb::list(), "on_disk"_a = false)
      .def_prop_ro("num_edges", &Adjacency::num_edges);

  m.def("find_edges", &BindFindEdges, "adjacency"_a, "neighbor_ids"_a.noconvert().none(), "num_neighbors"_a,
        "targets"_a.noconvert(), "neighbors"_a.noconvert(), "found"_a.noconvert());

  m.def("induced_edges", &BindInducedEdges, "adjacency"_a, "neighbor_ids"_a.noconvert().none(), "num_neighbors"_a,
        "targets"_a.noconvert(), "nodes"_a.noconvert(), nb::kw_only(), "weighted"_a, "with_edge_ids"_a, "with_slots"_a,
        "max_edges"_a = INT64_MAX);

  m.def("draw_hop", &BindDrawHop, "adjacency"_a, "node_ids"_a.noconvert().none(), "num_neighbors"_a, "targets"_a.noconvert(),
        nb::kw_only(), "key"_a, "address"_a, "hop"_a, "rule"_a, "with_edge_ids"_a, "with_slots"_a, "max_edges"_a = INT64_MAX,
        "disjoint"_a = false, "neighbor_ids"_a.noconvert().none() = nb::none(), "tree_times"_a.noconvert().none() = nb::none(),
        "tree_starts"_a.noconvert().none() = nb::none(), "bounds"_a.noconvert().none() = nb::none(), "number"_a = 0);
}

}  // namespace gigl
