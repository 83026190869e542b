#include "neighbor_sampler.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <variant>

#include "buffer.h"
#include "node_table.h"
#include "pick.h"
#include "random.h"

namespace gigl {
namespace {

// Edges worked on together. Each stage fetches what the next one will read, so a block must be long
// enough to hide a memory access (some 100 ns) and short enough to stay in the first-level cache.
constexpr int64_t kBlockEdges = 96;
constexpr int64_t kBlockTargets = 64;

using AnyNodeTable = std::variant<NodeTable<uint32_t>, NodeTable<uint64_t>>;

AnyNodeTable MakeTable(int64_t count) {
  if (count <= INT32_MAX) return NodeTable<uint32_t>();
  return NodeTable<uint64_t>();
}

struct NodeState {
  NodeTypePlan plan;
  AnyNodeTable table;
  int64_t frontier_begin = 0;
  int64_t frontier_end = 0;
  std::vector<int64_t> per_hop;

  std::span<const int64_t> nodes() const {
    return std::visit([](const auto& t) { return t.nodes(); }, table);
  }
};

struct EdgeState {
  EdgeTypePlan plan;
  Buffer<int32_t> rows;
  Buffer<int64_t> colptr;
  Buffer<int64_t> edge_ids;
  Buffer<int64_t> slots;
  std::vector<int64_t> per_hop;

  void Clear() {
    rows.Clear();
    colptr.Clear();
    colptr.Push(0);
    edge_ids.Clear();
    slots.Clear();
    per_hop.clear();
  }
};

// A target of the block at hand: its list, and how many of its edges are taken.
struct Target {
  const AdjacencyPart* part;
  int64_t node_id;
  int64_t first;
  int64_t degree;
  int64_t taken;
};

[[noreturn]] void ThrowDamaged(const char* what) {
  throw std::runtime_error(std::string("damaged adjacency: ") + what);
}

// Expands the frontier of one edge type at one hop.
template <typename Index, typename EdgeId, typename Table>
class Expansion {
 public:
  Expansion(const NodeState& targets, const NodeState& neighbors, Table& table, EdgeState& edges,
            const SamplerOptions& options, Picker& picker, uint64_t key, int hop)
      : targets_(targets), num_neighbors_(neighbors.plan.count), table_(table), edges_(edges), options_(options),
        picker_(picker), sole_(edges.plan.adjacency->Sole()), key_(key), fanout_(edges.plan.fanouts[hop]),
        place_(uint64_t{edges.plan.address} << 32 | static_cast<uint64_t>(hop) << 56) {}

  void Run() {
    const int64_t before = static_cast<int64_t>(edges_.rows.size());
    int64_t at = targets_.frontier_begin;
    while (at < targets_.frontier_end) at = Block(at);
    edges_.per_hop.push_back(static_cast<int64_t>(edges_.rows.size()) - before);
  }

 private:
  // Works on some targets from local index `at` on and returns the first one left.
  int64_t Block(int64_t at) {
    const int64_t end = std::min(at + kBlockTargets, targets_.frontier_end);
    const std::span<const int64_t> nodes = targets_.nodes();  // until Relabel: the table may grow
    FetchLists(nodes, end);
    int64_t count = 0;
    int64_t num_edges = 0;
    while (at < end && num_edges < kBlockEdges) {
      block_[count] = Locate(nodes[at++]);
      num_edges += block_[count++].taken;
    }
    PrefetchOutputs(num_edges);
    Draw(count, num_edges);
    Read(num_edges);
    Relabel(num_edges);
    return at;
  }

  void PrefetchOutputs(int64_t num_edges) {
    edges_.rows.PrefetchEnd(2 * num_edges);
    edges_.colptr.PrefetchEnd(2 * kBlockTargets);
    if (options_.with_edge_ids) edges_.edge_ids.PrefetchEnd(2 * num_edges);
    if (options_.with_slots) edges_.slots.PrefetchEnd(2 * num_edges);
  }

