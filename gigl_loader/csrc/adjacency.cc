#include "adjacency.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>

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

}  // namespace

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

  // indptr[t] serves as the cursor of list t while edges are placed: it ends where list t + 1
  // begins, so shifting by one place restores it.
  std::vector<Edge> edges(num_edges);
  for (int64_t e = 0; e < num_edges; ++e) {
    edges[indptr[targets[e]]++] = {neighbor_ids[e], edge_ids[e], e};
  }
  std::copy_backward(indptr.begin(), indptr.end() - 1, indptr.end());
  indptr[0] = 0;

  for (int64_t t = 0; t < num_targets; ++t) {
    std::sort(edges.begin() + indptr[t], edges.begin() + indptr[t + 1]);
  }
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
