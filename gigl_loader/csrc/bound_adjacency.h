// An adjacency as Python holds it.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "adjacency.h"
#include "binding.h"

namespace gigl {

using NodeIds = std::optional<Array<const int64_t>>;

// One edge type with the arrays that it lies in.
class Adjacency {
 public:
  Adjacency(const Array<const int64_t>& bounds, std::vector<Array<const int64_t>> indptr,
            std::vector<AnyArray> indices, std::vector<AnyArray> edge_ids,
            std::vector<Array<const int64_t>> weight_sums, std::vector<Array<const int64_t>> weight_counts)
      : indptr_(std::move(indptr)), indices_(std::move(indices)), edge_ids_(std::move(edge_ids)),
        weight_sums_(std::move(weight_sums)), weight_counts_(std::move(weight_counts)) {
    const size_t parts = indptr_.size();
    Require(parts > 0, "an adjacency needs at least one part");
    Require(indices_.size() == parts && edge_ids_.size() == parts, "indptr, indices and edge_ids differ in number of parts");
    Require(weight_sums_.size() == weight_counts_.size() && (weight_sums_.empty() || weight_sums_.size() == parts),
            "weights of an adjacency are those of all parts");
    Require(bounds.shape(0) == parts + 1, "bounds must have one entry more than there are parts");
    Require(bounds(0) >= 0, "bounds must not be negative");
    RequireRising(Span(bounds));
    view_.wide_indices = IsWide(indices_[0], "indices");
    view_.wide_edge_ids = IsWide(edge_ids_[0], "edge_ids");
    for (size_t p = 0; p < parts; ++p) Add(p, bounds(p), bounds(p + 1));
  }

  const AdjacencyView& view() const { return view_; }
  bool has_weights() const { return !weight_sums_.empty(); }
  int64_t num_edges() const { return view_.parts.back().first_slot + view_.parts.back().num_edges; }

 private:
  void Add(size_t p, int64_t first, int64_t last) {
    Require(IsWide(indices_[p], "indices") == view_.wide_indices, "indices of all parts need one dtype");
    Require(IsWide(edge_ids_[p], "edge_ids") == view_.wide_edge_ids, "edge_ids of all parts need one dtype");
    Require(static_cast<int64_t>(indptr_[p].shape(0)) == last - first + 1, "indptr must have one entry more than its part has targets");
    Require(edge_ids_[p].shape(0) == indices_[p].shape(0), "edge_ids and indices differ in length");
    const int64_t before = view_.parts.empty() ? 0 : num_edges();
    view_.parts.push_back({indptr_[p].data(), indices_[p].data(), edge_ids_[p].data(), last - first,
                           static_cast<int64_t>(indices_[p].shape(0)), first, before});
    if (!has_weights()) return;
    Require(weight_sums_[p].shape(0) == indices_[p].shape(0), "weight_sums and indices differ in length");
    Require(static_cast<int64_t>(weight_counts_[p].shape(0)) == last - first, "weight_counts must have one entry per target");
    view_.parts.back().weight_sums = weight_sums_[p].data();
    view_.parts.back().weight_counts = weight_counts_[p].data();
  }

  std::vector<Array<const int64_t>> indptr_;
  std::vector<AnyArray> indices_;
  std::vector<AnyArray> edge_ids_;
  std::vector<Array<const int64_t>> weight_sums_;
  std::vector<Array<const int64_t>> weight_counts_;
  AdjacencyView view_;
};

}  // namespace gigl
