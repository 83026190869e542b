// How entries of adjacency lists are counted and picked: the part of a draw that differs between samplers.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>

#include "adjacency.h"
#include "buffer.h"
#include "pick.h"
#include "random.h"
#include "stop.h"
#include "weighted_pick.h"

namespace gigl {

[[noreturn]] inline void ThrowDamaged(const char* what) {
  throw std::runtime_error(std::string("damaged adjacency: ") + what);
}

// Which entries of a list are drawn. Timed kinds leave out entries that are later than the target's tree, or than its
// bound, by the times of the adjacency. Weighted kinds leave out entries of weight 0.
enum class DrawKind : uint8_t {
  kUniform,
  kWeighted,  // in proportion to the weights of the adjacency
  kLabor,     // each neighbour with the same chance for all targets: LABOR-0
  kTimed,
  kTimedWeighted,
  kLast,  // the latest entries
  kLastWeighted,
};

// How neighbours are drawn, as callers say it: any combination. `DrawRule::Of` refuses those without a meaning.
struct DrawOptions {
  int32_t fanout;
  bool replace = false;
  bool weighted = false;
  bool labor = false;
  bool timed = false;
  bool last = false;
  bool window = false;
  bool monotone = false;
  bool strictly_earlier = false;
  int32_t batch_dependency = 1;
};

// How the neighbours of a target are drawn.
struct DrawRule {
  int32_t fanout;  // -1 all, 0 none
  DrawKind kind = DrawKind::kUniform;
  bool replace = false;   // with replacement; not of kLabor, kLast and kLastWeighted
  bool window = false;    // of timed kinds: no entry is earlier than the start of the target's tree
  bool monotone = false;  // of kTimed and kTimedWeighted: no entry is later than the one that led to the target
  bool strictly_earlier = false;  // of timed kinds: entries at the time of the tree, or at the bound, are left out, too
  int32_t batch_dependency = 1;  // of kLabor: batches of an epoch for which a node keeps its random number

  // Throws std::invalid_argument where there is no such kind.
  static DrawRule Of(const DrawOptions& given) {
    if (given.fanout < -1) throw std::invalid_argument("a fanout is -1, 0 or positive");
    if (given.labor && (given.replace || given.weighted || given.timed)) {
      throw std::invalid_argument("LABOR has no replacement, no weights and no times");
    }
    if (given.last && (!given.timed || given.replace)) {
      throw std::invalid_argument("the last entries are those of a timed rule without replacement");
    }
    const bool is_bound = given.window || given.strictly_earlier;
    if ((is_bound && !given.timed) || (given.monotone && (!given.timed || given.last))) {
      throw std::invalid_argument("windows, and entries that get no later, are those of a timed rule");
    }
    if (given.batch_dependency < 1 || (given.batch_dependency > 1 && !given.labor)) {
      throw std::invalid_argument("a batch_dependency is positive, and 1 but for LABOR");
    }
    return {.fanout = given.fanout,
            .kind = KindOf(given),
            .replace = given.replace,
            .window = given.window,
            .monotone = given.monotone,
            .strictly_earlier = given.strictly_earlier,
            .batch_dependency = given.batch_dependency};
  }

  static DrawKind KindOf(const DrawOptions& given) {
    if (given.labor) return DrawKind::kLabor;
    if (given.last) return given.weighted ? DrawKind::kLastWeighted : DrawKind::kLast;
    if (given.timed) return given.weighted ? DrawKind::kTimedWeighted : DrawKind::kTimed;
    return given.weighted ? DrawKind::kWeighted : DrawKind::kUniform;
  }

  bool labor() const { return kind == DrawKind::kLabor; }
  bool last() const { return kind == DrawKind::kLast || kind == DrawKind::kLastWeighted; }
  bool timed() const { return kind == DrawKind::kTimed || kind == DrawKind::kTimedWeighted || last(); }
  bool weighted() const {
    return kind == DrawKind::kWeighted || kind == DrawKind::kTimedWeighted || kind == DrawKind::kLastWeighted;
  }
};

// The time of each tree, of timed rules, and the time at which its window begins, of those with a window.
struct TreeSpans {
  std::span<const int64_t> times;
  std::span<const int64_t> starts;
};

// One hop over one edge type: its rule, and where its randomness lies.
struct HopDraw {
  uint64_t key;      // of the batch
  uint32_t address;  // 24 bits: the edge type's place in the draws
  int hop;
  DrawRule rule;
  bool disjoint = false;  // draws depend on the trees of targets
  TreeSpans trees = {};
  uint64_t number = 0;  // of the batch in its epoch, of rules with a batch_dependency: the key is then that of the epoch

