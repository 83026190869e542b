// The Python face of the row cache.

#include "binding.h"
#include "row_cache.h"

namespace gigl {
using namespace nb::literals;

namespace {

void RequireSet(const Array<const uint64_t>& bits, size_t ranks, int64_t num_rows) {
  Require(num_rows >= 0, "num_rows must not be negative");
  Require(bits.shape(0) == static_cast<size_t>((num_rows + 63) / 64), "bits needs a word for every 64 rows");
  Require(ranks == bits.shape(0), "bits and ranks differ in length");
}

int64_t BindCountRows(const Array<const uint64_t>& bits, const Array<int32_t>& ranks) {
  Require(ranks.shape(0) == bits.shape(0), "bits and ranks differ in length");
  int64_t count;
  {
    ReleaseGil release;
    count = CountRows(Span(bits), Span(ranks));
  }
  Require(count >= 0, "a cache holds at most 2^31 - 1 rows");
  return count;
}

nb::tuple BindSplitByCache(const Array<const uint64_t>& bits, const Array<const int32_t>& ranks, int64_t num_rows,
                           const Array<const int64_t>& rows, const Array<const int64_t>& places) {
  RequireSet(bits, ranks.shape(0), num_rows);
  Require(places.shape(0) == rows.shape(0), "rows and places differ in length");
  const size_t count = rows.shape(0);
  // Filled to different lengths, and only as far as they are filled are pages touched.
  std::unique_ptr<int64_t[]> hits(new int64_t[count]), hit_places(new int64_t[count]);
  std::unique_ptr<int64_t[]> misses(new int64_t[count]), miss_places(new int64_t[count]);
  int64_t num_hits;
  {
    ReleaseGil release;
    num_hits = SplitByCache({Span(bits), Span(ranks), num_rows}, Span(rows), Span(places), hits.get(),
                            hit_places.get(), misses.get(), miss_places.get());
  }
  Require(num_hits >= 0, "row " + std::to_string(num_hits < 0 ? rows(-1 - num_hits) : 0) + " lies outside [0, " +
                             std::to_string(num_rows) + ")");
  const size_t num_misses = count - num_hits;
  return nb::make_tuple(HandOver(std::move(hits), num_hits), HandOver(std::move(hit_places), num_hits),
                        HandOver(std::move(misses), num_misses), HandOver(std::move(miss_places), num_misses));
}

}  // namespace

void BindRowCache(nb::module_& m) {
  m.def("count_rows", &BindCountRows, "bits"_a.noconvert(), "ranks"_a.noconvert());
  m.def("split_by_cache", &BindSplitByCache, "bits"_a.noconvert(), "ranks"_a.noconvert(), "num_rows"_a,
        "rows"_a.noconvert(), "places"_a.noconvert());
}

}  // namespace gigl
