// An adjacency as Python holds it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "adjacency.h"
#include "binding.h"
#include "draw_policy.h"
#include "tree.h"

namespace gigl {

using NodeIds = std::optional<Array<const int64_t>>;
using Times = std::optional<Array<const int64_t>>;

inline std::span<const int64_t> SpanOf(const Times& times) {
  return times ? Span(*times) : std::span<const int64_t>();
}

// Throws std::invalid_argument unless each of these nodes (positions with their trees) has what timed rules need.
inline void RequireTimes(std::span<const int64_t> names, const TreeSpans& trees, bool windows) {
  const size_t known = windows ? std::min(trees.times.size(), trees.starts.size()) : trees.times.size();
  for (const int64_t name : names) Require(TreeOf(name) < static_cast<int64_t>(known), "a tree has no time");
}

// One edge type with the arrays that it lies in.
class Adjacency {
 public:
  Adjacency(const Array<const int64_t>& bounds, std::vector<Array<const int64_t>> indptr,
            std::vector<AnyArray> indices, std::vector<AnyArray> edge_ids,
            std::vector<Array<const int64_t>> weight_sums, std::vector<Array<const int64_t>> weight_counts,
            std::vector<Array<const int64_t>> times, std::vector<AnyArray> time_slots,
            std::vector<Array<const int64_t>> time_sums, bool on_disk)
      : indptr_(std::move(indptr)), indices_(std::move(indices)), edge_ids_(std::move(edge_ids)),
        weight_sums_(std::move(weight_sums)), weight_counts_(std::move(weight_counts)), times_(std::move(times)),
        time_slots_(std::move(time_slots)), time_sums_(std::move(time_sums)) {
    const size_t parts = indptr_.size();
    Require(parts > 0, "an adjacency needs at least one part");
    Require(indices_.size() == parts && edge_ids_.size() == parts, "indptr, indices and edge_ids differ in number of parts");
    Require(weight_sums_.size() == weight_counts_.size() && (weight_sums_.empty() || weight_sums_.size() == parts),
            "weights of an adjacency are those of all parts");
    Require(times_.size() == time_slots_.size() && (times_.empty() || times_.size() == parts) &&
                (time_sums_.empty() || time_sums_.size() == times_.size()),
            "times of an adjacency are those of all parts");
    Require(bounds.shape(0) == parts + 1, "bounds must have one entry more than there are parts");
    Require(bounds(0) >= 0, "bounds must not be negative");
    RequireRising(Span(bounds));
    view_.on_disk = on_disk;
    view_.wide_indices = IsWide(indices_[0], "indices");
    view_.wide_edge_ids = IsWide(edge_ids_[0], "edge_ids");
    view_.wide_time_slots = has_times() && IsWide(time_slots_[0], "time_slots");
    for (size_t p = 0; p < parts; ++p) Add(p, bounds(p), bounds(p + 1));
  }

  const AdjacencyView& view() const { return view_; }
  bool has_weights() const { return !weight_sums_.empty(); }

  // Throws std::invalid_argument for a rule that needs what is not here.
  void RequireFit(const DrawRule& rule) const {
    if (rule.timed()) {
      Require(has_times(), "a timed rule needs an adjacency with times");
      Require(!rule.weighted() || !time_sums_.empty(), "a weighted and timed rule needs an adjacency with time_sums");
    } else {
      Require(!rule.weighted() || has_weights(), "a weighted rule needs an adjacency with weights");
    }
  }

  int64_t num_edges() const { return view_.parts.back().first_slot + view_.parts.back().num_edges; }

 private:
  bool has_times() const { return !times_.empty(); }

  void Add(size_t p, int64_t first, int64_t last) {
    Require(IsWide(indices_[p], "indices") == view_.wide_indices, "indices of all parts need one dtype");
    Require(IsWide(edge_ids_[p], "edge_ids") == view_.wide_edge_ids, "edge_ids of all parts need one dtype");
    Require(static_cast<int64_t>(indptr_[p].shape(0)) == last - first + 1, "indptr must have one entry more than its part has targets");
    Require(edge_ids_[p].shape(0) == indices_[p].shape(0), "edge_ids and indices differ in length");
    const int64_t before = view_.parts.empty() ? 0 : num_edges();
    view_.parts.push_back({indptr_[p].data(), indices_[p].data(), edge_ids_[p].data(), last - first,
                           static_cast<int64_t>(indices_[p].shape(0)), first, before});
    if (has_weights()) AddWeights(p, last - first);
    if (has_times()) AddTimes(p);
  }

  void AddWeights(size_t p, int64_t num_targets) {
    Require(weight_sums_[p].shape(0) == indices_[p].shape(0), "weight_sums and indices differ in length");
    Require(static_cast<int64_t>(weight_counts_[p].shape(0)) == num_targets, "weight_counts must have one entry per target");
    view_.parts.back().weight_sums = weight_sums_[p].data();
    view_.parts.back().weight_counts = weight_counts_[p].data();
  }

  void AddTimes(size_t p) {
    Require(IsWide(time_slots_[p], "time_slots") == view_.wide_time_slots, "time_slots of all parts need one dtype");
    Require(times_[p].shape(0) == indices_[p].shape(0) && time_slots_[p].shape(0) == indices_[p].shape(0),
            "times, time_slots and indices differ in length");
    view_.parts.back().times = times_[p].data();
    view_.parts.back().time_slots = time_slots_[p].data();
    if (time_sums_.empty()) return;
    Require(time_sums_[p].shape(0) == indices_[p].shape(0), "time_sums and indices differ in length");
    view_.parts.back().time_sums = time_sums_[p].data();
  }

  std::vector<Array<const int64_t>> indptr_;
  std::vector<AnyArray> indices_;
  std::vector<AnyArray> edge_ids_;
  std::vector<Array<const int64_t>> weight_sums_;
  std::vector<Array<const int64_t>> weight_counts_;
  std::vector<Array<const int64_t>> times_;
  std::vector<AnyArray> time_slots_;
  std::vector<Array<const int64_t>> time_sums_;
  AdjacencyView view_;
};

}  // namespace gigl