  uint64_t place() const { return uint64_t{address} << 32 | static_cast<uint64_t>(hop) << 56; }
};

// One adjacency list: entries [first, first + degree) of its part.
struct ListView {
  const AdjacencyPart* part;
  int64_t number;  // in the part
  int64_t first;
  int64_t degree;
  int64_t cut_off = 0;  // entries of the list before `first`
};

// How a kind of draw counts and picks entries of lists.
//
//   int64_t Count(address, list): the number of entries that are taken from a list; called once for each list
//   void Pick(address, list, count, emit): calls emit(i) for every drawn entry i of a list, i below its degree, `count`
//     of them. Called for the lists in the order in which they were counted
template <typename Policy>
concept ListPolicy = requires(Policy policy, const DrawAddress& address, const ListView& list, int64_t count,
                              void (*emit)(int64_t)) {
  { policy.Count(address, list) } -> std::same_as<int64_t>;
  policy.Pick(address, list, count, emit);
};

// What BlockDrawer draws by. Lists are found kAhead targets before their entries are counted, and Fetch asks for the
// memory that counting reads. A timed policy cuts each list before it counts it (TimedPolicy::Cut), and its entries are
// places in the order of time.
template <typename Policy>
concept DrawPolicy = ListPolicy<Policy> && requires(const Policy policy, const ListView& list) {
  { Policy::kTimed } -> std::convertible_to<bool>;
  { Policy::kAhead } -> std::convertible_to<int64_t>;
  policy.Fetch(list);
};

// Draws all entries with the same probability.
class UniformPolicy {
 public:
  static constexpr bool kTimed = false;
  static constexpr int64_t kAhead = 1;

  UniformPolicy(const DrawRule& rule, Picker& picker) : rule_(rule), picker_(picker) {}

  void Fetch(const ListView&) const {}

  int64_t Count(const DrawAddress&, const ListView& list) const {
    return Picker::Count(list.degree, rule_.fanout, rule_.replace);
  }

  template <typename Emit>
  void Pick(const DrawAddress& address, const ListView& list, int64_t, Emit emit) {
    picker_.Pick(address, list.degree, rule_.fanout, rule_.replace, emit);
  }

 private:
  const DrawRule rule_;
  Picker& picker_;
};

// Draws entries in proportion to their weights. Entries of weight 0 are never drawn.
class WeightedPolicy {
 public:
  static constexpr bool kTimed = false;
  static constexpr int64_t kAhead = 1;

  WeightedPolicy(const DrawRule& rule, WeightedPicker& picker) : rule_(rule), picker_(picker) {}

  // For the searches of the list, which begin when the whole block is counted.
  void Fetch(const ListView& list) const {
    __builtin_prefetch(list.part->weight_sums + list.first + list.degree / 2, 0, 1);
    __builtin_prefetch(list.part->weight_sums + list.first + list.degree - 1, 0, 1);
  }

  int64_t Count(const DrawAddress&, const ListView& list) const {
    const int64_t weights = list.part->weight_counts[list.number];
    // Damaged otherwise: `degree` bounds what is written.
    return Picker::Count(std::clamp<int64_t>(weights, 0, list.degree), rule_.fanout, rule_.replace);
  }

  // Entries may lie outside the list where the weights are damaged, and fewer than counted may be emitted.
  template <typename Emit>
  void Pick(const DrawAddress& address, const ListView& list, int64_t count, Emit emit) {
    const WeightView view{list.part->weight_sums + list.first, list.degree};
    const int64_t weights = list.part->weight_counts[list.number];
    int64_t emitted = 0;
    const auto checked = [&](int64_t entry) {
      if (entry < 0 || entry >= list.degree) ThrowDamaged("weights do not rise to their sum");
      ++emitted;
      emit(entry);
    };
    if (rule_.fanout < 0 || (!rule_.replace && weights <= rule_.fanout)) {
      WeightedPicker::PickAll(view, count, checked);
    } else if (rule_.replace) {
      WeightedPicker::PickReplacing(address, view, count, checked);
    } else {
      picker_.PickDistinct(address, view, count, checked);
    }
    if (emitted != count) ThrowDamaged("there are fewer weights than counted");
  }

