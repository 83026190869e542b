#include "ppr_batch.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "draw_policy.h"

namespace gigl {
namespace {

// What a seed takes of the room besides the edges that it passes: its table has some hundred bytes.
constexpr int64_t kEdgesPerSeed = 16;
constexpr int64_t kEdgesPerList = 2;  // of what is known of a node: its place takes some hundred bytes, too
constexpr size_t kBlock = 128;  // nodes whose places in a table are fetched together

[[noreturn]] void ThrowUnfit(const char* what) { throw std::runtime_error(std::string("answer of a partition: ") + what); }

}  // namespace

PprBatch::PprBatch(const std::vector<NodeTypePlan>& node_types, int seed_type, const PprRule& rule)
    : nodes_(node_types), seed_type_(seed_type), rule_(rule), batch_(node_types, {}, Collect{false, false}),
      neighbors_(nodes_.num_types()) {}

void PprBatch::Begin(std::span<const int64_t> seeds, int64_t max_edges) {
  BatchRoom(max_edges).Take(static_cast<int64_t>(seeds.size()) * kEdgesPerSeed, 0);
  const SeedGroup group{seed_type_, seeds};
  batch_.Begin({&group, 1}, max_edges);
  for (PprNeighbors& each : neighbors_) {
    each.seeds.Clear();
    each.positions.Clear();
    each.scores.Clear();
    each.hops.Clear();
    each.locals.Clear();
  }
}

void PprBatch::Keep(int32_t seed, ForwardPush& push) {
  for (const PprNeighbor& kept : push.Select(nodes_, rule_)) {
    PprNeighbors& neighbors = neighbors_[kept.type];
    neighbors.seeds.Push(seed);
    neighbors.positions.Push(kept.position);
    neighbors.scores.Push(kept.score);
    neighbors.hops.Push(kept.hop);
  }
}

void PprBatch::EndSeeds() {
  for (int type = 0; type < nodes_.num_types(); ++type) {
    PprNeighbors& neighbors = neighbors_[type];
    const std::span<const int64_t> all = neighbors.positions.view();
    int32_t* const locals = neighbors.locals.Extend(all.size());
    std::visit(
        [&](auto& table) {
          for (size_t begin = 0; begin < all.size(); begin += kBlock) {
            const std::span<const int64_t> block = all.subspan(begin, std::min(kBlock, all.size() - begin));
            CheckStop(kBlock);
            for (const int64_t position : block) table.Prefetch(position);
            table.InsertAll(block, locals + begin);
          }
        },
        batch_.nodes(type).table);
  }
  batch_.EndHop();
}

size_t PprBatch::nbytes() const {
  size_t total = batch_.nbytes();
  for (const PprNeighbors& each : neighbors_) {
    total += each.seeds.nbytes() + each.positions.nbytes() + each.scores.nbytes() + each.hops.nbytes() + each.locals.nbytes();
  }
  return total;
}

// The lists of the graph.
class PprSampler::Lists {
 public:
  Lists(const PprNodes& nodes, const std::vector<std::vector<PprEdgeType>>& by_target, int32_t fanout, Picker& picker)
      : nodes_(nodes), by_target_(by_target), fanout_(fanout), picker_(picker) {}

  void FetchDegree(int type, int64_t position) const {
    for (const PprEdgeType& edges : by_target_[type]) {
      const AdjacencyPart& part = *edges.adjacency->Owner(position);
      __builtin_prefetch(part.indptr + (position - part.first_target), 0, 3);
    }
  }

  PprDegree Degree(int type, int64_t position) const {
    int64_t count = 0;
    for (const PprEdgeType& edges : by_target_[type]) count += std::min<int64_t>(List(edges, position).degree, fanout_);
    return {count, true};
  }

  void FetchLists(int type, int64_t position) const {
    for (const PprEdgeType& edges : by_target_[type]) {
      const ListView list = List(edges, position);
      const size_t width = edges.adjacency->wide_indices ? 8 : 4;
      const char* at = static_cast<const char*>(list.part->indices) + list.first * width;
      const char* const end = at + std::min<size_t>(list.degree * width, 256);
      for (; at < end; at += 64) __builtin_prefetch(at, 0, 3);
    }
  }

  void Want(int, int64_t, int32_t) const {}  // All lists are whole.

  template <typename Found>
  void Visit(int type, int64_t position, int64_t id, int64_t, Found found) const {
    for (const PprEdgeType& edges : by_target_[type]) {
      const ListView list = List(edges, position);
      edges.adjacency->wide_indices ? VisitList<int64_t>(edges, list, id, found) : VisitList<int32_t>(edges, list, id, found);
    }
  }

