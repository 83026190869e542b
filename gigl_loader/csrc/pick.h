// Which entries of one adjacency list are drawn.
#pragma once

#include <cstdint>
#include <vector>

#include "random.h"

namespace gigl {

// Draws entries of adjacency lists at addressed random, with scratch memory of its own.
class Picker {
 public:
  // Number of entries that `fanout` takes from a list of `degree`.
  static int64_t Count(int64_t degree, int32_t fanout, bool replace) {
    if (fanout < 0) return degree;
    if (replace) return degree > 0 ? fanout : 0;
    return degree < fanout ? degree : fanout;
  }

  // Writes first + i for every drawn index i below `degree`.
  //
  // Without replacement this is Floyd's algorithm (Bentley and Floyd, CACM 30(9), 1987): draw j is
  // below degree - fanout + j + 1, and where it repeats an earlier pick the bound itself is taken.
  void Pick(const DrawAddress& address, int64_t first, int64_t degree, int32_t fanout, bool replace, int64_t* out) {
    const bool all = fanout < 0 || (!replace && degree <= fanout);
    if (all) {
      for (int64_t i = 0; i < degree; ++i) out[i] = first + i;
    } else if (degree > 0) {
      if (replace) {
        Draw(address, fanout, [degree](int64_t) { return degree; }, out);
      } else {
        const int64_t lowest = degree - fanout + 1;
        Draw(address, fanout, [lowest](int64_t j) { return lowest + j; }, out);
        fanout <= kScan ? ResolveByScan(out, fanout, lowest) : ResolveByTable(out, fanout, lowest);
      }
      for (int64_t j = 0; j < fanout; ++j) out[j] += first;
    }
  }

 private:
  // Up to this many picks, comparing with all earlier ones beats a table.
  static constexpr int64_t kScan = 48;

  template <typename Bound>
  static void Draw(const DrawAddress& address, int64_t count, Bound bound, int64_t* out) {
    int64_t j = 0;
    for (; j + 1 < count; j += 2) {
      const Words words = address.Block(static_cast<uint64_t>(j) / 2);
      out[j] = static_cast<int64_t>(Below(words.first, bound(j)));
      out[j + 1] = static_cast<int64_t>(Below(words.second, bound(j + 1)));
    }
    if (j < count) out[j] = static_cast<int64_t>(Below(address.Block(static_cast<uint64_t>(j) / 2).first, bound(j)));
  }

  static void ResolveByScan(int64_t* picks, int64_t count, int64_t lowest) {
    for (int64_t j = 1; j < count; ++j) {
      bool repeated = false;
      for (int64_t i = 0; i < j; ++i) repeated |= picks[i] == picks[j];
      if (repeated) picks[j] = lowest + j - 1;
    }
  }

  void ResolveByTable(int64_t* picks, int64_t count, int64_t lowest) {
    size_t capacity = 64;
    while (capacity < 2 * static_cast<size_t>(count)) capacity *= 2;
    table_.assign(capacity, -1);
    for (int64_t j = 0; j < count; ++j) {
      if (!AddToTable(picks[j])) {
        picks[j] = lowest + j - 1;
        AddToTable(picks[j]);
      }
    }
  }

  bool AddToTable(int64_t pick) {
    const size_t mask = table_.size() - 1;
    size_t at = Mix(static_cast<uint64_t>(pick)) & mask;
    while (table_[at] >= 0) {
      if (table_[at] == pick) return false;
      at = (at + 1) & mask;
    }
    table_[at] = pick;
    return true;
  }

  std::vector<int64_t> table_;
};

}  // namespace gigl