 private:
  const DrawRule rule_;
  WeightedPicker& picker_;
};

// The nodes that lists hold.
struct NeighborNodes {
  int64_t count;
  const int64_t* ids;  // position -> node id; nullptr where they are equal
};

// Entries that were picked when they were counted, for all lists of a block.
class PickQueue : public Buffer<int64_t> {
 public:
  void Reset() {
    Clear();
    next_ = 0;
  }

  // Emits the next `count` entries.
  template <typename Emit>
  void Take(int64_t count, Emit emit) {
    ForEachUnlessStopped(count, [&](int64_t) { emit((*this)[next_++]); });
    if (next_ == size()) Reset();
  }

 private:
  size_t next_ = 0;
};

// The random numbers r_t of the nodes t of one hop, by node id, over 2^64: a stream of splitmix64 at place t. With a
// batch_dependency k, a node keeps its number for k batches, and each batch renews those of 1 / k of the nodes.
class LaborWords {
 public:
  explicit LaborWords(const HopDraw& draw) : dependent_(draw.rule.batch_dependency > 1) {
    if (!dependent_) {
      now_ = Stream(draw, draw.key);
      return;
    }
    const auto dependency = static_cast<uint64_t>(draw.rule.batch_dependency);
    const uint64_t round = draw.number / dependency;
    phases_ = Stream(draw, draw.key);
    now_ = Stream(draw, RoundKey(draw.key, round));
    next_ = Stream(draw, RoundKey(draw.key, round + 1));
    renewed_ = CeilOver64(draw.number % dependency, dependency);
  }

  bool dependent() const { return dependent_; }
  uint64_t OfBatch(int64_t id) const { return At(now_, id); }
  uint64_t OfRound(int64_t id) const { return At(At(phases_, id) < renewed_ ? next_ : now_, id); }

  // The least word that is not below part / whole. part < whole.
  static uint64_t CeilOver64(uint64_t part, uint64_t whole) {
    return static_cast<uint64_t>(((static_cast<uint128>(part) << 64) + whole - 1) / whole);
  }

 private:
  static uint64_t Stream(const HopDraw& draw, uint64_t key) {
    return Philox(key, draw.address, uint64_t{0xFE02} << 48 | static_cast<uint64_t>(draw.hop)).first;
  }
  static uint64_t RoundKey(uint64_t key, uint64_t round) { return Philox(key, round, uint64_t{0xFE05} << 48).first; }
  static uint64_t At(uint64_t stream, int64_t id) {
    return Mix(stream + (static_cast<uint64_t>(id) + 1) * 0x9E3779B97F4A7C15u);
  }

  bool dependent_;
  uint64_t now_ = 0;
  uint64_t next_ = 0;
  uint64_t phases_ = 0;
  uint64_t renewed_ = 0;  // nodes whose phase is below have the numbers of the next round
};

// LABOR-0 (Balin and Catalyurek, NeurIPS 2023): a neighbour t is taken from a list of degree d where r_t < k / d.
// Each t has one r_t in a hop, whatever the target, so that targets take the same neighbours.
class LaborPolicy {
 public:
  static constexpr bool kTimed = false;
  static constexpr int64_t kAhead = 4;

  LaborPolicy(const HopDraw& draw, const NeighborNodes& neighbors, bool wide, PickQueue& picks)
      : draw_(draw), neighbors_(neighbors), wide_(wide), words_(draw), picks_(picks) {}

  void Fetch(const ListView& list) const {
    const char* const entries = static_cast<const char*>(list.part->indices) + (list.first << (wide_ ? 3 : 2));
    __builtin_prefetch(entries, 0, 1);
    __builtin_prefetch(entries + 64, 0, 1);
  }

  // Picks, too: only then is the number known.
  int64_t Count(const DrawAddress&, const ListView& list) {
    if (TakesAll(list)) return list.degree;
    const size_t before = picks_.size();
    wide_ ? Choose(static_cast<const int64_t*>(list.part->indices) + list.first, list.degree)
          : Choose(static_cast<const int32_t*>(list.part->indices) + list.first, list.degree);
    return static_cast<int64_t>(picks_.size() - before);
  }

