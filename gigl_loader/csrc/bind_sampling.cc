#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "batch.h"
#include "bound_adjacency.h"
#include "bound_batch.h"
#include "neighbor_sampler.h"
#include "routing.h"
#include "stitch.h"
#include "tree.h"

namespace gigl {
namespace {

// A sampler with the objects that its plans point into.
class BoundSampler : public BoundBatch {
 public:
  BoundSampler(nb::sequence adjacencies, const std::vector<int>& target_types,
               const std::vector<int>& neighbor_types, const std::vector<uint32_t>& addresses,
               const std::vector<std::vector<DrawRule>>& rules, std::vector<NodeIds> node_ids,
               const std::vector<int64_t>& num_nodes, bool with_edge_ids, bool with_slots, bool disjoint, bool induced)
      : nodes_(std::move(node_ids), num_nodes) {
    const size_t count = target_types.size();
    Require(nb::len(adjacencies) == count && neighbor_types.size() == count && addresses.size() == count && rules.size() == count,
            "adjacencies, types, addresses and rules differ in length");
    std::vector<EdgeTypePlan> edges;
    for (size_t e = 0; e < count; ++e) {
      keep_.push_back(nb::borrow<nb::object>(adjacencies[e]));
      if (!nb::isinstance<Adjacency>(keep_.back())) throw nb::type_error("adjacencies must be of class Adjacency");
      const Adjacency& adjacency = nb::cast<const Adjacency&>(keep_.back());
      const AdjacencyView& view = adjacency.view();
      for (const DrawRule& rule : rules[e]) {
        adjacency.RequireFit(rule);
        Require(!rule.timed() || disjoint, "a timed rule needs disjoint trees");
        timed_ |= rule.timed();
        windows_ |= rule.window;
      }
      RequireType(target_types[e], nodes_.size());
      RequireType(neighbor_types[e], nodes_.size());
      Require(view.first_target() == 0 && view.end_target() == nodes_.plans()[target_types[e]].count, "an adjacency must cover its target type");
      Require(addresses[e] < (1u << 24), "an address has 24 bits");
      Require(rules[e].size() == rules[0].size() && rules[e].size() < 255, "all edge types need the same number of hops, below 255");
      edges.push_back({&view, {target_types[e], neighbor_types[e]}, addresses[e], rules[e]});
    }
    sampler_.emplace(nodes_.plans(), std::move(edges), Collect{with_edge_ids, with_slots}, disjoint, induced);
  }

  const Batch& batch() const override { return sampler_->batch(); }

  size_t ScratchBytes() const override { return sampler_->nbytes(); }

  void Sample(const std::vector<SeedArrays>& seeds, uint64_t key, int64_t max_edges, const Times& tree_times,
              const Times& tree_starts, uint64_t number) {
    const std::vector<SeedGroup> groups = Groups(seeds, nodes_.size());
    RequireBound(max_edges);
    const TreeSpans trees{SpanOf(tree_times), SpanOf(tree_starts)};
    if (timed_) {
      for (const SeedGroup& group : groups) RequireTimes(group.seeds, trees, windows_);
    }
    ReleaseGil release;
    sampler_->Sample(groups, key, max_edges, trees, number);
  }

 protected:
  Batch& mutable_batch() override { return sampler_->batch(); }

 private:
  bool timed_ = false;
  bool windows_ = false;
  std::vector<nb::object> keep_;
  NodePlans nodes_;
  std::optional<NeighborSampler> sampler_;
};

// What a partition answered: counts, positions, edge ids and slots.
using AnswerArrays = std::tuple<Array<const int32_t>, AnyArray, std::optional<AnyArray>, std::optional<Array<const int64_t>>>;

// A batch that is put together hop by hop from the answers of partitions.
class BatchBuilder : public BoundBatch {
 public:
  BatchBuilder(const std::vector<int>& target_types, const std::vector<int>& neighbor_types,
               std::vector<NodeIds> node_ids, const std::vector<int64_t>& num_nodes,
               std::vector<Array<const int64_t>> bounds, bool with_edge_ids, bool with_slots, bool disjoint, bool induced)
      : nodes_(std::move(node_ids), num_nodes), bounds_(std::move(bounds)), owners_(num_nodes.size()) {
    Require(target_types.size() == neighbor_types.size(), "target_types and neighbor_types differ in length");
    Require(bounds_.size() == num_nodes.size(), "bounds and num_nodes differ in length");
    for (size_t t = 0; t < bounds_.size(); ++t) CheckBounds(Span(bounds_[t]), num_nodes[t]);
    std::vector<EdgeEnds> ends;
    for (size_t e = 0; e < target_types.size(); ++e) {
      RequireType(target_types[e], nodes_.size());
      RequireType(neighbor_types[e], nodes_.size());
      ends.push_back({target_types[e], neighbor_types[e]});
    }
    batch_.emplace(nodes_.plans(), ends, Collect{with_edge_ids, with_slots}, disjoint, induced);
  }

  const Batch& batch() const override { return *batch_; }