  // The targets of the next block, unless a block of many edges stops short of them.
  void FetchLists(std::span<const int64_t> nodes, int64_t begin) {
    const int64_t end = std::min(begin + kBlockTargets, targets_.frontier_end);
    for (int64_t i = begin; i < end; ++i) {
      const AdjacencyPart* part = edges_.plan.adjacency->Owner(nodes[i]);
      if (part != nullptr) __builtin_prefetch(part->indptr + (nodes[i] - part->first_target), 0, 1);
      if (targets_.plan.ids != nullptr) __builtin_prefetch(targets_.plan.ids + nodes[i], 0, 1);
    }
  }

  Target Locate(int64_t position) {
    const AdjacencyPart* part = edges_.plan.adjacency->Owner(position);
    if (part == nullptr) ThrowDamaged("a target lies outside all partitions");
    const int64_t list = position - part->first_target;
    const int64_t first = part->indptr[list];
    const int64_t last = part->indptr[list + 1];
    // Before anything is computed from them: the distance of damaged bounds may overflow.
    if (first < 0 || last < first || last > part->num_edges) {
      ThrowDamaged("indptr does not rise to the number of edges");
    }
    const int64_t degree = last - first;
    const int64_t taken = Picker::Count(degree, fanout_, options_.replace);
    const int64_t total = edges_.colptr[edges_.colptr.size() - 1] + taken;
    edges_.colptr.Push(total);
    return {part, targets_.plan.ids == nullptr ? position : targets_.plan.ids[position], first, degree, taken};
  }

  // Draws the edges of the block and fetches their neighbours and ids.
  void Draw(int64_t num_targets, int64_t num_edges) {
    picks_.resize(std::max<size_t>(picks_.size(), num_edges));
    owners_.resize(picks_.size());
    int64_t* pick = picks_.data();
    const AdjacencyPart** owner = owners_.data();
    for (int64_t t = 0; t < num_targets; ++t) {
      const Target& target = block_[t];
      const DrawAddress address{key_, static_cast<uint64_t>(target.node_id), place_};
      const Index* indices = static_cast<const Index*>(target.part->indices);
      const EdgeId* ids = static_cast<const EdgeId*>(target.part->edge_ids);
      const bool with_ids = options_.with_edge_ids;
      picker_.Pick(address, target.degree, fanout_, options_.replace, [&](int64_t drawn) {
        const int64_t slot = target.first + drawn;
        __builtin_prefetch(indices + slot, 0, 1);
        if (with_ids) __builtin_prefetch(ids + slot, 0, 1);
        if (sole_ == nullptr) *owner++ = target.part;
        *pick++ = slot;
      });
    }
  }

  // Reads neighbours and edge ids, and fetches the neighbours' places in the table.
  void Read(int64_t num_edges) {
    found_.resize(picks_.size());
    int64_t* ids = options_.with_edge_ids ? edges_.edge_ids.Extend(num_edges) : nullptr;
    int64_t* slots = options_.with_slots ? edges_.slots.Extend(num_edges) : nullptr;
    bool inside = true;
    for (int64_t e = 0; e < num_edges; ++e) {
      const AdjacencyPart& part = sole_ != nullptr ? *sole_ : *owners_[e];
      const int64_t slot = picks_[e];
      const int64_t neighbor = static_cast<const Index*>(part.indices)[slot];
      if (ids != nullptr) ids[e] = static_cast<const EdgeId*>(part.edge_ids)[slot];
      if (slots != nullptr) slots[e] = part.first_slot + slot;
      inside &= neighbor >= 0 && neighbor < num_neighbors_;
      found_[e] = neighbor;
      table_.Prefetch(neighbor);
    }
    if (!inside) ThrowDamaged("a neighbour lies outside its node type");
  }

  void Relabel(int64_t num_edges) {
    table_.InsertAll({found_.data(), static_cast<size_t>(num_edges)}, edges_.rows.Extend(num_edges));
  }

  const NodeState& targets_;
  const int64_t num_neighbors_;
  Table& table_;
  EdgeState& edges_;
  const SamplerOptions& options_;
  Picker& picker_;
  const AdjacencyPart* const sole_;  // the only part: then owners_ is not kept
  const uint64_t key_;
  const int32_t fanout_;
  const uint64_t place_;
  Target block_[kBlockTargets];
  std::vector<int64_t> picks_;
  std::vector<const AdjacencyPart*> owners_;
  std::vector<int64_t> found_;
};

// Calls `run` with a value of the type that entries of 4 or 8 bytes have.
template <typename Run>
void WithWidth(bool wide, Run run) {
  wide ? run(int64_t{}) : run(int32_t{});
}

}  // namespace

struct NeighborSampler::State {
  std::vector<NodeState> nodes;
  std::vector<EdgeState> edges;
  SamplerOptions options;
  Picker picker;
  int num_hops = 0;

