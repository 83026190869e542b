#include "stitch.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "stop.h"
#include "tree.h"

namespace gigl {
namespace {

// Edges worked on together: their places in the table are fetched before the first is looked up.
constexpr int64_t kBlockEdges = 128;

[[noreturn]] void ThrowUnfit(size_t part, const char* what) {
  throw std::runtime_error("answer of partition " + std::to_string(part) + ": " + what);
}

// Where one answer has been read up to.
struct Cursor {
  size_t target = 0;
  int64_t edge = 0;
};

void CheckCounts(std::span<const HopAnswer> answers) {
  for (size_t p = 0; p < answers.size(); ++p) {
    int64_t total = 0;
    for (const int32_t count : answers[p].counts) {
      if (count < 0) ThrowUnfit(p, "a negative number of neighbours");
      total += count;
    }
    if (total != answers[p].num_edges) ThrowUnfit(p, "other neighbours than its counts say");
  }
}

void CheckTargets(std::span<const uint16_t> owners, std::span<const HopAnswer> answers) {
  std::vector<size_t> wanted(answers.size());
  for (const uint16_t owner : owners) ++wanted.at(owner);
  for (size_t p = 0; p < answers.size(); ++p) {
    if (answers[p].counts.size() != wanted[p]) ThrowUnfit(p, "other targets than it was asked for");
  }
}

// Copies entries [from, from + count) of an array of 4 or 8 bytes an entry.
void Widen(const void* data, bool wide, int64_t from, int64_t count, int64_t* out) {
  if (wide) {
    std::copy_n(static_cast<const int64_t*>(data) + from, count, out);
  } else {
    std::copy_n(static_cast<const int32_t*>(data) + from, count, out);
  }
}

// The targets of a hop. Copies: the nodes of the batch grow meanwhile.
struct Frontier {
  std::vector<int64_t> names;   // empty unless trees are disjoint
  std::vector<int64_t> bounds;  // empty unless the batch is monotone
  bool strictly_earlier;        // no edge has the time of a bound

  Frontier(const Batch& batch, const BatchNodes& targets, bool strictly_earlier) : strictly_earlier(strictly_earlier) {
    const auto copy = [&](std::span<const int64_t> all) {
      const auto part = all.subspan(targets.frontier_begin, targets.frontier_end - targets.frontier_begin);
      return std::vector<int64_t>(part.begin(), part.end());
    };
    if (batch.disjoint()) names = copy(targets.names());
    if (batch.monotone()) bounds = copy(targets.bounds.view());
  }
};

class Stitching {
 public:
  // `closed`: neighbours are nodes that the batch has.
  Stitching(BatchNodes& neighbors, BatchEdges& edges, const Collect& collect,
            std::span<const HopAnswer> answers, const Frontier& frontier, bool closed)
      : neighbors_(neighbors), edges_(edges), collect_(collect), answers_(answers),
        frontier_(frontier), closed_(closed), cursors_(answers.size()), found_(kBlockEdges),
        trees_(frontier.names.empty() ? 0 : kBlockEdges), times_(frontier.bounds.empty() ? 0 : kBlockEdges) {}

  void Run(std::span<const uint16_t> owners) {
    const int64_t before = static_cast<int64_t>(edges_.rows.size());
    int64_t end = edges_.colptr[edges_.colptr.size() - 1];
    int64_t* const colptr = edges_.colptr.Extend(owners.size());
    for (size_t i = 0; i < owners.size(); ++i) {
      Cursor& cursor = cursors_[owners[i]];
      int64_t left = answers_[owners[i]].counts[cursor.target++];
      colptr[i] = end += left;
      while (left > 0) {  // a long list fills several blocks
        const int64_t taken = std::min(left, kBlockEdges - pending_);
        if (!trees_.empty()) std::fill_n(trees_.begin() + pending_, taken, TreeOf(frontier_.names[i]));
        if (!times_.empty()) TakeTimes(owners[i], cursor.edge, taken, frontier_.bounds[i]);
        Take(owners[i], cursor.edge, taken);
        cursor.edge += taken;
        left -= taken;
        if (pending_ == kBlockEdges) Relabel();
      }
    }
    Relabel();
    edges_.per_hop.push_back(static_cast<int64_t>(edges_.rows.size()) - before);
  }

