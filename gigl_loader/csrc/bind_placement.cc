#include <vector>

#include "binding.h"
#include "greedy_placement.h"
#include "routing.h"

namespace gigl {
namespace {

void Init(GreedyPlacement* self, const Array<const int64_t>& counts, const Array<const int64_t>& capacities,
          const Array<const int64_t>& floors, int64_t num_partitions) {
  Require(num_partitions >= 1 && num_partitions <= kMaxPartitions, "num_partitions lies in [1, 65536]");
  Require(capacities.shape(0) == counts.shape(0) && floors.shape(0) == counts.shape(0),
          "counts, capacities and floors differ in length");
  Require(counts.shape(0) <= 1 << 16, "there are at most 65536 kinds");
  std::vector<PlacedKind> kinds;
  for (size_t k = 0; k < counts.shape(0); ++k) {
    const PlacedKind kind{Span(counts)[k], Span(capacities)[k], Span(floors)[k]};
    Require(kind.count >= 0 && kind.count <= int64_t{1} << 46, "a count lies in [0, 2^46]");
    Require(kind.capacity >= 0 && kind.capacity <= kind.count && kind.capacity * num_partitions >= kind.count,
            "the capacities must hold all nodes, and no more than all each");
    Require(kind.floor >= 0 && kind.floor <= kind.count / num_partitions, "the floors must not exceed the nodes");
    kinds.push_back(kind);
  }
  new (self) GreedyPlacement(kinds, static_cast<int32_t>(num_partitions));
}

template <typename Index>
int64_t PlaceAs(GreedyPlacement& placement, std::span<const uint16_t> kinds, const AnyArray& targets,
                const AnyArray& neighbors, std::span<const int64_t> more) {
  const auto as_span = [](const AnyArray& array) {
    return std::span<const Index>(static_cast<const Index*>(array.data()), array.shape(0));
  };
  return placement.Place<Index>(kinds, as_span(targets), as_span(neighbors), more);
}

void Place(GreedyPlacement& placement, const Array<const uint16_t>& kinds, const AnyArray& targets,
           const AnyArray& neighbors, const Array<const int64_t>& more) {
  const bool wide = IsWide(targets, "targets");
  Require(IsWide(neighbors, "neighbors") == wide, "targets and neighbors differ in dtype");
  Require(targets.shape(0) == neighbors.shape(0), "targets and neighbors differ in length");
  Require(more.shape(0) == 0 || more.shape(0) == static_cast<size_t>(placement.num_partitions()),
          "more has an entry for every partition, or none");
  for (const int64_t count : Span(more)) Require(count >= 0, "more must not be negative");
  int64_t wrong;
  {
    ReleaseGil release;
    wrong = wide ? PlaceAs<int64_t>(placement, Span(kinds), targets, neighbors, Span(more))
                 : PlaceAs<int32_t>(placement, Span(kinds), targets, neighbors, Span(more));
  }
  Require(wrong < 0, "edge " + std::to_string(wrong) + " does not join a node of this call with one before it");
}

}  // namespace

void BindPlacement(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<GreedyPlacement>(m, "GreedyPlacement")
      .def("__init__", &Init, "counts"_a.noconvert(), "capacities"_a.noconvert(), "floors"_a.noconvert(),
           "num_partitions"_a)
      .def("place", &Place, "kinds"_a.noconvert(), "targets"_a.noconvert(), "neighbors"_a.noconvert(),
           "more"_a.noconvert())
      .def_prop_ro(
          "owners",
          [](const GreedyPlacement& placement) {
            // The memory is reserved once: it does not move while nodes are added.
            return nb::ndarray<nb::numpy, const uint16_t, nb::ndim<1>>(placement.owners().data(),
                                                                       {placement.owners().size()}, nb::handle());
          },
          nb::rv_policy::reference_internal);
}

}  // namespace gigl
