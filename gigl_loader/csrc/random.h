// Addressed randomness: a draw is a function of where it is used, not of what was drawn before.
//
// Philox2x64-10 after Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011); the finaliser of splitmix64 after Steele, Lea, Flood (OOPSLA 2014).
#pragma once

#include <cstdint>
#include <span>

namespace gigl {

__extension__ typedef unsigned __int128 uint128;

struct Words {
  uint64_t first;
  uint64_t second;
};

// The ten rounds of Philox2x64 on the counter (low, high).
inline Words Philox(uint64_t key, uint64_t low, uint64_t high) {
  for (int round = 0; round < 10; ++round) {
    const uint128 product = static_cast<uint128>(low) * 0xD2B74407B1CE6E93u;
    low = static_cast<uint64_t>(product >> 64) ^ key ^ high;
    high = static_cast<uint64_t>(product);
    key += 0x9E3779B97F4A7C15u;
  }
  return {low, high};
}

inline uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// A number below n, each equally likely up to a bias of n / 2^64.
inline uint64_t Below(uint64_t word, uint64_t n) {
  return static_cast<uint64_t>((static_cast<uint128>(word) * n) >> 64);
}

// The key of everything random in an epoch of a run.
uint64_t EpochKey(uint64_t run_seed, uint64_t epoch);

// The key of every draw of a batch: depends on the order and multiplicity of its seeds (node ids).
uint64_t BatchKey(uint64_t run_seed, uint64_t epoch, std::span<const int64_t> seeds);

// Where the draws for one node at one hop over one edge type are found. Draw j is word j % 2 of
// the block of counter (node id, j / 2 | edge type << 32 | hop << 56).
struct DrawAddress {
  uint64_t key;
  uint64_t node_id;
  uint64_t place;  // edge type << 32 | hop << 56

  Words Block(uint64_t block) const { return Philox(key, node_id, place | block); }
};

// Writes the Philox words of counter (low[i], high[i]) to first[i] and second[i].
void PhiloxWords(uint64_t key, std::span<const int64_t> low, std::span<const int64_t> high, std::span<uint64_t> first,
                 std::span<uint64_t> second);

// Fills `order` with a shuffle of 0 .. order.size() - 1: ascending by (first Philox word of the
// index under the epoch's key, index).
void Permutation(uint64_t run_seed, uint64_t epoch, std::span<int64_t> order);

// Fills out[i] with a number in [0, 1): the upper 53 bits of the first Philox word of (i, 0xFE << 56),
// over 2^53.
void Uniforms(uint64_t key, std::span<double> out);

}  // namespace gigl
