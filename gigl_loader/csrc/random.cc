#include "random.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stop.h"

namespace gigl {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
constexpr uint64_t kShufflePlace = uint64_t{0xFF} << 56;  // no hop has this number
constexpr uint64_t kUniformPlace = uint64_t{0xFE} << 56;  // nor this one

}  // namespace

uint64_t EpochKey(uint64_t run_seed, uint64_t epoch) {
  return Mix(Mix(run_seed + kGolden) + epoch + kGolden);
}

uint64_t BatchKey(uint64_t run_seed, uint64_t epoch, std::span<const int64_t> seeds) {
  uint64_t fold = 0;
  for (const int64_t seed : seeds) fold = Mix(fold + kGolden + static_cast<uint64_t>(seed));
  return Mix(EpochKey(run_seed, epoch) + fold);
}

void Permutation(uint64_t run_seed, uint64_t epoch, std::span<int64_t> order) {
  const uint64_t key = EpochKey(run_seed, epoch);
  std::vector<std::pair<uint64_t, int64_t>> keyed(order.size());
  for (size_t i = 0; i < keyed.size(); ++i) {
    keyed[i] = {Philox(key, i, kShufflePlace).first, static_cast<int64_t>(i)};
  }
  std::sort(keyed.begin(), keyed.end());
  for (size_t i = 0; i < keyed.size(); ++i) order[i] = keyed[i].second;
}

void PhiloxWords(uint64_t key, std::span<const int64_t> low, std::span<const int64_t> high, std::span<uint64_t> first,
                 std::span<uint64_t> second) {
  ForEachUnlessStopped(static_cast<int64_t>(low.size()), [&](int64_t i) {
    const Words words = Philox(key, static_cast<uint64_t>(low[i]), static_cast<uint64_t>(high[i]));
    first[i] = words.first;
    second[i] = words.second;
  });
}

void Uniforms(uint64_t key, std::span<double> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<double>(Philox(key, i, kUniformPlace).first >> 11) * 0x1p-53;
  }
}

}  // namespace gigl