  template <typename Emit>
  void Pick(const DrawAddress&, const ListView& list, int64_t count, Emit emit) {
    if (TakesAll(list)) {
      ForEachUnlessStopped(list.degree, emit);
      return;
    }
    picks_.Take(count, emit);
  }

 private:
  bool TakesAll(const ListView& list) const { return draw_.rule.fanout < 0 || list.degree <= draw_.rule.fanout; }

  template <typename Index>
  void Choose(const Index* neighbors, int64_t degree) {
    if (words_.dependent()) return Choose(neighbors, degree, [this](int64_t id) { return words_.OfRound(id); });
    Choose(neighbors, degree, [this](int64_t id) { return words_.OfBatch(id); });
  }

  // A chunk of the list at a time: whether an entry is taken is a coin toss, so that all take the same path.
  template <typename Index, typename Word>
  void Choose(const Index* neighbors, int64_t degree, Word word) {
    const uint64_t limit = LaborWords::CeilOver64(static_cast<uint64_t>(draw_.rule.fanout), static_cast<uint64_t>(degree));
    for (int64_t begin = 0; begin < degree; begin += kChunk) {
      const int64_t end = std::min(begin + kChunk, degree);
      work_.Add(end - begin);
      bool inside = true;
      for (int64_t i = begin; i < end; ++i) inside &= neighbors[i] >= 0 && neighbors[i] < neighbors_.count;
      if (!inside) ThrowDamaged("a neighbour lies outside its node type");
      int64_t* const picks = picks_.Extend(end - begin);
      int64_t* next = picks;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t id = neighbors_.ids == nullptr ? neighbors[i] : neighbors_.ids[neighbors[i]];
        *next = i;
        next += word(id) < limit;
      }
      picks_.Truncate(next - picks_.data());
    }
  }

  static constexpr int64_t kChunk = 1024;

  const HopDraw& draw_;
  const NeighborNodes neighbors_;
  const bool wide_;
  const LaborWords words_;
  PickQueue& picks_;
  WorkCounter work_;
};

// Entries of a list that are not later than a time: the first of those that the adjacency has in order of time.
inline int64_t NotLater(const ListView& list, int64_t time) {
  const int64_t* const times = list.part->times + list.first;
  return std::upper_bound(times, times + list.degree, time) - times;
}

// Entries of a list that are earlier than a time.
inline int64_t Earlier(const ListView& list, int64_t time) {
  const int64_t* const times = list.part->times + list.first;
  return std::lower_bound(times, times + list.degree, time) - times;
}

// Draws by time: the same draws as another policy, from the lists in order of time, cut at the time of a tree.
// Entries that it emits are places in that order.
template <ListPolicy Policy>
class TimedPolicy : public Policy {
 public:
  static constexpr bool kTimed = true;
  static constexpr int64_t kAhead = 8;

  TimedPolicy(const HopDraw& draw, Policy policy) : Policy(policy), draw_(draw) {}

  void Fetch(const ListView& list) const {
    __builtin_prefetch(list.part->times + list.first, 0, 1);
    __builtin_prefetch(list.part->times + list.first + list.degree / 2, 0, 1);
  }

  // Leaves in a list what a tree may draw; of a monotone rule, what `bound` allows.
  void Cut(ListView& list, int64_t tree, int64_t bound) const {
    const int64_t end = draw_.rule.monotone ? bound : draw_.trees.times[tree];
    list.degree = draw_.rule.strictly_earlier ? Earlier(list, end) : NotLater(list, end);
    if (!draw_.rule.window) return;
    list.cut_off = Earlier(list, draw_.trees.starts[tree]);
    list.first += list.cut_off;
    list.degree -= list.cut_off;
  }

 private:
  const HopDraw& draw_;
};

// Takes the latest entries.
class LastPolicy {
 public:
  explicit LastPolicy(const DrawRule& rule) : rule_(rule) {}

  int64_t Count(const DrawAddress&, const ListView& list) const {
    return Picker::Count(list.degree, rule_.fanout, false);
  }