  // With `tree_times`, the batch is monotone.
  void Begin(const std::vector<SeedArrays>& seeds, int64_t max_edges, const Times& tree_times) {
    const std::vector<SeedGroup> groups = Groups(seeds, nodes_.size());
    RequireBound(max_edges);
    if (tree_times) {
      Require(batch_->disjoint(), "a timed rule needs disjoint trees");
      for (const SeedGroup& group : groups) RequireTimes(group.seeds, {Span(*tree_times), {}}, false);
    }
    ForgetOwners();
    ReleaseGil release;
    batch_->Begin(groups, max_edges, SpanOf(tree_times));
  }

  // How many more edges the batch may take.
  int64_t Room() const { return batch_->room().left(); }

  void EndHop() {
    ForgetOwners();
    batch_->EndHop();
  }

  void BeginInduced() {
    Require(batch_->induced(), "this batch is not induced");
    ForgetOwners();
    batch_->BeginInduced();
  }

  void Skip(int edge_type) {
    const int64_t num_targets = static_cast<int64_t>(Targets(edge_type).frontier().size());
    batch_->room().Take(0, num_targets);
    batch_->edges(edge_type).AddNone(num_targets);
  }

  // The frontier of a node type by owner. Owners are kept for Append.
  std::vector<NewArray<int64_t>> Split(int node_type) {
    const std::span<const int64_t> frontier = Nodes(node_type).frontier();
    const std::span<const int64_t> bounds = Span(bounds_[node_type]);
    const size_t parts = bounds.size() - 1;
    std::vector<std::unique_ptr<int64_t[]>> mine;
    std::vector<int64_t> counts(parts);
    {
      ReleaseGil release;
      Buffer<uint16_t>& owners = owners_[node_type];
      owners.Clear();
      const std::span<uint16_t> room(owners.Extend(frontier.size()), frontier.size());
      // All are inside: their type's count ends the bounds.
      if (batch_->disjoint()) {
        std::vector<int64_t> positions(frontier.size());
        std::transform(frontier.begin(), frontier.end(), positions.begin(), PositionOf);
        FindOwners(positions, bounds, room, counts);
      } else {
        FindOwners(frontier, bounds, room, counts);
      }
      std::vector<int64_t*> next;
      for (size_t p = 0; p < parts; ++p) {
        next.push_back(mine.emplace_back(new int64_t[counts[p]]).get());
      }
      DealOut(frontier, room, next, {});
    }
    std::vector<NewArray<int64_t>> result;
    for (size_t p = 0; p < parts; ++p) result.push_back(HandOver(std::move(mine[p]), counts[p]));
    return result;
  }

  // The bounds of the frontier of a node type by owner, in a monotone batch. Its owners are those of Split.
  std::vector<NewArray<int64_t>> SplitBounds(int node_type) {
    const BatchNodes& nodes = Nodes(node_type);
    const std::span<const uint16_t> owners = owners_[node_type].view();
    Require(nodes.bounds.size() == nodes.names().size() && owners.size() == nodes.frontier().size(),
            "split the frontier of a monotone batch before its bounds");
    std::vector<Buffer<int64_t>> mine(bounds_[node_type].shape(0) - 1);
    for (size_t i = 0; i < owners.size(); ++i) mine[owners[i]].Push(nodes.bounds[nodes.frontier_begin + i]);
    std::vector<NewArray<int64_t>> result;
    for (Buffer<int64_t>& each : mine) result.push_back(HandOver(std::move(each)));
    return result;
  }

  void Append(int edge_type, const std::vector<AnswerArrays>& arrays, const std::vector<Array<const int64_t>>& times,
              bool strictly_earlier) {
    const int target_type = Targets(edge_type, arrays.size());
    Require(times.empty() || times.size() == arrays.size(), "times are those of all answers");
    std::vector<HopAnswer> answers;
    for (const auto& [counts, positions, edge_ids, slots] : arrays) {
      const size_t count = positions.shape(0);
      const Collect& collect = batch_->collect();
      Require(!collect.with_edge_ids || (edge_ids && edge_ids->shape(0) == count), "an answer needs one edge id per neighbour");
      Require(!collect.with_slots || (slots && slots->shape(0) == count), "an answer needs one slot per neighbour");
      answers.push_back({Span(counts), positions.data(), collect.with_edge_ids ? edge_ids->data() : nullptr,
                         collect.with_slots ? slots->data() : nullptr, static_cast<int64_t>(count),
                         IsWide(positions, "positions"), collect.with_edge_ids && IsWide(*edge_ids, "edge_ids")});
      if (times.empty()) continue;
      const Array<const int64_t>& of_answer = times[answers.size() - 1];
      Require(of_answer.shape(0) == count, "an answer needs one time per neighbour");
      answers.back().times = of_answer.data();
    }
    ReleaseGil release;
    Stitch(*batch_, edge_type, owners_[target_type].view(), answers, strictly_earlier);
  }

 protected:
  Batch& mutable_batch() override { return *batch_; }

 private:
  static void CheckBounds(std::span<const int64_t> bounds, int64_t count) {
    Require(bounds.size() >= 2 && static_cast<int64_t>(bounds.size()) <= kMaxPartitions, "bounds must have 1 to 65,535 parts");
    Require(bounds.front() == 0 && bounds.back() == count, "bounds must run from 0 to the number of nodes");
    RequireRising(bounds);
  }

