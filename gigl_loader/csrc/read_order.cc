#include "read_order.h"

#include <algorithm>
#include <bit>
#include <ctime>

#include "buffer.h"
#include "stop.h"

namespace gigl {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int kMagnitudes = 64;

thread_local Buffer<NumberedRow> first_pass;
thread_local Buffer<NumberedRow> second_pass;

// The standard's function returns an int or what it was given, by compiler.
int BitWidth(int64_t number) { return static_cast<int>(std::bit_width(static_cast<uint64_t>(number))); }

std::span<NumberedRow> Take(Buffer<NumberedRow>& buffer, int64_t count) {
  buffer.Clear();
  return {buffer.Extend(static_cast<size_t>(count)), static_cast<size_t>(count)};
}

}  // namespace

PageOrder::PageOrder(int64_t num_rows, int64_t row_bytes) {
  const int64_t rows_per_page = std::max<int64_t>(kPageBytes / std::max<int64_t>(row_bytes, 1), 1);
  const int row_bits = BitWidth(std::max<int64_t>(num_rows, 1) - 1);
  shift_ = std::max(BitWidth(rows_per_page) - 1, row_bits - 2 * kMostDigitBits);
  low_bits_ = std::max(row_bits - shift_, 0) / 2;
  mask_ = (uint32_t{1} << low_bits_) - 1;
}

// Replaces counts by the place of the first element of each kind.
void PageOrder::ToPlaces(Places& counts) {
  uint32_t next = 0;
  for (uint32_t& each : counts) {
    const uint32_t count = each;
    each = next;
    next += count;
  }
}

PageOrder::Passes PageOrder::PassesFor(int64_t count) {
  CheckStop(count);
  return {Take(first_pass, count), Take(second_pass, count)};
}

ReadOrder OrderMeasurements::Next() {
  const uint32_t copies = copies_.fetch_add(1, std::memory_order_relaxed);
  const bool ascends = copies < kFirst ? copies % 2 != 0
                                       : (ascending_ < given_) != (copies % kRetry == 0);
  return ascends ? ReadOrder::kAscending : ReadOrder::kGiven;
}

void OrderMeasurements::Add(ReadOrder order, double ns_per_row) {
  // The least of the last ones: what else a copy waits for, first of all fresh pages, only makes it slower.
  std::atomic<float>& least = order == ReadOrder::kAscending ? ascending_ : given_;
  const float before = least.load(std::memory_order_relaxed);
  const auto now = static_cast<float>(ns_per_row);
  least.store(before == 0 ? now : std::min(now, before * 1.05f), std::memory_order_relaxed);
}

OrderMeasurements& MeasurementsOf(int64_t column_bytes, int64_t row_bytes) {
  static constinit OrderMeasurements measurements[kMagnitudes][kMagnitudes];
  return measurements[BitWidth(column_bytes)][BitWidth(row_bytes)];
}

int64_t ThreadCpuNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace gigl
