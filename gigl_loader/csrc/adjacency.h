// Adjacency lists: how they are read, and how they are built.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gigl {

// One partition's lists of one edge type. List t is [indptr[t], indptr[t + 1]) of `indices`
// (positions of neighbours) and `edge_ids`, each of 4 or 8 bytes an entry.
struct AdjacencyPart {
  const int64_t* indptr;
  const void* indices;
  const void* edge_ids;
  int64_t num_targets;
  int64_t num_edges;
  int64_t first_target;  // position of list 0
  int64_t first_slot;    // edges in the parts before this one
  // Of weighted draws, else nullptr: the running sums of each list's weights, one per edge, and how many weights
  // of each list are above 0.
  const int64_t* weight_sums = nullptr;
  const int64_t* weight_counts = nullptr;
  // Of draws by time, else nullptr: each list by ascending time, as times and as places in `indices` (4 or 8 bytes
  // each), and, of weighted draws by time, the running sums of its weights in that order.
  const int64_t* times = nullptr;
  const void* time_slots = nullptr;
  const int64_t* time_sums = nullptr;
};

// What is kept of a sampled edge besides its neighbour.
struct Collect {
  bool with_edge_ids;
  bool with_slots;  // its place in adjacency order
};

// Entry `at` of an array of 4 or 8 bytes an entry, and its address. The width is no template parameter of the draws: the
// branch always goes the same way, and instantiations for each width took two thirds of the time of a compilation.
inline int64_t EntryAt(const void* entries, bool wide, int64_t at) {
  return wide ? static_cast<const int64_t*>(entries)[at] : static_cast<const int32_t*>(entries)[at];
}
inline const void* EntryAddress(const void* entries, bool wide, int64_t at) {
  return static_cast<const char*>(entries) + (at << (wide ? 3 : 2));
}

// One edge type on this host. The parts, at least one, follow each other without gaps.
struct AdjacencyView {
  std::vector<AdjacencyPart> parts;
  bool wide_indices;
  bool wide_edge_ids;
  bool wide_time_slots = false;
  bool on_disk = false;  // the memory does not keep the lists: see ListsAhead

  // The targets are the positions [first_target(), end_target()).
  int64_t first_target() const { return parts.front().first_target; }
  int64_t end_target() const { return parts.back().first_target + parts.back().num_targets; }

  // The part that owns a target, or nullptr for a position outside all parts.
  const AdjacencyPart* Owner(int64_t target) const {
    if (target < first_target()) return nullptr;
    for (const AdjacencyPart& part : parts) {
      if (target < part.first_target + part.num_targets) return &part;
    }
    return nullptr;
  }

  // The part, where there is only one; else nullptr.
  const AdjacencyPart* Sole() const { return parts.size() == 1 ? parts.data() : nullptr; }
};

// Has the kernel read the lists of the next targets from the disk, many at a time: faults would read them one by one.
class ListsAhead {
 public:
  ListsAhead(const AdjacencyView& adjacency, bool with_edge_ids) : adjacency_(adjacency), with_edge_ids_(with_edge_ids) {}

  // `left` are the targets that are not drawn yet (positions, with their trees above): the last ones of the call before.
  void Advance(std::span<const int64_t> left) {
    if (!adjacency_.on_disk) return;
    unread_ = std::min(unread_, left.size());
    if (left.size() - unread_ > kTargets / 2) return;
    const size_t count = std::min(unread_, kTargets);
    Read(left.subspan(left.size() - unread_, count));
    unread_ -= count;
  }

 private:
  static constexpr size_t kTargets = 2048;

  void Read(std::span<const int64_t> targets) const;

  const AdjacencyView& adjacency_;
  bool with_edge_ids_;
  size_t unread_ = SIZE_MAX;  // of the targets that are left, the last
};

// Throws std::invalid_argument for a target outside the adjacency.
void RequireInside(const AdjacencyView& adjacency, std::span<const int64_t> targets);

// Groups edges by target and sorts each group by (neighbour's node id, edge id).
//
// Afterwards group t is order[indptr[t]] .. order[indptr[t + 1] - 1], as indices into the input.
// Takes 24 bytes of memory an edge; none where edge ids rise with the index, and the ids of neighbours lie within
// 2^32 of each other. Returns the index of an edge whose target lies outside
// [0, indptr.size() - 1), or -1 when all is well.
int64_t BuildAdjacency(std::span<const int64_t> targets, std::span<const int64_t> neighbor_ids,
                       std::span<const int64_t> edge_ids, std::span<int64_t> indptr,
                       std::span<int64_t> order);

}  // namespace gigl