 private:
  void Take(uint16_t owner, int64_t from, int64_t count) {
    const HopAnswer& answer = answers_[owner];
    Widen(answer.positions, answer.wide_positions, from, count, found_.data() + pending_);
    pending_ += count;
    if (collect_.with_edge_ids) Widen(answer.edge_ids, answer.wide_edge_ids, from, count, edges_.edge_ids.Extend(count));
    if (collect_.with_slots) {
      int64_t* const slots = edges_.slots.Extend(count);
      const int64_t offset = int64_t{owner} << kSlotBits;
      bool possible = true;
      for (int64_t e = 0; e < count; ++e) {
        const int64_t slot = answer.slots[from + e];
        possible &= slot >= 0 && slot < int64_t{1} << kSlotBits;
        slots[e] = offset + slot;
      }
      if (!possible) ThrowUnfit(owner, "a slot that no edge has");
    }
  }

  // Edges without a time have the bound of their target.
  void TakeTimes(uint16_t owner, int64_t from, int64_t count, int64_t bound) {
    const auto begin = times_.begin() + pending_;
    if (answers_[owner].times == nullptr) {
      std::fill_n(begin, count, bound);
    } else {
      std::copy_n(answers_[owner].times + from, count, begin);
      const auto is_late = [&](int64_t time) { return time > bound || (time == bound && frontier_.strictly_earlier); };
      if (std::any_of(begin, begin + count, is_late)) {
        ThrowUnfit(owner, "an edge that is later than its target may have");
      }
    }
  }

  void Relabel() {
    CheckStop(pending_);
    const std::span<const int64_t> found(found_.data(), static_cast<size_t>(pending_));
    const TableLines lines = neighbors_.table.lines();
    bool inside = true;
    for (int64_t e = 0; e < pending_; ++e) {
      inside &= found_[e] >= 0 && found_[e] < neighbors_.plan.count;
      if (!trees_.empty()) found_[e] |= trees_[e] << kTreeShift;
      lines.Prefetch(found_[e]);
    }
    if (!inside) throw std::runtime_error("answer of a partition: a neighbour lies outside its node type");
    int32_t* const rows = edges_.rows.Extend(found.size());
    if (closed_) {
      std::transform(found.begin(), found.end(), rows, [&](int64_t node) { return neighbors_.table.LocalOf(node); });
      if (std::find(rows, rows + found.size(), -1) != rows + found.size()) {
        throw std::runtime_error("answer of a partition: a neighbour that the batch does not have");
      }
    } else {
      neighbors_.table.InsertAll(found, rows);
      if (!times_.empty()) neighbors_.Bound({rows, found.size()}, [&](size_t e) { return times_[e]; });
    }
    pending_ = 0;
  }

  BatchNodes& neighbors_;
  BatchEdges& edges_;
  const Collect& collect_;
  std::span<const HopAnswer> answers_;
  const Frontier& frontier_;
  const bool closed_;
  std::vector<Cursor> cursors_;
  std::vector<int64_t> found_;
  std::vector<int64_t> trees_;  // of the targets of what was found
  std::vector<int64_t> times_;  // of the edges to what was found
  int64_t pending_ = 0;
};

}  // namespace

void Stitch(Batch& batch, int edge_type, std::span<const uint16_t> owners, std::span<const HopAnswer> answers,
            bool strictly_earlier) {
  CheckCounts(answers);
  CheckTargets(owners, answers);
  int64_t num_edges = 0;
  for (const HopAnswer& answer : answers) num_edges += answer.num_edges;
  batch.room().Take(num_edges, static_cast<int64_t>(owners.size()));
  BatchEdges& edges = batch.edges(edge_type);
  BatchNodes& neighbors = batch.nodes(edges.ends.neighbor_type);
  const Frontier frontier(batch, batch.nodes(edges.ends.target_type), strictly_earlier);
  Stitching(neighbors, edges, batch.collect(), answers, frontier, batch.inducing()).Run(owners);
}

}  // namespace gigl
