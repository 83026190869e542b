#include "ppr_batch.h"

#include <algorithm>
#include <functional>
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

bool IsExcluded(std::span<const NodePair> pairs, int64_t target, int64_t neighbor) {
  return std::binary_search(pairs.begin(), pairs.end(), NodePair(target, neighbor));
}

std::vector<NodeTypePlan> StatePlans(const std::vector<NodeTypePlan>& node_types, const PprRule& rule) {
  std::vector<NodeTypePlan> plans;
  for (const PprState& state : rule.states) plans.push_back(node_types.at(state.node_type));
  return plans;
}

// By channel and node type: the other state that is kept, besides that of a seed.
std::vector<std::vector<int>> Twins(const PprRule& rule, size_t num_types) {
  std::vector<std::vector<int>> twins(rule.starts.size(), std::vector<int>(num_types, -1));
  for (size_t channel = 0; channel < twins.size(); ++channel) {
    std::vector<bool> reached(rule.states.size());
    std::vector<int> pending;
    const auto reach = [&](int state) {
      if (state >= 0 && !reached[state]) {
        reached[state] = true;
        pending.push_back(state);
      }
    };
    for (const int start : rule.starts[channel]) reach(start);
    while (!pending.empty()) {
      const int state = pending.back();
      pending.pop_back();
      const int type = rule.states[state].node_type;
      if (rule.states[state].kept && rule.starts[channel][type] != state) twins[channel][type] = state;
      for (const PprEdges& edges : rule.edges) {
        if (edges.state == state) reach(edges.next_state);
      }
    }
  }
  return twins;
}

std::vector<std::vector<PprEdges>> ByState(const PprRule& rule) {
  std::vector<std::vector<PprEdges>> found(rule.states.size());
  for (const PprEdges& edges : rule.edges) found.at(edges.state).push_back(edges);
  return found;
}

}  // namespace

PprBatch::PprBatch(const std::vector<NodeTypePlan>& node_types, const PprRule& rule)
    : nodes_(StatePlans(node_types, rule)), rule_(rule), batch_(node_types, {}, Collect{false, false}),
      twins_(Twins(rule, node_types.size())), selected_(rule.starts.size()) {
  const size_t num_types = node_types.size();
  neighbors_.resize(num_types);
  for (std::vector<PprNeighbors>& of_seeds : neighbors_) {
    of_seeds.resize(num_types);
    for (PprNeighbors& each : of_seeds) {
      each.scores.resize(rule.starts.size());
      each.hops.resize(rule.starts.size());
    }
  }
  for (auto& each : selected_) each.resize(num_types);
}

void PprBatch::Begin(std::span<const SeedGroup> groups, std::span<const PprExclusion> excluded, int64_t max_edges) {
  int64_t count = 0;
  for (const SeedGroup& group : groups) {
    for (const std::vector<int>& starts : rule_.starts) {
      if (starts.at(group.type) < 0) throw std::invalid_argument("seeds of a type in which no channel starts");
    }
    count += static_cast<int64_t>(group.seeds.size());
  }
  BatchRoom(max_edges).Take(count * kEdgesPerSeed * rule_.num_channels(), 0);
  batch_.Begin(groups, max_edges);
  for (auto& each : excluded_) each.clear();
  for (const PprExclusion& each : excluded) {
    if (static_cast<size_t>(each.edge_type) >= excluded_.size()) excluded_.resize(each.edge_type + 1);
    std::vector<NodePair>& pairs = excluded_[each.edge_type];
    for (size_t i = 0; i < each.targets.size(); ++i) pairs.emplace_back(each.targets[i], each.neighbors[i]);
  }
  for (auto& pairs : excluded_) SortUnlessStopped(pairs.begin(), pairs.end(), std::less<NodePair>());
  for (auto& of_seeds : neighbors_) {
    for (PprNeighbors& each : of_seeds) {
      each.seeds.Clear();
      each.positions.Clear();
      for (auto& scores : each.scores) scores.Clear();
      for (auto& hops : each.hops) hops.Clear();
      each.locals.Clear();
    }
  }
}