  void Begin(int seed_type, std::span<const int64_t> seeds) {
    for (EdgeState& edge : edges) edge.Clear();
    for (NodeState& node : nodes) {
      std::visit([](auto& table) { table.Clear(); }, node.table);
      node.frontier_begin = node.frontier_end = 0;
      node.per_hop.clear();
    }
    NodeState& seed_node = nodes.at(seed_type);
    for (const int64_t seed : seeds) {
      if (seed < 0 || seed >= seed_node.plan.count) {
        throw std::out_of_range("seed position " + std::to_string(seed) + " of a type with " +
                                std::to_string(seed_node.plan.count) + " nodes");
      }
    }
    std::vector<int32_t> locals(seeds.size());
    std::visit([&](auto& table) { table.InsertAll(seeds, locals.data()); }, seed_node.table);
    EndHop();
  }

  void Expand(EdgeState& edge, int hop, uint64_t key) {
    const NodeState& targets = nodes[edge.plan.target_type];
    NodeState& neighbors = nodes[edge.plan.neighbor_type];
    if (edge.plan.fanouts[hop] == 0) {
      const int64_t end = edge.colptr[edge.colptr.size() - 1];
      for (int64_t i = targets.frontier_begin; i < targets.frontier_end; ++i) edge.colptr.Push(end);
      edge.per_hop.push_back(0);
      return;
    }
    WithWidth(edge.plan.adjacency->wide_indices, [&](auto index) {
      WithWidth(edge.plan.adjacency->wide_edge_ids, [&](auto edge_id) {
        std::visit(
            [&](auto& table) {
              using Table = std::remove_reference_t<decltype(table)>;
              Expansion<decltype(index), decltype(edge_id), Table>(targets, neighbors, table, edge, options, picker,
                                                                   key, hop)
                  .Run();
            },
            neighbors.table);
      });
    });
  }

  // What the hop added is the next frontier.
  void EndHop() {
    for (NodeState& node : nodes) {
      node.frontier_begin = node.frontier_end;
      node.frontier_end = static_cast<int64_t>(node.nodes().size());
      node.per_hop.push_back(node.frontier_end - node.frontier_begin);
    }
  }
};

NeighborSampler::NeighborSampler(std::vector<NodeTypePlan> node_types, std::vector<EdgeTypePlan> edge_types,
                                 SamplerOptions options)
    : state_(std::make_unique<State>()) {
  state_->options = options;
  for (const NodeTypePlan& plan : node_types) {
    state_->nodes.push_back({.plan = plan, .table = MakeTable(plan.count), .per_hop = {}});
  }
  for (EdgeTypePlan& plan : edge_types) {
    state_->num_hops = static_cast<int>(plan.fanouts.size());
    EdgeState edge;
    edge.plan = std::move(plan);
    edge.Clear();  // no batch yet: an empty one
    state_->edges.push_back(std::move(edge));
  }
}

NeighborSampler::~NeighborSampler() = default;

void NeighborSampler::Sample(int seed_type, std::span<const int64_t> seeds, uint64_t key) {
  state_->Begin(seed_type, seeds);
  for (int hop = 0; hop < state_->num_hops; ++hop) {
    for (EdgeState& edge : state_->edges) state_->Expand(edge, hop, key);
    state_->EndHop();
  }
}

SampledNodes NeighborSampler::Nodes(int node_type) const {
  const NodeState& node = state_->nodes.at(node_type);
  return {node.nodes(), node.per_hop};
}

SampledEdges NeighborSampler::Edges(int edge_type) const {
  const EdgeState& edge = state_->edges.at(edge_type);
  return {edge.rows.view(), edge.colptr.view(), edge.edge_ids.view(), edge.slots.view(), edge.per_hop};
}

const NodeTypePlan& NeighborSampler::Plan(int node_type) const { return state_->nodes.at(node_type).plan; }

}  // namespace gigl
