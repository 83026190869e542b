// Slots of another rank, with the arrays that they lie in.
#pragma once

#include <vector>

#include "binding.h"
#include "shared_slots.h"

namespace gigl {

using HeadRows = nb::ndarray<const int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using MutableHeadRows = nb::ndarray<int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

struct BoundPeerSlots {
  PeerSlots slots;
  Array<const uint32_t> table;
  HeadRows heads;
  Array<uint32_t> marks;
  Array<const int64_t> clock;
  std::vector<Rows> columns;
};

inline void RequireGeometry(size_t num_slots, size_t table, size_t marks, size_t clock) {
  Require(num_slots >= 1 && num_slots <= INT32_MAX, "heads has one to 2^31 - 1 slots");
  Require(table == TableSize(num_slots), "table has 1.5 entries a slot, and 2");
  Require(marks == num_slots && clock == 1, "marks has an entry for each slot, clock has one");
}

inline std::vector<const PeerSlots*> PointersTo(const std::vector<const BoundPeerSlots*>& peers) {
  std::vector<const PeerSlots*> found;
  for (const BoundPeerSlots* each : peers) found.push_back(&each->slots);
  return found;
}

}  // namespace gigl