std::span<const NodePair> PprBatch::ExcludedOf(int edge_type, int64_t target) const {
  if (static_cast<size_t>(edge_type) >= excluded_.size()) return {};
  const std::vector<NodePair>& pairs = excluded_[edge_type];
  const auto begin = std::lower_bound(pairs.begin(), pairs.end(), NodePair(target, 0));
  auto end = begin;
  while (end != pairs.end() && end->first == target) ++end;
  return {begin, end};
}

void PprBatch::Select(int channel, int type, int32_t seed, ForwardPush& push) {
  const int twin = twins_[channel][type];
  const int64_t key = twin < 0 ? -1 : nodes_.first(twin) + batch_.nodes(type).names()[seed];
  push.Select(nodes_, rule_, key, selected_[channel]);
}

void PprBatch::Keep(int type, int32_t seed) {
  for (int kept = 0; kept < batch_.num_node_types(); ++kept) {
    PprNeighbors& neighbors = neighbors_[type][kept];
    if (rule_.num_channels() > 1) {
      Merge(kept, seed, neighbors);
      continue;
    }
    for (const PprNeighbor& each : selected_[0][kept].view()) {
      neighbors.seeds.Push(seed);
      neighbors.positions.Push(each.position);
      neighbors.scores[0].Push(each.score);
      neighbors.hops[0].Push(each.hop);
    }
  }
}

// A node belongs to the first of the channels that give it its highest score. Each channel has its share of the places;
// those that are left go to the best of the other nodes.
void PprBatch::Merge(int type, int32_t seed, PprNeighbors& neighbors) {
  found_.clear();
  for (int channel = 0; channel < rule_.num_channels(); ++channel) {
    for (const PprNeighbor& each : selected_[channel][type].view()) found_.emplace_back(each, channel);
  }
  SortUnlessStopped(found_.begin(), found_.end(), [](const auto& a, const auto& b) {
    return a.first.id != b.first.id ? a.first.id < b.first.id : a.second < b.second;
  });
  candidates_.clear();
  ForEachUnlessStopped(static_cast<int64_t>(found_.size()), [&](int64_t i) {
    const auto& [node, channel] = found_[i];
    const int32_t place = static_cast<int32_t>(i);
    if (candidates_.empty() || candidates_.back().best.id != node.id) {
      candidates_.push_back({node, channel, place, place + 1});
      return;
    }
    Candidate& known = candidates_.back();
    known.end = place + 1;
    if (node.score > known.best.score) {
      known.best = node;
      known.channel = channel;
    }
  });
  SortUnlessStopped(candidates_.begin(), candidates_.end(),
                    [](const Candidate& a, const Candidate& b) { return IsBefore(a.best, b.best); });
  std::vector<int64_t> left(rule_.shares);
  int64_t free = rule_.max_nodes;
  std::vector<bool> taken(candidates_.size());
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (left[candidates_[i].channel] > 0) {
      --left[candidates_[i].channel];
      --free;
      taken[i] = true;
    }
  }
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (!taken[i] && free-- <= 0) continue;
    const Candidate& each = candidates_[i];
    neighbors.seeds.Push(seed);
    neighbors.positions.Push(each.best.position);
    for (int channel = 0; channel < rule_.num_channels(); ++channel) {
      const auto begin = found_.begin() + each.begin, end = found_.begin() + each.end;
      const auto own = std::find_if(begin, end, [&](const auto& one) { return one.second == channel; });
      neighbors.scores[channel].Push(own == end ? 0.0f : own->first.score);
      neighbors.hops[channel].Push(own == end ? -1 : own->first.hop);
    }
  }
}

void PprBatch::EndSeeds() {
  for (int type = 0; type < batch_.num_node_types(); ++type) {
    for (auto& of_seeds : neighbors_) {
      PprNeighbors& neighbors = of_seeds[type];
      const std::span<const int64_t> all = neighbors.positions.view();
      int32_t* const locals = neighbors.locals.Extend(all.size());
      NodeTable& table = batch_.nodes(type).table;
      for (size_t begin = 0; begin < all.size(); begin += kBlock) {
        const std::span<const int64_t> block = all.subspan(begin, std::min(kBlock, all.size() - begin));
        CheckStop(kBlock);
        const TableLines lines = table.lines();
        for (const int64_t position : block) lines.Prefetch(position);
        table.InsertAll(block, locals + begin);
      }
    }
  }
  batch_.EndHop();
}

