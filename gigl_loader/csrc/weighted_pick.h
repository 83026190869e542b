// Weighted draws from one adjacency list.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "random.h"
#include "stop.h"

namespace gigl {

// A list's weights as whole numbers: sum(i) is that of the entries 0 .. i. Where the list is the end of a longer
// one, `sums` are those of the longer one from there on, and `base` is the sum of what lies before, not negative.
struct WeightView {
  const int64_t* sums;
  int64_t degree;
  int64_t base = 0;

  // Unsigned arithmetic, here and below, because damaged sums may overflow.
  int64_t sum(int64_t entry) const {
    return static_cast<int64_t>(static_cast<uint64_t>(sums[entry]) - static_cast<uint64_t>(base));
  }
  // The entry in which a number below the total lies: `degree` where the sums are damaged.
  int64_t Find(int64_t number) const {
    const auto bound = static_cast<int64_t>(static_cast<uint64_t>(number) + static_cast<uint64_t>(base));
    return std::upper_bound(sums, sums + degree, bound) - sums;
  }
  int64_t before(int64_t entry) const { return entry > 0 ? sum(entry - 1) : 0; }
  int64_t total() const { return degree > 0 ? sum(degree - 1) : 0; }
};

// Draws entries in proportion to their weights, with scratch memory of its own. Every method emits at most as many
// entries as it is asked for; fewer, or an entry of `degree`, where the sums are damaged.
class WeightedPicker {
 public:
  // All entries that have a weight, ascending.
  template <typename Emit>
  static void PickAll(const WeightView& list, int64_t count, Emit emit) {
    int64_t before = 0;
    WorkCounter work;
    for (int64_t i = 0; count > 0 && i < list.degree && before < list.total(); --count) {
      work.Add(2);
      if (list.sum(i) <= before) i = list.Find(before);
      emit(i);
      before = list.sum(std::min(i, list.degree - 1));
      ++i;
    }
  }

  // The last entries that have a weight, descending.
  template <typename Emit>
  static void PickLast(const WeightView& list, int64_t count, Emit emit) {
    int64_t end = list.degree;
    WorkCounter work;
    for (; count > 0 && end > 0 && list.sum(end - 1) > 0; --count) {
      work.Add(4);
      // The first entry that reaches the sum: those after it have no weight.
      end = std::lower_bound(list.sums, list.sums + end, list.sums[end - 1]) - list.sums;
      emit(end);
    }
  }

  // Independent draws.
  template <typename Emit>
  static void PickReplacing(const DrawAddress& address, const WeightView& list, int64_t count, Emit emit) {
    Numbers numbers(address);
    WorkCounter work;
    for (int64_t j = 0; j < count; ++j) {
      work.Add(8);
      emit(list.Find(numbers.Below(list.total())));
    }
  }

  // Successive draws among the entries that are left. More than `count` entries have a weight.
  //
  // A number below what is left is mapped to the list by skipping the entries that were picked: pick i, in list
  // order, is skipped by numbers from starts_[i] on, and skipped_[i] is the weight of the picks up to it.
  template <typename Emit>
  void PickDistinct(const DrawAddress& address, const WeightView& list, int64_t count, Emit emit) {
    starts_.clear();
    skipped_.clear();
    int64_t left = list.total();
    Numbers numbers(address);
    WorkCounter work;
    for (int64_t j = 0; j < count && left > 0; ++j) {
      const int64_t number = numbers.Below(left);
      const int64_t passed = std::upper_bound(starts_.begin(), starts_.end(), number) - starts_.begin();
      work.Add(8 + (static_cast<int64_t>(starts_.size()) - passed));  // All picks behind it are moved.
      const int64_t skipped = passed > 0 ? skipped_[passed - 1] : 0;
      const int64_t entry = list.Find(number + skipped);
      emit(entry);
      if (entry >= list.degree) return;
      const int64_t before = list.before(entry);
      if (before < 0 || list.sum(entry) - before > left) return;
      const int64_t weight = list.sum(entry) - before;
      starts_.insert(starts_.begin() + passed, before - skipped);
      skipped_.insert(skipped_.begin() + passed, skipped);
      for (size_t i = passed; i < skipped_.size(); ++i) skipped_[i] += weight;
      for (size_t i = passed + 1; i < starts_.size(); ++i) starts_[i] -= weight;
      left -= weight;
    }
  }

  // Memory that is kept for the next list.
  size_t nbytes() const { return (starts_.capacity() + skipped_.capacity()) * sizeof(int64_t); }

 private:
  // The draws at an address, one after the other: two of each block.
  class Numbers {
   public:
    explicit Numbers(const DrawAddress& address) : address_(address) {}

    int64_t Below(int64_t bound) {
      if (drawn_ % 2 == 0) words_ = address_.Block(drawn_ / 2);
      return static_cast<int64_t>(gigl::Below(drawn_++ % 2 == 0 ? words_.first : words_.second, bound));
    }

   private:
    const DrawAddress& address_;
    uint64_t drawn_ = 0;
    Words words_{};
  };

  std::vector<int64_t> starts_;
  std::vector<int64_t> skipped_;
};

}  // namespace gigl
