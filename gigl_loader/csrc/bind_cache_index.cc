#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bind_shared_slots.h"
#include "binding.h"
#include "cache_index.h"

namespace gigl {
namespace {

using RowLists = std::vector<Array<const int64_t>>;

// table, heads, marks, clock
using Published = std::tuple<Array<uint32_t>, MutableHeadRows, Array<const uint32_t>, Array<int64_t>>;

void Init(CacheIndex* self, int64_t num_slots, int64_t num_rows, const std::optional<Published>& published) {
  Require(num_slots >= 1 && num_slots <= CacheIndex::kMaxSlots, "num_slots lies in [1, 2^31 - 1]");
  Require(num_rows >= 0, "num_rows must not be negative");
  PublishedSlots slots;
  if (published) {
    const auto& [table, heads, marks, clock] = *published;
    Require(heads.shape(0) == static_cast<size_t>(num_slots), "heads has num_slots rows");
    RequireGeometry(heads.shape(0), table.shape(0), marks.shape(0), clock.shape(0));
    slots = {Span(table), {reinterpret_cast<SlotHead*>(heads.data()), heads.shape(0)}, Span(marks), clock.data()};
  }
  new (self) CacheIndex(num_slots, num_rows, slots);
}

void RequireRows(const CacheIndex& index, bool accepted) {
  const std::string end = index.num_rows() > 0 ? std::to_string(index.num_rows()) : "2^63";
  Require(accepted, "a row lies outside [0, " + end + ")");
}

std::vector<std::span<const int64_t>> Spans(const RowLists& lists) {
  std::vector<std::span<const int64_t>> spans(lists.size());
  std::transform(lists.begin(), lists.end(), spans.begin(), [](const auto& list) { return Span(list); });
  return spans;
}

NewArray<int64_t> Copied(const std::vector<int64_t>& values) {
  std::unique_ptr<int64_t[]> memory(new int64_t[std::max<size_t>(values.size(), 1)]);
  std::copy(values.begin(), values.end(), memory.get());
  return HandOver(std::move(memory), values.size());
}

nb::object Plan(CacheIndex& index, const RowLists& batches, const RowLists& ahead, bool partial,
                const std::vector<const BoundPeerSlots*>& peers) {
  Require(ahead.size() < CacheIndex::kMaxAhead, "ahead has at most 2^23 - 1 batches");
  const std::vector<std::span<const int64_t>> rows = Spans(batches), later = Spans(ahead);
  std::vector<std::unique_ptr<int64_t[]>> slots;
  std::vector<int64_t*> targets;
  slots.reserve(rows.size());
  targets.reserve(rows.size());
  for (const auto& each : rows) targets.push_back(slots.emplace_back(new int64_t[std::max<size_t>(each.size(), 1)]).get());
  const auto accepted = [&index](const auto& each) { return index.Accepts(each); };
  const std::vector<const PeerSlots*> others = PointersTo(peers);
  bool all_accepted;
  std::optional<WindowPlan> plan;
  {
    ReleaseGil release;
    all_accepted = std::all_of(rows.begin(), rows.end(), accepted) && std::all_of(later.begin(), later.end(), accepted);
    if (all_accepted) plan = index.Plan(rows, later, targets, partial, others);
  }
  RequireRows(index, all_accepted);
  if (!plan) return nb::none();
  nb::list found;
  for (size_t b = 0; b < rows.size(); ++b) found.append(HandOver(std::move(slots[b]), rows[b].size()));
  return nb::make_tuple(plan->number, found, Copied(plan->missing), Copied(plan->missing_slots));
}

bool Fits(CacheIndex& index, const RowLists& batches, const std::vector<const BoundPeerSlots*>& peers) {
  const std::vector<std::span<const int64_t>> rows = Spans(batches);
  const std::vector<const PeerSlots*> others = PointersTo(peers);
  bool accepted, fits = false;
  {
    ReleaseGil release;
    accepted = std::all_of(rows.begin(), rows.end(), [&index](const auto& each) { return index.Accepts(each); });
    if (accepted) fits = index.Fits(rows, others);
  }
  RequireRows(index, accepted);
  return fits;
}

void RequirePinned(bool pinned, int64_t window) { Require(pinned, "window " + std::to_string(window) + " is not pinned"); }

void Count(CacheIndex& index, const Array<const int64_t>& rows) {
  Require(index.num_rows() > 0, "an index without num_rows keeps no counts");
  bool accepted;
  {
    ReleaseGil release;
    accepted = index.Accepts(Span(rows));
    if (accepted) index.Count(Span(rows));
  }
  RequireRows(index, accepted);
}

void Preset(CacheIndex& index, const Array<const uint8_t>& counts) {
  Require(index.num_rows() > 0, "an index without num_rows keeps no counts");
  Require(counts.shape(0) == static_cast<size_t>(index.num_rows()), "counts has an entry for every row");
  index.Preset(Span(counts));
}

}  // namespace

void BindCacheIndex(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<CacheIndex>(m, "CacheIndex")
      .def("__init__", &Init, "num_slots"_a, "num_rows"_a = 0, "published"_a.noconvert() = nb::none(), nb::keep_alive<1, 4>())
      .def("plan", &Plan, "batches"_a.noconvert(), "ahead"_a.noconvert() = nb::list(), "partial"_a = false, "peers"_a = nb::list())
      .def("fits", &Fits, "batches"_a.noconvert(), "peers"_a = nb::list())
      .def("publish", [](CacheIndex& index, int64_t window) { RequirePinned(index.Publish(window), window); }, "window"_a)
      .def("release", [](CacheIndex& index, int64_t window) { RequirePinned(index.Release(window), window); }, "window"_a)
      .def("forget", [](CacheIndex& index, int64_t window) { RequirePinned(index.Forget(window), window); }, "window"_a)
      .def("count", &Count, "rows"_a.noconvert())
      .def("preset", &Preset, "counts"_a.noconvert())
      .def_prop_ro("num_slots", &CacheIndex::num_slots)
      .def_prop_ro("num_used", &CacheIndex::num_used)
      .def_prop_ro("num_pinned", &CacheIndex::num_pinned)
      .def_prop_ro("hits", &CacheIndex::hits)
      .def_prop_ro("evicted", &CacheIndex::evicted)
      .def_prop_ro("nbytes", &CacheIndex::nbytes);
}

}  // namespace gigl