  template <typename Emit>
  void Pick(const DrawAddress&, const ListView& list, int64_t count, Emit emit) {
    ForEachUnlessStopped(count, [&](int64_t i) { emit(list.degree - 1 - i); });
  }

 private:
  const DrawRule rule_;
};

// Draws in proportion to weights from lists in order of time, or takes the latest entries that have a weight.
// How many entries of a cut list have a weight is not known, so that counting picks, too.
class TimedWeightedPolicy {
 public:
  TimedWeightedPolicy(const DrawRule& rule, WeightedPicker& picker, PickQueue& picks)
      : rule_(rule), picker_(picker), picks_(picks) {}

  int64_t Count(const DrawAddress& address, const ListView& list) {
    const WeightView view = Weights(list);
    const size_t before = picks_.size();
    const auto checked = [&](int64_t entry) {
      if (entry < 0 || entry >= list.degree) ThrowDamaged("weights do not rise to their sum");
      picks_.Push(entry);
    };
    // Of a damaged list, too, no more is picked than it has entries.
    const int64_t most = rule_.fanout < 0 ? list.degree : std::min<int64_t>(rule_.fanout, list.degree);
    if (view.base < 0 || view.total() < 0) ThrowDamaged("weights do not rise to their sum");
    if (rule_.last()) {
      WeightedPicker::PickLast(view, most, checked);
    } else if (rule_.fanout < 0) {
      WeightedPicker::PickAll(view, most, checked);
    } else if (!rule_.replace) {
      picker_.PickDistinct(address, view, most, checked);
      // All that have a weight come in the order of the list, as those of a short list do.
      int64_t taken = 0;
      for (size_t i = before; i < picks_.size(); ++i) taken += view.sum(picks_[i]) - view.before(picks_[i]);
      if (taken == view.total()) {
        SortUnlessStopped(picks_.data() + before, picks_.data() + picks_.size(), std::less<int64_t>());
      }
    } else if (view.total() > 0) {
      return rule_.fanout;
    }
    return static_cast<int64_t>(picks_.size() - before);
  }

  template <typename Emit>
  void Pick(const DrawAddress& address, const ListView& list, int64_t count, Emit emit) {
    if (!rule_.replace || rule_.fanout < 0) return picks_.Take(count, emit);
    WeightedPicker::PickReplacing(address, Weights(list), count, [&](int64_t entry) {
      if (entry < 0 || entry >= list.degree) ThrowDamaged("weights do not rise to their sum");
      emit(entry);
    });
  }

 private:
  // The whole numbers of a cut list are those of the whole list.
  static WeightView Weights(const ListView& list) {
    const int64_t* const sums = list.part->time_sums + list.first;
    return {sums, list.degree, list.cut_off > 0 ? sums[-1] : 0};
  }

  const DrawRule rule_;
  WeightedPicker& picker_;
  PickQueue& picks_;
};

// The scratch memory of every policy, kept from hop to hop.
struct DrawScratch {
  Picker picker;
  WeightedPicker weighted;
  PickQueue picks;

  size_t nbytes() const { return picker.nbytes() + weighted.nbytes() + picks.nbytes(); }
};

// Calls `run` with the policy of a draw, and returns what it returns.
template <typename Run>
auto WithPolicy(const HopDraw& draw, const AdjacencyView& adjacency, const NeighborNodes& neighbors,
                DrawScratch& scratch, Run run) {
  scratch.picks.Reset();
  switch (draw.rule.kind) {
    case DrawKind::kUniform: return run(UniformPolicy(draw.rule, scratch.picker));
    case DrawKind::kWeighted: return run(WeightedPolicy(draw.rule, scratch.weighted));
    case DrawKind::kLabor: return run(LaborPolicy(draw, neighbors, adjacency.wide_indices, scratch.picks));
    case DrawKind::kTimed: return run(TimedPolicy(draw, UniformPolicy(draw.rule, scratch.picker)));
    case DrawKind::kLast: return run(TimedPolicy(draw, LastPolicy(draw.rule)));
    case DrawKind::kTimedWeighted:
    case DrawKind::kLastWeighted:
      return run(TimedPolicy(draw, TimedWeightedPolicy(draw.rule, scratch.weighted, scratch.picks)));
  }
  throw std::invalid_argument("there is no such kind of draw");
}

}  // namespace gigl
