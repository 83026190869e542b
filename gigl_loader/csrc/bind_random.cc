#include <nanobind/stl/pair.h>

#include <utility>

#include "binding.h"
#include "pick.h"
#include "random.h"

namespace gigl {
namespace {

std::pair<uint64_t, uint64_t> BindPhilox(uint64_t key, uint64_t low, uint64_t high) {
  const Words words = Philox(key, low, high);
  return {words.first, words.second};
}

uint64_t BindBatchKey(uint64_t run_seed, uint64_t epoch, const Array<const int64_t>& seeds) {
  return BatchKey(run_seed, epoch, Span(seeds));
}

// Draws distinct numbers as a hop draws the neighbours of a node, from words of (low, place | block).
void BindDrawDistinct(uint64_t key, uint64_t low, uint64_t place, int64_t below, const Array<int64_t>& out) {
  Require(below > static_cast<int64_t>(out.shape(0)) && out.shape(0) <= INT32_MAX, "below must be more than is drawn");
  ReleaseGil release;
  Picker picker;
  int64_t* next = out.data();
  picker.Pick({key, low, place}, below, static_cast<int32_t>(out.shape(0)), false, [&](int64_t drawn) { *next++ = drawn; });
}

void BindPermutation(uint64_t run_seed, uint64_t epoch, const Array<int64_t>& out) {
  ReleaseGil release;
  Permutation(run_seed, epoch, Span(out));
}

void BindUniforms(uint64_t key, const Array<double>& out) {
  ReleaseGil release;
  Uniforms(key, Span(out));
}

void BindPhiloxWords(uint64_t key, const Array<const int64_t>& low, const Array<const int64_t>& high,
                     const Array<uint64_t>& first, const Array<uint64_t>& second) {
  const size_t count = low.shape(0);
  Require(high.shape(0) == count && first.shape(0) == count && second.shape(0) == count,
          "low, high, first and second differ in length");
  ReleaseGil release;
  PhiloxWords(key, Span(low), Span(high), Span(first), Span(second));
}

}  // namespace

void BindRandom(nb::module_& m) {
  using namespace nb::literals;
  m.def("philox", &BindPhilox, "key"_a, "low"_a, "high"_a);
  m.def("batch_key", &BindBatchKey, "run_seed"_a, "epoch"_a, "seeds"_a.noconvert());
  m.def("draw_distinct", &BindDrawDistinct, "key"_a, "low"_a, "place"_a, "below"_a, "out"_a.noconvert());
  m.def("permutation", &BindPermutation, "run_seed"_a, "epoch"_a, "out"_a.noconvert());
  m.def("philox_words", &BindPhiloxWords, "key"_a, "low"_a.noconvert(), "high"_a.noconvert(), "first"_a.noconvert(),
        "second"_a.noconvert());
  m.def("uniforms", &BindUniforms, "key"_a, "out"_a.noconvert());
}

}  // namespace gigl