size_t PprBatch::nbytes() const {
  size_t total = batch_.nbytes();
  for (const auto& of_seeds : neighbors_) {
    for (const PprNeighbors& each : of_seeds) {
      total += each.seeds.nbytes() + each.positions.nbytes() + each.locals.nbytes();
      for (const auto& scores : each.scores) total += scores.nbytes();
      for (const auto& hops : each.hops) total += hops.nbytes();
    }
  }
  for (const auto& of_channel : selected_) {
    for (const auto& each : of_channel) total += each.nbytes();
  }
  for (const auto& each : excluded_) total += each.capacity() * sizeof(NodePair);
  return total + found_.capacity() * sizeof(found_[0]) + candidates_.capacity() * sizeof(Candidate);
}

// The lists of the graph.
class PprSampler::Lists {
 public:
  explicit Lists(PprSampler& sampler) : sampler_(sampler), fanout_(sampler.rule_.max_neighbors) {}

  void FetchDegree(int state, int64_t position) const {
    for (const PprEdges& edges : sampler_.by_state_[state]) {
      const AdjacencyPart& part = *Adjacency(edges).Owner(position);
      __builtin_prefetch(part.indptr + (position - part.first_target), 0, 3);
    }
  }

  PprDegree Degree(int state, int64_t position) const {
    int64_t count = 0;
    for (const PprEdges& edges : sampler_.by_state_[state]) {
      count += std::min<int64_t>(List(edges, position).degree, fanout_);
    }
    return {count, true};
  }

  void FetchLists(int state, int64_t position) const {
    for (const PprEdges& edges : sampler_.by_state_[state]) {
      const ListView list = List(edges, position);
      const size_t width = Adjacency(edges).wide_indices ? 8 : 4;
      const char* at = static_cast<const char*>(list.part->indices) + list.first * width;
      const char* const end = at + std::min<size_t>(list.degree * width, 256);
      for (; at < end; at += 64) __builtin_prefetch(at, 0, 3);
    }
  }

  void Want(int, int64_t, int32_t) const {}  // All lists are whole.

  template <typename Found>
  void Visit(int state, int64_t position, int64_t id, int64_t degree, double passed, Found found) const {
    const double share = passed / static_cast<double>(degree);
    const auto give = [&](int64_t key) { found(key, share); };
    for (const PprEdges& edges : sampler_.by_state_[state]) {
      const ListView list = List(edges, position);
      const std::span<const NodePair> excluded = sampler_.ExcludedOf(edges.edge_type, position);
      VisitList(edges, list, position, id, excluded, give);
    }
  }

 private:
  const AdjacencyView& Adjacency(const PprEdges& edges) const { return *sampler_.lists_[edges.edge_type].adjacency; }

  ListView List(const PprEdges& edges, int64_t position) const {
    const AdjacencyPart* part = Adjacency(edges).Owner(position);
    const int64_t number = position - part->first_target;
    const int64_t first = part->indptr[number];
    const int64_t last = part->indptr[number + 1];
    if (first < 0 || last < first || last > part->num_edges) ThrowDamaged("indptr does not rise to the number of edges");
    return {part, number, first, last - first};
  }

  template <typename Give>
  void VisitList(const PprEdges& edges, const ListView& list, int64_t position, int64_t id,
                 std::span<const NodePair> excluded, Give give) const {
    const bool wide = Adjacency(edges).wide_indices;
    const int64_t base = sampler_.nodes_.first(edges.next_state);
    const int64_t count = sampler_.nodes_.count(edges.next_state);
    const auto visit = [&](int64_t place) {
      const int64_t neighbor = EntryAt(list.part->indices, wide, list.first + place);
      if (neighbor < 0 || neighbor >= count) [[unlikely]] ThrowDamaged("a neighbour lies outside its node type");
      if (!excluded.empty() && IsExcluded(excluded, position, neighbor)) return;
      give(base + neighbor);
    };
    if (list.degree <= fanout_) {
      ForEachUnlessStopped(list.degree, visit);
    } else {
      const DrawAddress address{0, static_cast<uint64_t>(id), uint64_t{sampler_.lists_[edges.edge_type].address} << 32};
      sampler_.picker_.Pick(address, list.degree, fanout_, false, visit);
    }
  }

  PprSampler& sampler_;
  const int32_t fanout_;
};

