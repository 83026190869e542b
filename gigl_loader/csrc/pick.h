// Which entries of one adjacency list are drawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "random.h"
#include "stop.h"

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

  // Calls emit(i) for every drawn index i below `degree`.
  //
  // Without replacement this is Floyd's algorithm (Bentley and Floyd, CACM 30(9), 1987): draw j is
  // below degree - fanout + j + 1, and where it repeats an earlier pick the bound itself is taken.
  //
  // Each index is emitted as soon as it is known and not read again from memory: the stores of the
  // relabelling stage miss the caches, and a load that waits for a store behind them is slow.
  template <typename Emit>
  void Pick(const DrawAddress& address, int64_t degree, int32_t fanout, bool replace, Emit emit) {
    const bool all = fanout < 0 || (!replace && degree <= fanout);
    if (all) {
      ForEachUnlessStopped(degree, emit);
    } else if (degree == 0) {
      return;
    } else if (replace) {
      Draw(address, fanout, [degree](int64_t) { return degree; }, [&](int64_t, int64_t drawn) { emit(drawn); });
    } else {
      const int64_t lowest = degree - fanout + 1;
      const auto bound = [lowest](int64_t j) { return lowest + j; };
      if (degree <= 64) {
        uint64_t seen = 0;
        Draw(address, fanout, bound, [&](int64_t j, int64_t drawn) {
          const bool repeated = (seen >> drawn) & 1;
          const int64_t pick = repeated ? lowest + j - 1 : drawn;
          seen |= uint64_t{1} << pick;
          emit(pick);
        });
      } else if (fanout > kMostInTable) {
        PickMany(address, degree, fanout, emit);
      } else {
        Begin(fanout);
        Draw(address, fanout, bound, [&](int64_t j, int64_t drawn) {
          const int64_t pick = Add(drawn) ? drawn : lowest + j - 1;
          if (pick != drawn) Add(pick);
          emit(pick);
        });
      }
    }
  }

  // Memory that is kept for the next list.
  size_t nbytes() const { return table_.capacity() * sizeof(Entry) + bits_.capacity() / 8; }

 private:
  // Above it a bit for each entry of the list takes less than the table, which has 64 to 128 bytes a pick.
  static constexpr int32_t kMostInTable = 1 << 16;

  // Apart from the loop above, which is slower by a tenth with this inside.
  template <typename Emit>
  [[gnu::noinline]] void PickMany(const DrawAddress& address, int64_t degree, int32_t fanout, Emit& emit) {
    const int64_t lowest = degree - fanout + 1;
    const auto add = [this](int64_t pick) {
      const bool fresh = !bits_[pick];
      bits_[pick] = true;
      return fresh;
    };
    bits_.assign(degree, false);
    Draw(address, fanout, [lowest](int64_t j) { return lowest + j; }, [&](int64_t j, int64_t drawn) {
      const int64_t pick = add(drawn) ? drawn : lowest + j - 1;
      if (pick != drawn) add(pick);
      emit(pick);
    });
  }

  template <typename Bound, typename Take>
  static void Draw(const DrawAddress& address, int64_t count, Bound bound, Take take) {
    for (int64_t j = 0; j + 1 < count; j += 2) {
      if (j % 4096 == 4094) CheckStop(4096);
      const Words words = address.Block(static_cast<uint64_t>(j) / 2);
      take(j, static_cast<int64_t>(Below(words.first, bound(j))));
      take(j + 1, static_cast<int64_t>(Below(words.second, bound(j + 1))));
    }
    if (count % 2 == 1) {
      const Words words = address.Block(static_cast<uint64_t>(count) / 2);
      take(count - 1, static_cast<int64_t>(Below(words.first, bound(count - 1))));
    }
  }

  // A set of picks: an open-addressing table, emptied by a new stamp.
  void Begin(int64_t count) {
    size_t capacity = 64;
    while (capacity < 4 * static_cast<size_t>(count)) capacity *= 2;
    if (capacity > table_.size()) table_.assign(capacity, {0, -1});
    ++stamp_;
  }

  bool Add(int64_t pick) {
    const size_t mask = table_.size() - 1;
    size_t at = (static_cast<uint64_t>(pick) * 0x9E3779B97F4A7C15u) >> 32 & mask;
    for (; table_[at].stamp == stamp_; at = (at + 1) & mask) {
      if (table_[at].pick == pick) return false;
    }
    table_[at] = {stamp_, pick};
    return true;
  }

  struct Entry {
    int64_t stamp;
    int64_t pick;
  };
  std::vector<Entry> table_;
  std::vector<bool> bits_;
  int64_t stamp_ = 0;
};

}  // namespace gigl
