// How entries of adjacency lists are counted and picked: the part of a draw that differs between samplers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "adjacency.h"
#include "pick.h"
#include "random.h"

namespace gigl {

// How the neighbours of a target are drawn.
struct DrawRule {
  int32_t fanout;  // -1 all, 0 none
  bool replace;    // with replacement
};

// One hop over one edge type: its rule, and where its randomness lies.
struct HopDraw {
  uint64_t key;      // of the batch
  uint32_t address;  // 24 bits: the edge type's place in the draws
  int hop;
  DrawRule rule;

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

// The scratch memory of every policy, kept from hop to hop.
struct DrawScratch {
  Picker picker;

  size_t nbytes() const { return picker.nbytes(); }
};

// Calls `run` with the policy of a rule.
template <typename Run>
void WithPolicy(const DrawRule& rule, DrawScratch& scratch, Run run) {
  run(UniformPolicy(rule, scratch.picker));
}

}  // namespace gigl