PprSampler::PprSampler(const std::vector<NodeTypePlan>& node_types, const std::vector<PprLists>& lists, const PprRule& rule)
    : PprBatch(node_types, rule), lists_(lists), by_state_(ByState(rule)) {}

void PprSampler::Sample(std::span<const SeedGroup> groups, std::span<const PprExclusion> excluded, int64_t max_edges) {
  Begin(groups, excluded, max_edges);
  Lists lists(*this);
  ForEachSeed([&](int type, int32_t seed) {
    for (int channel = 0; channel < rule_.num_channels(); ++channel) {
      push_.Begin(KeyOf(channel, type, seed), rule_);
      push_.Run(nodes_, rule_, lists, batch_.room());
      Select(channel, type, seed, push_);
    }
    Keep(type, seed);
  });
  EndSeeds();
}

// The lists that were appended.
class PprBuilder::Lists {
 public:
  explicit Lists(PprBuilder& builder) : builder_(builder) {}

  void FetchDegree(int state, int64_t position) const { builder_.known_nodes_.lines().Prefetch(KeyOf(state, position)); }

  PprDegree Degree(int state, int64_t position) const {
    const Known& known = Of(state, position);
    return {known.degree, known.whole};
  }

  void FetchLists(int, int64_t) const {}

  void Want(int state, int64_t position, int32_t fanout) const {
    Known& known = Of(state, position);
    if (known.wanted == 0) builder_.wanted_.Push(static_cast<int32_t>(&known - builder_.known_.data()));
    known.wanted = std::max(known.wanted, fanout);
  }

  template <typename Found>
  void Visit(int state, int64_t position, int64_t, int64_t degree, double passed, Found found) const {
    const Known known = Of(state, position);
    const int64_t* const keys = builder_.neighbors_.data() + known.begin;
    const bool weighted = builder_.rule_.weighted;
    const double* const weights = builder_.weights_.data() + (weighted ? known.begin : 0);
    const double share = passed / (weighted ? known.weight : static_cast<double>(degree));
    ForEachUnlessStopped(degree, [&](int64_t i) {
      if (keys[i] >= 0) found(keys[i], weighted ? share * weights[i] : share);
    });
  }

  Known& Of(int state, int64_t position) const {
    const int64_t key = KeyOf(state, position);
    int32_t place;
    builder_.known_nodes_.InsertAll({&key, 1}, &place);
    Buffer<Known>& known = builder_.known_;
    if (static_cast<size_t>(place) == known.size()) known.Push({0, 0, 0, builder_.by_state_[state].empty(), 0});
    return known.data()[place];
  }

 private:
  int64_t KeyOf(int state, int64_t position) const { return builder_.nodes_.first(state) + position; }

  PprBuilder& builder_;
};

PprBuilder::PprBuilder(const std::vector<NodeTypePlan>& node_types, const PprRule& rule)
    : PprBatch(node_types, rule), by_state_(ByState(rule)) {}

void PprBuilder::Begin(std::span<const SeedGroup> groups, std::span<const PprExclusion> excluded, int64_t max_edges) {
  ended_ = true;  // until all below has succeeded
  PprBatch::Begin(groups, excluded, max_edges);
  known_nodes_.Clear();
  known_.Clear();
  neighbors_.Clear();
  weights_.Clear();
  wanted_.Clear();
  outstanding_ = 0;
  waiting_.clear();
  ForEachSeed([&](int type, int32_t seed) {
    for (int channel = 0; channel < rule_.num_channels(); ++channel) {
      const size_t place = waiting_.size();
      if (place == pushes_.size()) pushes_.emplace_back();
      pushes_[place].Begin(KeyOf(channel, type, seed), rule_);
      waiting_.push_back(static_cast<int32_t>(place));
    }
  });
  ended_ = false;
}

