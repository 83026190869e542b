// The order in which a copy reads its rows: as they come, or by ascending page.
//
// Random rows of a column beyond the reach of the TLB cost a page walk each, and the entries that a walk reads miss the
// caches as well. Of ascending rows, eight pages share a cache line of such entries. Putting rows in order takes 4 ns a
// row. Whether that pays depends on the processor, the size of the column and its pages, so it is measured.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

namespace gigl {

// It changes neither the bytes that a copy writes nor the error of a bad row.
enum class ReadOrder {
  kGiven,
  kAscending,
  kMeasured,  // whichever took less CPU time for copies of this magnitude
};

// Rows that are put in order at a time: bounds the scratch memory of a thread to 4 MB.
constexpr int64_t kOrderedRows = 1 << 18;

// Rows that can be put in order are below this.
constexpr uint64_t kMostOrderedRow = uint64_t{1} << 32;

struct NumberedRow {
  uint32_t row;
  uint32_t number;  // in the given order
};

// Puts rows in order, by the page on which they begin: a radix sort in two passes.
class PageOrder {
 public:
  // `num_rows` is at most kMostOrderedRow.
  PageOrder(int64_t num_rows, int64_t row_bytes);

  // Returns row(0), ..., row(count - 1), all below `num_rows`, in ascending order; in the given order within a page.
  // `count` is at most kOrderedRows. Valid until the next call of this thread.
  template <typename RowOf>
  std::span<const NumberedRow> Sort(int64_t count, RowOf row) const {
    Places low{}, high{};
    for (int64_t i = 0; i < count; ++i) {
      const auto page = static_cast<uint32_t>(row(i) >> shift_);
      ++low[page & mask_];
      ++high[page >> low_bits_];
    }
    ToPlaces(low);
    ToPlaces(high);
    const Passes passes = PassesFor(count);
    for (int64_t i = 0; i < count; ++i) {
      const auto each = static_cast<uint32_t>(row(i));
      passes.first[low[(each >> shift_) & mask_]++] = {each, static_cast<uint32_t>(i)};
    }
    for (const NumberedRow& each : passes.first) passes.second[high[each.row >> shift_ >> low_bits_]++] = each;
    return passes.second;
  }

 private:
  static constexpr int kMostDigitBits = 11;  // so many places that a pass writes to stay in the second-level cache
  using Places = std::array<uint32_t, 1 << kMostDigitBits>;
  struct Passes {
    std::span<NumberedRow> first;
    std::span<NumberedRow> second;
  };

  static void ToPlaces(Places& counts);
  static Passes PassesFor(int64_t count);

  int shift_ = 0;     // of a row, to the number that is sorted by
  int low_bits_ = 0;  // of that number, in the first pass
  uint32_t mask_ = 0;
};

// Measures which order is faster, for copies of one magnitude. Thread-safe.
class OrderMeasurements {
 public:
  // The order of the next copy: the faster one, and from time to time the other.
  ReadOrder Next();

  // Takes the CPU time of a copy.
  void Add(ReadOrder order, double ns_per_row);

 private:
  static constexpr uint32_t kFirst = 8;   // copies that take turns at first
  static constexpr uint32_t kRetry = 64;  // later, one of so many copies tries the other order

  std::atomic<uint32_t> copies_{0};
  std::atomic<float> given_{0};  // ns a row, 0: not measured
  std::atomic<float> ascending_{0};
};

// The measurements for columns of about `column_bytes` with rows of about `row_bytes`.
OrderMeasurements& MeasurementsOf(int64_t column_bytes, int64_t row_bytes);

// Nanoseconds of CPU time of the calling thread.
int64_t ThreadCpuNs();

}  // namespace gigl
