#include "binding.h"
#include "bucketing.h"

namespace gigl {
namespace {

template <typename Position>
std::span<const Position> SpanAs(const AnyArray& array) {
  return {static_cast<const Position*>(array.data()), array.shape(0)};
}

NewArray<uint32_t> BindFindBuckets(const Array<const int64_t>& cuts, const AnyArray& positions) {
  Require(cuts.shape(0) > 0 && cuts.shape(0) < uint64_t{1} << 32, "there are 1 to 2^32 - 1 buckets");
  RequireRising(Span(cuts));
  const bool wide = IsWide(positions, "positions");
  const size_t size = positions.shape(0);
  std::unique_ptr<uint32_t[]> buckets(new uint32_t[size + 1]);
  {
    ReleaseGil release;
    const std::span<uint32_t> found(buckets.get(), size);
    if (wide) {
      FindBuckets<int64_t>(Span(cuts), SpanAs<int64_t>(positions), found);
    } else {
      FindBuckets<int32_t>(Span(cuts), SpanAs<int32_t>(positions), found);
    }
  }
  return HandOver(std::move(buckets), size);
}

nb::tuple BindOrderByBucket(const Array<const uint32_t>& buckets, int64_t num_buckets) {
  Require(num_buckets >= 0 && num_buckets < int64_t{1} << 32, "num_buckets lies in [0, 2^32)");
  const size_t size = buckets.shape(0);
  std::unique_ptr<int64_t[]> order(new int64_t[size + 1]);
  std::unique_ptr<int64_t[]> starts(new int64_t[num_buckets + 1]);
  int64_t wrong;
  {
    ReleaseGil release;
    wrong = OrderByBucket(Span(buckets), {order.get(), size}, {starts.get(), static_cast<size_t>(num_buckets) + 1});
  }
  Require(wrong < 0, "row " + std::to_string(wrong) + " is in no bucket below " + std::to_string(num_buckets));
  return nb::make_tuple(HandOver(std::move(order), size), HandOver(std::move(starts), num_buckets + 1));
}

}  // namespace

void BindBuckets(nb::module_& m) {
  using namespace nb::literals;
  m.def("find_buckets", &BindFindBuckets, "cuts"_a.noconvert(), "positions"_a.noconvert());
  m.def("order_by_bucket", &BindOrderByBucket, "buckets"_a.noconvert(), "num_buckets"_a);
}

}  // namespace gigl