std::vector<PprRequest> PprBuilder::Advance() {
  if (ended_) return {};
  if (outstanding_ > 0) throw std::invalid_argument("lists that were asked for are missing");
  Lists lists(*this);
  std::erase_if(waiting_, [&](int32_t place) { return pushes_[place].Run(nodes_, rule_, lists, batch_.room()); });
  if (waiting_.empty()) {
    size_t place = 0;
    ForEachSeed([&](int type, int32_t seed) {
      for (int channel = 0; channel < rule_.num_channels(); ++channel) Select(channel, type, seed, pushes_[place++]);
      Keep(type, seed);
    });
    EndSeeds();
    ended_ = true;
    return {};
  }
  std::map<std::pair<int, int32_t>, std::vector<int64_t>> asked;
  for (const int32_t place : wanted_.view()) {
    const int64_t key = known_nodes_.nodes()[place];
    const int state = nodes_.StateOf(key);
    asked[{state, known_[place].wanted}].push_back(key - nodes_.first(state));
  }
  outstanding_ = wanted_.size();
  wanted_.Clear();
  std::vector<PprRequest> requests;
  requests.reserve(asked.size());
  for (auto& [of, positions] : asked) requests.push_back({of.first, of.second, std::move(positions)});
  return requests;
}

void PprBuilder::Append(int state, int32_t fanout, std::span<const int64_t> positions, std::span<const PprAnswer> answers) {
  const std::vector<PprEdges>& edge_types = by_state_.at(state);
  if (answers.size() != edge_types.size()) throw std::invalid_argument("one answer per edge type is needed");
  int64_t total = 0;
  for (const PprAnswer& answer : answers) {
    if (answer.counts.size() != positions.size()) ThrowUnfit("other targets than it was asked for");
    int64_t sum = 0;
    for (const int32_t count : answer.counts) {
      if (count < 0 || count > fanout) ThrowUnfit("a number of neighbours that nobody asked for");
      sum += count;
    }
    const bool fits = answer.weights.empty() || static_cast<int64_t>(answer.weights.size()) == sum;
    if (sum != answer.num_neighbors || !fits) ThrowUnfit("other neighbours than its counts say");
    total += sum;
  }
  batch_.room().Take(total + kEdgesPerList * static_cast<int64_t>(positions.size()), 0);
  Lists lists(*this);
  std::vector<int64_t> read(answers.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || positions[i] >= nodes_.count(state)) throw std::invalid_argument("a position outside its type");
    CheckStop(16);
    Known& known = lists.Of(state, positions[i]);
    if (known.wanted != fanout) throw std::invalid_argument("lists that were not asked for");
    known.wanted = 0;
    known.degree = 0;
    known.weight = 0;
    known.whole = true;
    known.begin = static_cast<int64_t>(neighbors_.size());
    for (size_t e = 0; e < answers.size(); ++e) {
      const PprAnswer& answer = answers[e];
      const int32_t count = answer.counts[i];
      // Shorter lists than asked for are whole; of others, there may be more.
      known.whole &= count < fanout || fanout == rule_.max_neighbors;
      known.degree += count;
      const int64_t base = nodes_.first(edge_types[e].next_state);
      const int64_t end = nodes_.count(edge_types[e].next_state);
      const std::span<const NodePair> excluded = ExcludedOf(edge_types[e].edge_type, positions[i]);
      int64_t* const keys = neighbors_.Extend(count);
      CheckStop(count);
      for (int32_t n = 0; n < count; ++n) {
        const int64_t at = read[e]++;
        const int64_t neighbor = answer.wide ? static_cast<const int64_t*>(answer.positions)[at]
                                             : static_cast<const int32_t*>(answer.positions)[at];
        if (neighbor < 0 || neighbor >= end) ThrowUnfit("a neighbour lies outside its node type");
        keys[n] = !excluded.empty() && IsExcluded(excluded, positions[i], neighbor) ? -1 : base + neighbor;
        if (rule_.weighted) {
          const double weight = answer.weights.empty() ? 1 : answer.weights[at];
          if (!(weight > 0)) ThrowUnfit("a weight that is not positive");
          weights_.Push(weight);
          known.weight += weight;
        }
      }
    }
    if (!known.whole) {
      neighbors_.Truncate(known.begin);
      if (rule_.weighted) weights_.Truncate(known.begin);
    }
  }
  outstanding_ -= positions.size();
}

size_t PprBuilder::nbytes() const {
  size_t total = PprBatch::nbytes() + known_nodes_.nbytes() + known_.nbytes() + neighbors_.nbytes() + weights_.nbytes() +
                 wanted_.nbytes();
  for (const ForwardPush& push : pushes_) total += push.nbytes();
  return total;
}

}  // namespace gigl
