#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "binding.h"
#include "bound_adjacency.h"
#include "position_lists.h"

namespace gigl {
namespace {

template <typename T, typename From, typename Value>
NewArray<T> ArrayOf(const std::vector<From>& values, Value value) {
  std::unique_ptr<T[]> memory(new T[std::max<size_t>(values.size(), 1)]);
  std::transform(values.begin(), values.end(), memory.get(), value);
  return HandOver(std::move(memory), values.size());
}

nb::tuple BindRelabel(const Array<const int64_t>& first, const Array<const int64_t>& values) {
  Require(first.shape(0) + values.shape(0) <= size_t{1} << 30, "more than 2^30 positions");
  std::vector<int64_t> distinct;
  std::unique_ptr<int32_t[]> places(new int32_t[std::max<size_t>(values.shape(0), 1)]);
  {
    ReleaseGil release;
    distinct = Relabel(Span(first), Span(values), {places.get(), values.shape(0)});
  }
  return nb::make_tuple(ArrayOf<int64_t>(distinct, [](int64_t each) { return each; }), HandOver(std::move(places), values.shape(0)));
}

// Positions have to be of nodes where their ids are read.
void RequireIds(std::span<const int64_t> positions, const NodeIds& ids) {
  if (!ids) return;
  const int64_t count = static_cast<int64_t>(ids->shape(0));
  const bool inside = std::all_of(positions.begin(), positions.end(), [count](int64_t each) { return each < count; });
  Require(inside, "a position without a node id");
}

nb::tuple BindMostVisited(const Array<const int32_t>& owners, int32_t num_owners, const Array<const int64_t>& visits,
                          const NodeIds& ids, int64_t most) {
  Require(num_owners >= 0 && most >= 0, "num_owners and most must not be negative");
  Require(visits.shape(0) <= size_t{1} << 30, "more than 2^30 visits");
  Require(owners.shape(0) == 0 ? visits.shape(0) == 0 : visits.shape(0) % owners.shape(0) == 0, "as many visits for each walk");
  const std::span<const int32_t> all = Span(owners);
  Require(std::all_of(all.begin(), all.end(), [&](int32_t each) { return each >= 0 && each < num_owners; }), "an unknown owner");
  RequireIds(Span(visits), ids);
  std::vector<Visited> found;
  {
    ReleaseGil release;
    found = MostVisited(all, num_owners, Span(visits), ids ? ids->data() : nullptr, most);
  }
  return nb::make_tuple(ArrayOf<int32_t>(found, [](const Visited& each) { return each.owner; }),
                        ArrayOf<int64_t>(found, [](const Visited& each) { return each.node; }),
                        ArrayOf<float>(found, [](const Visited& each) { return each.share; }));
}

void BindSortLists(const Array<const int64_t>& counts, const NodeIds& ids, const Array<int64_t>& positions) {
  int64_t left = static_cast<int64_t>(positions.shape(0));
  for (const int64_t count : Span(counts)) {
    Require(count >= 0 && count <= left, "counts do not add up to the number of positions");
    left -= count;
  }
  Require(left == 0, "counts do not add up to the number of positions");
  const std::span<const int64_t> all = Span(positions);
  Require(!ids || std::all_of(all.begin(), all.end(), [](int64_t each) { return each >= 0; }), "a position without a node id");
  RequireIds(all, ids);
  ReleaseGil release;
  SortLists(Span(counts), ids ? ids->data() : nullptr, Span(positions));
}

}  // namespace

void BindPositionLists(nb::module_& m) {
  using namespace nb::literals;
  m.def("relabel", &BindRelabel, "first"_a.noconvert(), "values"_a.noconvert());
  m.def("most_visited", &BindMostVisited, "owners"_a.noconvert(), "num_owners"_a, "visits"_a.noconvert(),
        "ids"_a.noconvert().none(), "most"_a);
  m.def("sort_lists", &BindSortLists, "counts"_a.noconvert(), "ids"_a.noconvert().none(), "positions"_a.noconvert());
}

}  // namespace gigl
