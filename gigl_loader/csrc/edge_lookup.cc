#include "edge_lookup.h"

#include <stdexcept>
#include <string>

#include "block_drawer.h"
#include "stop.h"

namespace gigl {
namespace {

template <typename Index>
class Lookup {
 public:
  Lookup(const int64_t* neighbor_ids, int64_t num_neighbors) : ids_(neighbor_ids), num_neighbors_(num_neighbors) {}

  bool Find(const AdjacencyPart& part, int64_t target, int64_t neighbor) const {
    const int64_t* const ends = part.indptr + (target - part.first_target);
    int64_t low = ends[0];
    int64_t high = ends[1];
    if (low < 0 || low > high || high > part.num_edges) ThrowDamaged("indptr does not rise to the number of edges");
    const Index* const indices = static_cast<const Index*>(part.indices);
    const int64_t wanted = IdOf(neighbor);
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      const int64_t found = indices[middle];
      if (found < 0 || found >= num_neighbors_) ThrowDamaged("a neighbour lies outside its node type");
      if (found == neighbor) return true;
      if (IdOf(found) < wanted) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return false;
  }

 private:
  int64_t IdOf(int64_t position) const { return ids_ == nullptr ? position : ids_[position]; }

  const int64_t* const ids_;
  const int64_t num_neighbors_;
};

}  // namespace

void FindEdges(const AdjacencyView& adjacency, const int64_t* neighbor_ids, int64_t num_neighbors,
               std::span<const int64_t> targets, std::span<const int64_t> neighbors, std::span<uint8_t> found) {
  RequireInside(adjacency, targets);
  for (const int64_t neighbor : neighbors) {
    if (neighbor < 0 || neighbor >= num_neighbors) {
      throw std::invalid_argument("neighbour position " + std::to_string(neighbor) + " of a type with " +
                                  std::to_string(num_neighbors) + " nodes");
    }
  }
  WithWidth(adjacency.wide_indices, [&](auto index) {
    const Lookup<decltype(index)> lookup(neighbor_ids, num_neighbors);
    WorkCounter work;
    for (size_t i = 0; i < targets.size(); ++i) {
      work.Add(16);
      found[i] = lookup.Find(*adjacency.Owner(targets[i]), targets[i], neighbors[i]) ? 1 : 0;
    }
  });
}

}  // namespace gigl