 private:
  static ListView List(const PprEdgeType& edges, int64_t position) {
    const AdjacencyPart* part = edges.adjacency->Owner(position);
    const int64_t number = position - part->first_target;
    const int64_t first = part->indptr[number];
    const int64_t last = part->indptr[number + 1];
    if (first < 0 || last < first || last > part->num_edges) ThrowDamaged("indptr does not rise to the number of edges");
    return {part, number, first, last - first};
  }

  template <typename Index, typename Found>
  void VisitList(const PprEdgeType& edges, const ListView& list, int64_t id, Found found) const {
    const Index* const indices = static_cast<const Index*>(list.part->indices) + list.first;
    const int64_t base = nodes_.first(edges.ends.neighbor_type);
    const int64_t count = nodes_.count(edges.ends.neighbor_type);
    const auto visit = [&](int64_t place) {
      const int64_t neighbor = indices[place];
      if (neighbor < 0 || neighbor >= count) [[unlikely]] ThrowDamaged("a neighbour lies outside its node type");
      found(base + neighbor);
    };
    if (list.degree <= fanout_) {
      ForEachUnlessStopped(list.degree, visit);
    } else {
      const DrawAddress address{0, static_cast<uint64_t>(id), uint64_t{edges.address} << 32};
      picker_.Pick(address, list.degree, fanout_, false, visit);
    }
  }

  const PprNodes& nodes_;
  const std::vector<std::vector<PprEdgeType>>& by_target_;
  const int32_t fanout_;
  Picker& picker_;
};

PprSampler::PprSampler(const std::vector<NodeTypePlan>& node_types, const std::vector<PprEdgeType>& edge_types,
                       int seed_type, const PprRule& rule)
    : PprBatch(node_types, seed_type, rule), by_target_(nodes_.num_types()) {
  for (const PprEdgeType& each : edge_types) by_target_.at(each.ends.target_type).push_back(each);
}

void PprSampler::Sample(std::span<const int64_t> seeds, int64_t max_edges) {
  Begin(seeds, max_edges);
  Lists lists(nodes_, by_target_, rule_.max_neighbors, picker_);
  for (size_t seed = 0; seed < this->seeds().size(); ++seed) {
    push_.Begin(KeyOf(this->seeds()[seed]), rule_);
    push_.Run(nodes_, rule_, lists, batch_.room());
    Keep(static_cast<int32_t>(seed), push_);
  }
  EndSeeds();
}

// The lists that were appended.
class PprBuilder::Lists {
 public:
  explicit Lists(PprBuilder& builder) : builder_(builder) {}

  void FetchDegree(int type, int64_t position) const { builder_.known_nodes_.Prefetch(KeyOf(type, position)); }

  PprDegree Degree(int type, int64_t position) const {
    const Known& known = Of(type, position);
    return {known.degree, known.whole};
  }

  void FetchLists(int, int64_t) const {}

  void Want(int type, int64_t position, int32_t fanout) const {
    Known& known = Of(type, position);
    if (known.wanted == 0) builder_.wanted_.Push(static_cast<int32_t>(&known - builder_.known_.data()));
    known.wanted = std::max(known.wanted, fanout);
  }

  template <typename Found>
  void Visit(int type, int64_t position, int64_t, int64_t degree, Found found) const {
    const int64_t* const keys = builder_.neighbors_.data() + Of(type, position).begin;
    ForEachUnlessStopped(degree, [&](int64_t i) { found(keys[i]); });
  }

  Known& Of(int type, int64_t position) const {
    const int64_t key = KeyOf(type, position);
    int32_t place;
    builder_.known_nodes_.InsertAll({&key, 1}, &place);
    Buffer<Known>& known = builder_.known_;
    if (static_cast<size_t>(place) == known.size()) known.Push({0, 0, builder_.by_target_[type].empty(), 0});
    return known.data()[place];
  }

 private:
  int64_t KeyOf(int type, int64_t position) const { return builder_.nodes_.first(type) + position; }

