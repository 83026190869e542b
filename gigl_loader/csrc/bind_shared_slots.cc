// The Python face of the slots of other ranks.

#include "bind_shared_slots.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

namespace gigl {
namespace {

using Targets = std::vector<MutableRows>;

void Init(BoundPeerSlots* self, const Array<const uint32_t>& table, const HeadRows& heads, const Array<uint32_t>& marks,
          const Array<const int64_t>& clock, const std::vector<Rows>& columns, bool first) {
  const size_t num_slots = heads.shape(0);
  RequireGeometry(num_slots, table.shape(0), marks.shape(0), clock.shape(0));
  PeerSlots slots{Span(table), {reinterpret_cast<const SlotHead*>(heads.data()), num_slots}, Span(marks), clock.data(), {}, first};
  for (const Rows& column : columns) {
    Require(column.shape(0) == num_slots, "each column has a row for each slot");
    slots.columns.push_back({reinterpret_cast<const std::byte*>(column.data()), column.shape(1)});
  }
  new (self) BoundPeerSlots{std::move(slots), table, heads, marks, clock, columns};
}

// Copies rows that any of the slots have. Returns which were copied: bool [N].
nb::ndarray<nb::numpy, bool, nb::ndim<1>> CopyFrom(const std::vector<const BoundPeerSlots*>& peers, const Array<const int64_t>& rows,
                                                   const std::optional<Array<const int64_t>>& places, const Targets& out) {
  const size_t count = rows.shape(0);
  Require(!places || places->shape(0) == count, "rows and places differ in length");
  std::vector<PeerSlots::Target> targets;
  for (const MutableRows& each : out) targets.push_back({reinterpret_cast<std::byte*>(each.data()), each.shape(0)});
  for (const BoundPeerSlots* peer : peers) {
    Require(peer->columns.size() == out.size(), "peers and out have as many columns");
    for (size_t c = 0; c < out.size(); ++c) Require(peer->columns[c].shape(1) == out[c].shape(1), "peers and out need rows of the same size");
  }
  std::unique_ptr<uint8_t[]> copied(new uint8_t[std::max<size_t>(count, 1)]());
  bool inside = true;
  {
    ReleaseGil release;
    for (const BoundPeerSlots* peer : peers) {
      inside = inside && peer->slots.Copy(Span(rows), places ? Span(*places) : std::span<const int64_t>(), targets, {copied.get(), count});
    }
  }
  Require(inside, "a place lies outside of out");
  bool* const data = reinterpret_cast<bool*>(copied.release());
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
  return nb::ndarray<nb::numpy, bool, nb::ndim<1>>(data, {count}, owner);
}

}  // namespace

void BindSharedSlots(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<BoundPeerSlots>(m, "PeerSlots")
      .def("__init__", &Init, "table"_a.noconvert(), "heads"_a.noconvert(), "marks"_a.noconvert(), "clock"_a.noconvert(),
           "columns"_a.noconvert(), "first"_a);
  m.def("copy_from_peers", &CopyFrom, "peers"_a, "rows"_a.noconvert(), "places"_a.noconvert().none(), "out"_a.noconvert());
  m.def("slot_table_size", &TableSize, "num_slots"_a);
}

}  // namespace gigl
