// How entries of adjacency lists are counted and picked: the part of a draw that differs between samplers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "adjacency.h"
#include "pick.h"
#include "random.h"
#include "weighted_pick.h"

namespace gigl {

[[noreturn]] inline void ThrowDamaged(const char* what) {
  throw std::runtime_error(std::string("damaged adjacency: ") + what);
}

// How the neighbours of a target are drawn.
struct DrawRule {
  int32_t fanout;  // -1 all, 0 none
  bool replace;    // with replacement
  bool weighted;   // in proportion to the edges' weights, which the adjacency then has
};

// One hop over one edge type: its rule, and where its randomness lies.
struct HopDraw {
  uint64_t key;      // of the batch
  uint32_t address;  // 24 bits: the edge type's place in the draws
  int hop;
  DrawRule rule;
  bool disjoint = false;  // draws depend on the trees of targets

  uint64_t place() const { return uint64_t{address} << 32 | static_cast<uint64_t>(hop) << 56; }
};

// One adjacency list: entries [first, first + degree) of its part.
struct ListView {
  const AdjacencyPart* part;
  int64_t number;  // in the part
  int64_t first;
  int64_t degree;
};

// Draws all entries with the same probability.
class UniformPolicy {
 public:
  UniformPolicy(const DrawRule& rule, Picker& picker) : rule_(rule), picker_(picker) {}

  // Number of entries that are taken from a list.
  int64_t Count(const ListView& list) const { return Picker::Count(list.degree, rule_.fanout, rule_.replace); }

  // Calls emit(i) for every drawn entry i of a list, i below its degree.
  template <typename Emit>
  void Pick(const DrawAddress& address, const ListView& list, Emit emit) {
    picker_.Pick(address, list.degree, rule_.fanout, rule_.replace, emit);
  }

 private:
  const DrawRule rule_;
  Picker& picker_;
};

// Draws entries in proportion to their weights. Entries of weight 0 are never drawn.
class WeightedPolicy {
 public:
  WeightedPolicy(const DrawRule& rule, WeightedPicker& picker) : rule_(rule), picker_(picker) {}

  int64_t Count(const ListView& list) const {
    const int64_t weights = list.part->weight_counts[list.number];
    // What the searches of this list will read first. They begin when the whole block is counted.
    __builtin_prefetch(list.part->weight_sums + list.first + list.degree / 2, 0, 1);
    __builtin_prefetch(list.part->weight_sums + list.first + list.degree - 1, 0, 1);
    // Damaged otherwise: `degree` bounds what is written.
    return Picker::Count(std::clamp<int64_t>(weights, 0, list.degree), rule_.fanout, rule_.replace);
  }

  // Entries may lie outside the list where the weights are damaged, and fewer than counted may be emitted.
  template <typename Emit>
  void Pick(const DrawAddress& address, const ListView& list, Emit emit) {
    const WeightView view{list.part->weight_sums + list.first, list.degree};
    const int64_t weights = list.part->weight_counts[list.number];
    const int64_t count = Count(list);
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

// The scratch memory of every policy, kept from hop to hop.
struct DrawScratch {
  Picker picker;
  WeightedPicker weighted;

  size_t nbytes() const { return picker.nbytes() + weighted.nbytes(); }
};

// Calls `run` with the policy of a rule.
template <typename Run>
void WithPolicy(const DrawRule& rule, DrawScratch& scratch, Run run) {
  rule.weighted ? run(WeightedPolicy(rule, scratch.weighted)) : run(UniformPolicy(rule, scratch.picker));
}

}  // namespace gigl