  void ForgetOwners() {
    for (Buffer<uint16_t>& owners : owners_) owners.Clear();
  }

  const BatchNodes& Targets(int edge_type) const { return batch_->nodes(Edges(edge_type).ends.target_type); }

  int Targets(int edge_type, size_t num_answers) const {
    const int target_type = Edges(edge_type).ends.target_type;
    Require(owners_[target_type].size() == batch_->nodes(target_type).frontier().size(), "split the frontier before its answers are appended");
    Require(num_answers == bounds_[target_type].shape(0) - 1, "one answer per partition is needed");
    return target_type;
  }

  NodePlans nodes_;
  std::vector<Array<const int64_t>> bounds_;
  std::vector<Buffer<uint16_t>> owners_;  // of each type's frontier, by partition
  std::optional<Batch> batch_;
};

}  // namespace

void BindSampling(nb::module_& m) {
  using namespace nb::literals;
  nb::exception<BatchTooLarge>(m, "BatchTooLarge");

  nb::class_<BoundBatch>(m, "Batch")
      .def_prop_ro("scratch_bytes", &BoundBatch::ScratchBytes)
      .def("seed_locals", &BoundBatch::SeedLocals)
      .def("exclude", &BoundBatch::Exclude, "edge_type"_a, "targets"_a.noconvert(), "neighbors"_a.noconvert())
      .def("both_directions", &BoundBatch::BothDirections, "edge_type"_a, "reverse_type"_a)
      .def("nodes_per_hop", &BoundBatch::NodesPerHop, "node_type"_a)
      .def("edges_per_hop", &BoundBatch::EdgesPerHop, "edge_type"_a)
      .def("num_targets", &BoundBatch::NumTargets, "edge_type"_a)
      .def("write_positions", &BoundBatch::WritePositions, "node_type"_a, "out"_a.noconvert())
      .def("write_trees", &BoundBatch::WriteTrees, "node_type"_a, "out"_a.noconvert())
      .def("write_node_ids", &BoundBatch::WriteNodeIds, "node_type"_a, "out"_a.noconvert())
      .def("write_rows", &BoundBatch::WriteRows, "edge_type"_a, "out"_a.noconvert())
      .def("write_colptr", &BoundBatch::WriteColptr, "edge_type"_a, "out"_a.noconvert())
      .def("write_edge_ids", &BoundBatch::WriteEdgeIds, "edge_type"_a, "out"_a.noconvert())
      .def("write_slots", &BoundBatch::WriteSlots, "edge_type"_a, "out"_a.noconvert());

  nb::class_<BoundSampler, BoundBatch>(m, "NeighborSampler")
      .def(nb::init<nb::sequence, const std::vector<int>&, const std::vector<int>&, const std::vector<uint32_t>&,
                    const std::vector<std::vector<DrawRule>>&, std::vector<NodeIds>, const std::vector<int64_t>&, bool,
                    bool, bool, bool>(),
           nb::kw_only(), "adjacencies"_a, "target_types"_a, "neighbor_types"_a, "addresses"_a, "rules"_a, "node_ids"_a.noconvert(),
           "num_nodes"_a, "with_edge_ids"_a, "with_slots"_a, "disjoint"_a = false, "induced"_a = false)
      .def("sample", &BoundSampler::Sample, "seeds"_a.noconvert(), "key"_a,
           nb::kw_only(), "max_edges"_a = INT64_MAX, "tree_times"_a.noconvert().none() = nb::none(),
           "tree_starts"_a.noconvert().none() = nb::none(), "number"_a = 0);

  nb::class_<BatchBuilder, BoundBatch>(m, "BatchBuilder")
      .def(nb::init<const std::vector<int>&, const std::vector<int>&, std::vector<NodeIds>, const std::vector<int64_t>&,
                    std::vector<Array<const int64_t>>, bool, bool, bool, bool>(),
           nb::kw_only(), "target_types"_a, "neighbor_types"_a, "node_ids"_a.noconvert(), "num_nodes"_a,
           "bounds"_a.noconvert(), "with_edge_ids"_a, "with_slots"_a, "disjoint"_a = false, "induced"_a = false)
      .def("begin", &BatchBuilder::Begin, "seeds"_a.noconvert(), nb::kw_only(), "max_edges"_a = INT64_MAX,
           "tree_times"_a.noconvert().none() = nb::none())
      .def_prop_ro("room", &BatchBuilder::Room)
      .def("split", &BatchBuilder::Split, "node_type"_a)
      .def("split_bounds", &BatchBuilder::SplitBounds, "node_type"_a)
      .def("append", &BatchBuilder::Append, "edge_type"_a, "answers"_a.noconvert(), "times"_a.noconvert() = nb::list(),
           "strictly_earlier"_a = false)
      .def("skip", &BatchBuilder::Skip, "edge_type"_a)
      .def("end_hop", &BatchBuilder::EndHop)
      .def("begin_induced", &BatchBuilder::BeginInduced);
}

}  // namespace gigl
