// One hop for given targets: what a partition answers to a sampler elsewhere.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "adjacency.h"
#include "batch.h"
#include "block_drawer.h"
#include "buffer.h"

namespace gigl {

using NarrowOrWide = std::variant<Buffer<int32_t>, Buffer<int64_t>>;

// Entries that are copied from arrays of 4 or 8 bytes an entry, with their width.
class CopiedEntries {
 public:
  CopiedEntries(bool wide, NarrowOrWide& out)
      : wide_(wide ? &out.emplace<Buffer<int64_t>>() : nullptr), narrow_(wide ? nullptr : &out.emplace<Buffer<int32_t>>()) {}

  void Reserve(int64_t room) { wide_ != nullptr ? wide_->Reserve(room) : narrow_->Reserve(room); }

  // Makes room for `count` more entries.
  void Extend(int64_t count) {
    if (wide_ != nullptr) {
      next_wide_ = wide_->Extend(count);
    } else {
      next_narrow_ = narrow_->Extend(count);
    }
  }

  // Sets entry i of the latest room.
  void Set(int64_t i, int64_t value) {
    if (next_wide_ != nullptr) {
      next_wide_[i] = value;
    } else {
      next_narrow_[i] = static_cast<int32_t>(value);
    }
  }

 private:
  Buffer<int64_t>* wide_;
  Buffer<int32_t>* narrow_;
  int64_t* next_wide_ = nullptr;
  int32_t* next_narrow_ = nullptr;
};

// The neighbours of target i are the next counts[i] entries of `positions`, `edge_ids` and `slots`.
struct DrawnHop {
  Buffer<int32_t> counts;
  NarrowOrWide positions;  // as wide as the adjacency's indices
  NarrowOrWide edge_ids;   // as wide as the adjacency's; empty unless asked for
  Buffer<int64_t> slots;   // places in adjacency order, through all parts; empty unless asked for
  Buffer<int64_t> times;   // of the edges; empty unless the rule is monotone
};

// Draws the neighbours of each target (a position; in a disjoint batch with its tree), just as the fused sampler would. `target_ids`
// maps positions to node ids, nullptr for the identity. `bounds` are those of the targets, of a monotone rule.
//
// Throws std::invalid_argument for a target outside the adjacency, BatchTooLarge for more than
// `max_edges` neighbours in all (before they are drawn), std::length_error for more than 2^31 of one
// target and std::runtime_error for damaged lists.
DrawnHop DrawHop(const AdjacencyView& adjacency, const int64_t* target_ids, const NeighborNodes& neighbors,
                 std::span<const int64_t> targets, const HopDraw& draw, Collect collect, int64_t max_edges = INT64_MAX,
                 std::span<const int64_t> bounds = {});

}  // namespace gigl
