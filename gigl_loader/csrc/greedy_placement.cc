#include "greedy_placement.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <stdexcept>

namespace gigl {
namespace {

// Puts the neighbours of each node side by side: those of node t are grouped[starts[t]] .. grouped[starts[t + 1] - 1].
template <typename Index>
void GroupByTarget(std::span<const Index> targets, std::span<const Index> neighbors, std::vector<int64_t>& starts,
                   std::vector<Index>& grouped) {
  for (const Index target : targets) ++starts[target + 1];
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  grouped.resize(targets.size());
  // starts[t] serves as the cursor of node t, and ends where node t + 1 begins: shifting restores it.
  for (size_t e = 0; e < targets.size(); ++e) grouped[starts[targets[e]]++] = neighbors[e];
  std::copy_backward(starts.begin(), starts.end() - 1, starts.end());
  starts[0] = 0;
}

}  // namespace

GreedyPlacement::GreedyPlacement(std::span<const PlacedKind> kinds, int32_t num_partitions)
    : num_partitions_(num_partitions),
      num_leaves_(static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(num_partitions)))),
      near_(num_partitions, 0) {
  int64_t total = 0;
  for (const PlacedKind& kind : kinds) {
    Load load{kind, kind.count, kind.floor * num_partitions, std::vector<int64_t>(num_partitions, 0),
              std::vector<int32_t>(2 * num_leaves_, -1)};
    std::iota(load.fewest.begin() + num_leaves_, load.fewest.begin() + num_leaves_ + num_partitions, 0);
    for (int32_t at = num_leaves_ - 1; at > 0; --at) {
      load.fewest[at] = Fewer(load, load.fewest[2 * at], load.fewest[2 * at + 1]);
    }
    loads_.push_back(std::move(load));
    total += kind.count;
  }
  owners_.reserve(total);
}

template <typename Index>
int64_t GreedyPlacement::Place(std::span<const uint16_t> kinds, std::span<const Index> targets,
                               std::span<const Index> neighbors, std::span<const int64_t> more) {
  RequireKnown(kinds);
  const int64_t first = static_cast<int64_t>(owners_.size());
  for (size_t e = 0; e < targets.size(); ++e) {
    if (targets[e] < 0 || static_cast<size_t>(targets[e]) >= kinds.size() || neighbors[e] < 0 ||
        neighbors[e] >= first + targets[e]) {
      return static_cast<int64_t>(e);
    }
  }
  std::vector<int64_t> starts(kinds.size() + 1, 0);
  std::vector<Index> grouped;
  GroupByTarget(targets, neighbors, starts, grouped);
  for (size_t node = 0; node < kinds.size(); ++node) {
    touched_.clear();
    for (int64_t at = starts[node]; at < starts[node + 1]; ++at) {
      const int32_t owner = owners_[grouped[at]];
      if (near_[owner]++ == 0) touched_.push_back(owner);
    }
    if (node == 0) {
      for (int32_t part = 0; part < static_cast<int32_t>(more.size()); ++part) {
        if (more[part] > 0 && near_[part] == 0) touched_.push_back(part);
        near_[part] += more[part];
      }
    }
    Load& load = loads_[kinds[node]];
    const int32_t best = Best(load);
    for (const int32_t part : touched_) near_[part] = 0;
    Add(load, best);
    owners_.push_back(static_cast<uint16_t>(best));
  }
  return -1;
}

void GreedyPlacement::RequireKnown(std::span<const uint16_t> kinds) const {
  std::vector<int64_t> counts(loads_.size(), 0);
  for (const uint16_t kind : kinds) {
    if (kind >= loads_.size()) throw std::invalid_argument("a node of an unknown kind");
    if (++counts[kind] > loads_[kind].left) throw std::invalid_argument("more nodes of a kind than it has");
  }
}

int32_t GreedyPlacement::Best(const Load& load) const {
  const bool only_lacking = load.left <= load.lacking;
  int32_t best = -1;
  unsigned __int128 best_score = 0;
  for (const int32_t part : touched_) {
    const int64_t size = load.sizes[part];
    if (size >= load.kind.capacity || (only_lacking && size >= load.kind.floor)) continue;
    const auto score = static_cast<unsigned __int128>(near_[part]) * static_cast<uint64_t>(load.kind.capacity - size);
    if (best < 0 || score > best_score || (score == best_score && Fewer(load, best, part) == part)) {
      best = part;
      best_score = score;
    }
  }
  return best < 0 ? load.fewest[1] : best;
}

void GreedyPlacement::Add(Load& load, int32_t partition) {
  if (load.sizes[partition]++ < load.kind.floor) --load.lacking;
  --load.left;
  for (int32_t at = (num_leaves_ + partition) / 2; at > 0; at /= 2) {
    load.fewest[at] = Fewer(load, load.fewest[2 * at], load.fewest[2 * at + 1]);
  }
}

int32_t GreedyPlacement::Fewer(const Load& load, int32_t a, int32_t b) const {
  if (a < 0 || b < 0) return std::max(a, b);
  if (load.sizes[a] != load.sizes[b]) return load.sizes[a] < load.sizes[b] ? a : b;
  return std::min(a, b);
}

template int64_t GreedyPlacement::Place(std::span<const uint16_t>, std::span<const int32_t>, std::span<const int32_t>,
                                        std::span<const int64_t>);
template int64_t GreedyPlacement::Place(std::span<const uint16_t>, std::span<const int64_t>, std::span<const int64_t>,
                                        std::span<const int64_t>);

}  // namespace gigl