  PprBuilder& builder_;
};

PprBuilder::PprBuilder(const std::vector<NodeTypePlan>& node_types, const std::vector<EdgeEnds>& edge_types,
                       int seed_type, const PprRule& rule)
    : PprBatch(node_types, seed_type, rule), by_target_(nodes_.num_types()) {
  for (const EdgeEnds& each : edge_types) by_target_.at(each.target_type).push_back(each.neighbor_type);
}

void PprBuilder::Begin(std::span<const int64_t> seeds, int64_t max_edges) {
  ended_ = true;  // until all below has succeeded
  PprBatch::Begin(seeds, max_edges);
  known_nodes_.Clear();
  known_.Clear();
  neighbors_.Clear();
  wanted_.Clear();
  outstanding_ = 0;
  waiting_.clear();
  const size_t count = this->seeds().size();
  if (pushes_.size() < count) pushes_.resize(count);
  for (size_t seed = 0; seed < count; ++seed) {
    pushes_[seed].Begin(KeyOf(this->seeds()[seed]), rule_);
    waiting_.push_back(static_cast<int32_t>(seed));
  }
  ended_ = false;
}

std::vector<PprRequest> PprBuilder::Advance() {
  if (ended_) return {};
  if (outstanding_ > 0) throw std::invalid_argument("lists that were asked for are missing");
  Lists lists(*this);
  std::erase_if(waiting_, [&](int32_t seed) { return pushes_[seed].Run(nodes_, rule_, lists, batch_.room()); });
  if (waiting_.empty()) {
    for (size_t seed = 0; seed < seeds().size(); ++seed) Keep(static_cast<int32_t>(seed), pushes_[seed]);
    EndSeeds();
    ended_ = true;
    return {};
  }
  std::map<std::pair<int, int32_t>, std::vector<int64_t>> asked;
  for (const int32_t place : wanted_.view()) {
    const int64_t key = known_nodes_.nodes()[place];
    const int type = nodes_.TypeOf(key);
    asked[{type, known_[place].wanted}].push_back(key - nodes_.first(type));
  }
  outstanding_ = wanted_.size();
  wanted_.Clear();
  std::vector<PprRequest> requests;
  requests.reserve(asked.size());
  for (auto& [of, positions] : asked) requests.push_back({of.first, of.second, std::move(positions)});
  return requests;
}

void PprBuilder::Append(int type, int32_t fanout, std::span<const int64_t> positions, std::span<const PprAnswer> answers) {
  const std::vector<int>& neighbor_types = by_target_.at(type);
  if (answers.size() != neighbor_types.size()) throw std::invalid_argument("one answer per edge type is needed");
  int64_t total = 0;
  for (const PprAnswer& answer : answers) {
    if (answer.counts.size() != positions.size()) ThrowUnfit("other targets than it was asked for");
    int64_t sum = 0;
    for (const int32_t count : answer.counts) {
      if (count < 0 || count > fanout) ThrowUnfit("a number of neighbours that nobody asked for");
      sum += count;
    }
    if (sum != answer.num_neighbors) ThrowUnfit("other neighbours than its counts say");
    total += sum;
  }
  batch_.room().Take(total + kEdgesPerList * static_cast<int64_t>(positions.size()), 0);
  Lists lists(*this);
  std::vector<int64_t> read(answers.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || positions[i] >= nodes_.count(type)) throw std::invalid_argument("a position outside its type");
    CheckStop(16);
    Known& known = lists.Of(type, positions[i]);
    if (known.wanted != fanout) throw std::invalid_argument("lists that were not asked for");
    known.wanted = 0;
    known.degree = 0;
    known.whole = true;
    known.begin = static_cast<int64_t>(neighbors_.size());
    for (size_t e = 0; e < answers.size(); ++e) {
      const PprAnswer& answer = answers[e];
      const int32_t count = answer.counts[i];
      // Shorter lists than asked for are whole; of others, there may be more.
      known.whole &= count < fanout || fanout == rule_.max_neighbors;
      known.degree += count;
      const int64_t base = nodes_.first(neighbor_types[e]);
      const int64_t end = nodes_.count(neighbor_types[e]);
      int64_t* const keys = neighbors_.Extend(count);
      CheckStop(count);
      for (int32_t n = 0; n < count; ++n) {
        const int64_t at = read[e]++;
        const int64_t neighbor = answer.wide ? static_cast<const int64_t*>(answer.positions)[at]
                                             : static_cast<const int32_t*>(answer.positions)[at];
        if (neighbor < 0 || neighbor >= end) ThrowUnfit("a neighbour lies outside its node type");
        keys[n] = base + neighbor;
      }
    }
    if (!known.whole) neighbors_.Truncate(known.begin);
  }
  outstanding_ -= positions.size();
}

size_t PprBuilder::nbytes() const {
  size_t total = PprBatch::nbytes() + known_nodes_.nbytes() + known_.nbytes() + neighbors_.nbytes() + wanted_.nbytes();
  for (const ForwardPush& push : pushes_) total += push.nbytes();
  return total;
}

}  // namespace gigl
