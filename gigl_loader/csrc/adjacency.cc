#include "adjacency.h"

#include <sys/mman.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>

#include "tree.h"

namespace gigl {
namespace {

struct Edge {
  int64_t neighbor_id;
  int64_t edge_id;
  int64_t index;

  bool operator<(const Edge& other) const {
    return std::tie(neighbor_id, edge_id, index) < std::tie(other.neighbor_id, other.edge_id, other.index);
  }
};

constexpr uint64_t kLow = (uint64_t{1} << 32) - 1;

// Whether (neighbour's id, edge id, index) can be told apart by 64 bits: the id's distance to the lowest one, and the
// index, which orders edges as their ids do.
bool AreShort(std::span<const int64_t> neighbor_ids, std::span<const int64_t> edge_ids, int64_t lowest) {
  if (neighbor_ids.size() > kLow || !std::is_sorted(edge_ids.begin(), edge_ids.end())) return false;
  uint64_t farthest = 0;
  for (const int64_t id : neighbor_ids) {
    farthest = std::max(farthest, static_cast<uint64_t>(id) - static_cast<uint64_t>(lowest));
  }
  return farthest <= kLow;
}

// Places what `edge_at(e)` returns, for each edge e, in the list of its target. indptr[t] is where list t begins,
// before and after.
template <typename Edge, typename EdgeAt>
void PlaceInLists(std::span<const int64_t> targets, std::span<int64_t> indptr, Edge* edges, EdgeAt edge_at) {
  // indptr[t] serves as the cursor of list t: it ends where list t + 1 begins, so shifting by one restores it.
  for (size_t e = 0; e < targets.size(); ++e) edges[indptr[targets[e]]++] = edge_at(e);
  std::copy_backward(indptr.begin(), indptr.end() - 1, indptr.end());
  indptr[0] = 0;
}

template <typename Edge>
void SortLists(std::span<const int64_t> indptr, Edge* edges) {
  for (size_t t = 0; t + 1 < indptr.size(); ++t) std::sort(edges + indptr[t], edges + indptr[t + 1]);
}

// Pages that the kernel shall have in memory soon.
class Pages {
 public:
  void Add(const void* begin, int64_t nbytes) {
    const auto first = reinterpret_cast<uintptr_t>(begin) / kBytes;
    const auto last = (reinterpret_cast<uintptr_t>(begin) + nbytes - 1) / kBytes;
    for (uintptr_t page = first; page <= last; ++page) pages_.push_back(page);
  }

  // Begins to read them, those that follow each other at once. Does not wait.
  void Read() {
    std::sort(pages_.begin(), pages_.end());
    for (size_t begin = 0, end; begin < pages_.size(); begin = end) {
      for (end = begin + 1; end < pages_.size() && pages_[end] - pages_[end - 1] <= 1;) ++end;
      madvise(reinterpret_cast<void*>(pages_[begin] * kBytes), (pages_[end - 1] - pages_[begin] + 1) * kBytes, MADV_WILLNEED);
    }
    pages_.clear();
  }

 private:
  static constexpr uintptr_t kBytes = 4096;

  std::vector<uintptr_t> pages_;
};

constexpr int64_t kLongList = 4096;  // entries: draws take some pages of a longer one

}  // namespace

void ListsAhead::Read(std::span<const int64_t> targets) const {
  Pages pages;
  const auto each = [&](auto visit) {
    for (const int64_t name : targets) {
      const int64_t target = PositionOf(name);
      if (const AdjacencyPart* part = adjacency_.Owner(target)) visit(*part, part->indptr + (target - part->first_target));
    }
  };
  each([&](const AdjacencyPart&, const int64_t* bounds) { pages.Add(bounds, 2 * sizeof(int64_t)); });
  pages.Read();
  each([&](const AdjacencyPart& part, const int64_t* bounds) {
    const int64_t begin = bounds[0], end = bounds[1];
    if (begin < 0 || end <= begin || end > part.num_edges || end - begin > kLongList) return;  // Draws tell of damage.
    const auto add = [&](const void* entries, int width) {
      if (entries != nullptr) pages.Add(static_cast<const char*>(entries) + begin * width, (end - begin) * width);
    };
    add(part.indices, adjacency_.wide_indices ? 8 : 4);
    if (with_edge_ids_) add(part.edge_ids, adjacency_.wide_edge_ids ? 8 : 4);
    add(part.weight_sums, 8);
    add(part.times, 8);
    add(part.time_slots, adjacency_.wide_time_slots ? 8 : 4);
    add(part.time_sums, 8);
  });
  pages.Read();
}

int64_t BuildAdjacency(std::span<const int64_t> targets, std::span<const int64_t> neighbor_ids,
                       std::span<const int64_t> edge_ids, std::span<int64_t> indptr,
                       std::span<int64_t> order) {
  const int64_t num_targets = static_cast<int64_t>(indptr.size()) - 1;
  const int64_t num_edges = static_cast<int64_t>(targets.size());
  std::fill(indptr.begin(), indptr.end(), 0);
  for (int64_t e = 0; e < num_edges; ++e) {
    if (targets[e] < 0 || targets[e] >= num_targets) return e;
    ++indptr[targets[e] + 1];
  }
  for (int64_t t = 0; t < num_targets; ++t) indptr[t + 1] += indptr[t];

  if (num_edges == 0) return -1;

  const int64_t lowest = *std::min_element(neighbor_ids.begin(), neighbor_ids.end());
  if (AreShort(neighbor_ids, edge_ids, lowest)) {
    uint64_t* const keys = reinterpret_cast<uint64_t*>(order.data());
    PlaceInLists(targets, indptr, keys, [&](size_t e) {
      return (static_cast<uint64_t>(neighbor_ids[e]) - static_cast<uint64_t>(lowest)) << 32 | e;
    });
    SortLists(indptr, keys);
    for (int64_t e = 0; e < num_edges; ++e) order[e] = static_cast<int64_t>(keys[e] & kLow);
    return -1;
  }
  std::vector<Edge> edges(num_edges);
  PlaceInLists(targets, indptr, edges.data(), [&](size_t e) {
    return Edge{neighbor_ids[e], edge_ids[e], static_cast<int64_t>(e)};
  });
  SortLists(indptr, edges.data());
  for (int64_t e = 0; e < num_edges; ++e) order[e] = edges[e].index;
  return -1;
}

void RequireInside(const AdjacencyView& adjacency, std::span<const int64_t> targets) {
  const int64_t first = adjacency.first_target();
  const int64_t last = adjacency.end_target();
  for (const int64_t target : targets) {
    if (target < first || target >= last) {
      throw std::invalid_argument("target position " + std::to_string(target) + " lies outside [" +
                                  std::to_string(first) + ", " + std::to_string(last) + ")");
    }
  }
}

}  // namespace gigl
