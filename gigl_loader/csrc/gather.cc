#include "gather.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "crc32c.h"
#include "read_order.h"
#include "stop.h"

namespace gigl {
namespace {

// Rows fetched ahead of the copy. One row of 512 bytes is eight lines; the core keeps a few dozen
// in flight.
constexpr int64_t kPrefetchBytes = 8192;
constexpr int64_t kLine = 64;
constexpr int64_t kBlockBytes = 32 << 10;  // copied between two checks of the stop flag, at most 128 rows

// From this size on the output cannot stay in the caches anyway: stores go around them, which
// saves reading each line before it is overwritten.
constexpr int64_t kStreamBytes = 4 << 20;

// The order of rows matters for copies of this size and more, from columns of this size: less lies within the reach of
// the TLB, or of the cache for its entries.
constexpr int64_t kOrderedBytes = 4 << 20;
constexpr int64_t kOrderedColumnBytes = 64 << 20;
constexpr int64_t kLookedAt = 64;  // rows: if these ascend, all are taken to

// Rows whose checksum is taken at a time, while they are in the first caches. Of rows of 512 bytes, 56 MB
// are gathered in 12 ms of CPU; a checksum adds 2 to 3 ms so, and 5 where it is taken at the end.
constexpr int64_t kHotBytes = 32 << 10;

void PrefetchRow(const std::byte* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at, 0, 0);
}

struct CopyPlain {
  int64_t row_bytes;
  void operator()(std::byte* to, const std::byte* from) const { std::memcpy(to, from, row_bytes); }
};

// A row of a size known to the compiler.
template <int64_t kBytes>
struct CopyFixed {
  void operator()(std::byte* to, const std::byte* from) const { std::memcpy(to, from, kBytes); }
};

#if defined(__SSE2__)
// `to` on a 16-byte boundary, whole 16-byte pieces.
struct CopyStreaming {
  int64_t row_bytes;
  void operator()(std::byte* to, const std::byte* from) const {
    for (int64_t at = 0; at < row_bytes; at += 16) {
      const __m128i piece = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), piece);
    }
  }
};
#endif

// Where the rows of a column lie.
struct ColumnRows {
  std::span<const std::byte* const> parts;
  std::span<const int64_t> bounds;
  std::span<const int64_t> positions;
  int64_t row_bytes;

  uint64_t Row(int64_t i) const { return static_cast<uint64_t>(positions[i]); }

  // Row i of the copy, or nullptr for a position outside the column.
  const std::byte* From(int64_t i) const {
    const int64_t position = positions[i];
    return position < bounds.front() || position >= bounds.back() ? nullptr : FromRow(position);
  }

  const std::byte* FromRow(int64_t position) const {
    size_t part = 0;
    while (position >= bounds[part + 1]) ++part;
    return parts[part] + (position - bounds[part]) * row_bytes;
  }
};

// Rows of one block, one after the other or picked.
struct Block {
  RowBlock source;
  std::span<const int64_t> rows;
  int64_t row_bytes;

  // Unsigned: the distance of numbers that are no rows may overflow, and is then too large.
  uint64_t Row(int64_t i) const {
    return rows.empty() ? static_cast<uint64_t>(i)
                        : static_cast<uint64_t>(rows[i]) - static_cast<uint64_t>(source.first);
  }

  const std::byte* From(int64_t i) const {
    const uint64_t row = Row(i);
    return row < static_cast<uint64_t>(source.num_rows) ? FromRow(static_cast<int64_t>(row)) : nullptr;
  }

  const std::byte* FromRow(int64_t row) const { return source.data + row * row_bytes; }
};

// Rows that are written one after the other. They may share a cache line with their neighbours.
struct InOrder {
  static constexpr int64_t kStreamUnit = 16;
  std::byte* out;
  int64_t row_bytes;
  std::byte* To(int64_t i) const { return out + i * row_bytes; }
};

// Rows that are written all over a matrix. They bypass the caches only where each fills its lines.
struct Scattered {
  static constexpr int64_t kStreamUnit = kLine;
  std::byte* out;
  int64_t num_rows;
  std::span<const int64_t> places;
  int64_t row_bytes;
  std::byte* To(int64_t i) const {
    return places[i] >= 0 && places[i] < num_rows ? out + places[i] * row_bytes : nullptr;
  }
};

// Rows of `source` in another order.
template <typename Source>
struct OrderedSource {
  const Source& source;
  std::span<const NumberedRow> order;
  const std::byte* From(int64_t i) const { return source.FromRow(order[i].row); }
};

// Where those rows are written. They are numbered from row `begin` of `target` on.
template <typename Target>
struct OrderedTarget {
  static constexpr int64_t kStreamUnit = kLine;
  const Target& target;
  int64_t begin;
  std::span<const NumberedRow> order;
  std::byte* out;
  std::byte* To(int64_t i) const { return target.To(begin + order[i].number); }
};

// A part of a copy: its first `count` rows are copied, of `ahead` that may be fetched ahead, of `whole`.
struct Extent {
  int64_t count;
  int64_t ahead;
  int64_t whole;
};

template <typename Source, typename Target, typename Copy>
int64_t CopyEach(const Source& source, const Target& target, const Extent& extent, int64_t row_bytes, Copy copy) {
  const int64_t ahead = std::clamp<int64_t>(kPrefetchBytes / std::max<int64_t>(row_bytes, 1), 2, 64);
  // Rows may have to come from a disk, 0.1 ms each: 1,000 of them at most between two looks at the stop flag.
  const int64_t step = std::clamp<int64_t>(kBlockBytes / std::max<int64_t>(row_bytes, 1), 1, 128);
  for (int64_t begin = 0; begin < extent.count; begin += step) {
    const int64_t end = std::min(begin + step, extent.count);
    for (int64_t i = begin; i < end; ++i) {
      if (i + ahead < extent.ahead) {
        const std::byte* next = source.From(i + ahead);
        if (next != nullptr) PrefetchRow(next, row_bytes);
      }
      const std::byte* from = source.From(i);
      std::byte* to = target.To(i);
      if (from == nullptr || to == nullptr) return i;
      copy(to, from);
    }
    CheckStop(kWorkPerLook / 8 + 1);
  }
  return -1;
}

// Chooses how rows of this size are copied.
template <typename Source, typename Target>
int64_t Copy(const Source& source, const Target& target, const Extent& extent, int64_t row_bytes) {
  switch (row_bytes) {
    case 1: return CopyEach(source, target, extent, row_bytes, CopyFixed<1>{});
    case 2: return CopyEach(source, target, extent, row_bytes, CopyFixed<2>{});
    case 4: return CopyEach(source, target, extent, row_bytes, CopyFixed<4>{});
    case 8: return CopyEach(source, target, extent, row_bytes, CopyFixed<8>{});
    default: break;
  }
#if defined(__SSE2__)
  constexpr int64_t kUnit = Target::kStreamUnit;
  const bool aligned = row_bytes % kUnit == 0 && reinterpret_cast<uintptr_t>(target.out) % kUnit == 0;
  if (aligned && row_bytes * extent.whole >= kStreamBytes) {
    return CopyEach(source, target, extent, row_bytes, CopyStreaming{row_bytes});
  }
#endif
  return CopyEach(source, target, extent, row_bytes, CopyPlain{row_bytes});
}

// The reader may be another process: let it see the rows before it hears of them.
void FinishStreaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// One column of a copy.
template <typename Source, typename Target>
struct ColumnCopy {
  Source source;
  Target target;
  int64_t row_bytes;
};

// Copies the same `count` rows of each column. They are some of `num_rows`.
template <typename Source, typename Target>
class Copying {
 public:
  Copying(std::span<const ColumnCopy<Source, Target>> columns, int64_t count, int64_t num_rows)
      : columns_(columns), count_(count), num_rows_(num_rows) {
    for (const auto& column : columns_) {
      widest_ = std::max(widest_, column.row_bytes);
      row_bytes_ += column.row_bytes;
    }
  }

  // Returns the first i with a row or a place outside, or -1.
  int64_t Run(ReadOrder order) const {
    if (columns_.empty() || count_ == 0) return -1;
    if (order == ReadOrder::kMeasured) return OrderMatters() ? RunMeasured() : RunGiven();
    const bool fits = static_cast<uint64_t>(num_rows_) <= kMostOrderedRow;
    return order == ReadOrder::kAscending && fits ? RunAscending() : RunGiven();
  }

 private:
  bool OrderMatters() const {
    if (count_ < kOrderedBytes / std::max<int64_t>(row_bytes_, 1)) return false;
    if (static_cast<uint64_t>(num_rows_) > kMostOrderedRow) return false;
    if (num_rows_ < kOrderedColumnBytes / std::max<int64_t>(row_bytes_, 1)) return false;
    const Source& source = columns_.front().source;
    for (int64_t i = 1; i < std::min(count_, kLookedAt); ++i) {
      if (source.Row(i) < source.Row(i - 1)) return true;
    }
    return false;
  }

  int64_t RunMeasured() const {
    OrderMeasurements& measurements = MeasurementsOf(num_rows_ * row_bytes_, row_bytes_);
    const ReadOrder order = measurements.Next();
    const int64_t start = ThreadCpuNs();
    const int64_t wrong = Run(order);
    if (wrong < 0) measurements.Add(order, static_cast<double>(ThreadCpuNs() - start) / static_cast<double>(count_));
    return wrong;
  }

  int64_t RunGiven() const {
    for (const auto& column : columns_) {
      const int64_t wrong = Copy(column.source, column.target, {count_, count_, count_}, column.row_bytes);
      if (wrong >= 0) return wrong;
    }
    return -1;
  }

  int64_t RunAscending() const {
    const Source& source = columns_.front().source;
    const PageOrder pages(num_rows_, widest_);
    for (int64_t begin = 0; begin < count_; begin += kOrderedRows) {
      const int64_t rows = std::min(kOrderedRows, count_ - begin);
      if (const int64_t wrong = FirstOutside(begin, begin + rows); wrong >= 0) return wrong;
      const std::span<const NumberedRow> order = pages.Sort(rows, [&](int64_t i) { return source.Row(begin + i); });
      for (const auto& column : columns_) {
        const OrderedSource<Source> from{column.source, order};
        const OrderedTarget<Target> to{column.target, begin, order, column.target.out};
        Copy(from, to, {rows, rows, count_}, column.row_bytes);
      }
    }
    return -1;
  }

  // Rows and places are the same in all columns.
  int64_t FirstOutside(int64_t begin, int64_t end) const {
    const auto& [source, target, row_bytes] = columns_.front();
    for (int64_t i = begin; i < end; ++i) {
      if (source.Row(i) >= static_cast<uint64_t>(num_rows_) || target.To(i) == nullptr) return i;
    }
    return -1;
  }

  std::span<const ColumnCopy<Source, Target>> columns_;
  int64_t count_;
  int64_t num_rows_;
  int64_t widest_ = 0;
  int64_t row_bytes_ = 0;  // of all columns
};

template <typename Source, typename Target>
int64_t CopyColumn(const Source& source, const Target& target, int64_t row_bytes, int64_t count, int64_t num_rows,
                   ReadOrder order) {
  const ColumnCopy<Source, Target> column{source, target, row_bytes};
  return Copying<Source, Target>({&column, 1}, count, num_rows).Run(order);
}

// Where the rows of a copy go, in order or to `places`.
struct Destination {
  std::byte* out;
  int64_t num_rows;
  std::span<const int64_t> places;
  int64_t row_bytes;

  // Calls run(target) with where rows `begin` and following go.
  template <typename Run>
  int64_t At(int64_t begin, Run run) const {
    if (places.empty()) return run(InOrder{out + begin * row_bytes, row_bytes});
    return run(Scattered{out, num_rows, places.subspan(begin), row_bytes});
  }
};

// Copies rows so that those of a block are in the caches when its checksum is taken. Picked rows are put
// side by side for that: the processor's instructions are fast over some kilobytes only.
int64_t CopyHot(const Block& source, const Destination& destination, int64_t count, uint32_t& crc) {
  const int64_t row_bytes = source.row_bytes;
  const int64_t most = std::max<int64_t>(kHotBytes / std::max<int64_t>(row_bytes, 1), 1);
  const int64_t step = std::min(most, std::max<int64_t>(count, 1));
  const std::unique_ptr<std::byte[]> stage(source.rows.empty() ? nullptr : new std::byte[step * row_bytes]);
  for (int64_t begin = 0; begin < count; begin += step) {
    const int64_t rows = std::min(step, count - begin);
    RowBlock hot{stage.get(), rows, 0};
    if (source.rows.empty()) {
      hot.data = source.source.data + begin * row_bytes;
    } else {
      const Block picked{source.source, source.rows.subspan(begin), row_bytes};
      const int64_t wrong = Copy(picked, InOrder{stage.get(), row_bytes}, {rows, count - begin, rows}, row_bytes);
      if (wrong >= 0) return begin + wrong;
    }
    crc = Crc32c({hot.data, static_cast<size_t>(rows * row_bytes)}, crc);
    const int64_t wrong = destination.At(begin, [&](const auto& target) {
      return Copy(Block{hot, {}, row_bytes}, target, {rows, 0, count}, row_bytes);
    });
    if (wrong >= 0) return begin + wrong;
  }
  return -1;
}

}  // namespace

int64_t Gather(std::span<const Column> columns, std::span<const int64_t> bounds, std::span<const int64_t> positions,
               ReadOrder order) {
  std::vector<ColumnCopy<ColumnRows, InOrder>> copies;
  copies.reserve(columns.size());
  for (const Column& each : columns) {
    copies.push_back({{each.parts, bounds, positions, each.row_bytes}, {each.out, each.row_bytes}, each.row_bytes});
  }
  const int64_t wrong =
      Copying<ColumnRows, InOrder>(copies, static_cast<int64_t>(positions.size()), bounds.back()).Run(order);
  FinishStreaming();
  return wrong;
}

int64_t CopyRows(const RowBlock& source, std::span<const int64_t> rows, std::span<const int64_t> places,
                 int64_t count, int64_t row_bytes, std::byte* out, int64_t out_rows, ReadOrder order, uint32_t* crc) {
  const Block block{source, rows, row_bytes};
  const Destination destination{out, out_rows, places, row_bytes};
  int64_t fitting = places.empty() ? std::min(count, out_rows) : count;
  if (rows.empty()) {
    fitting = std::min(fitting, source.num_rows);
    order = ReadOrder::kGiven;
  }
  const int64_t wrong = crc != nullptr ? CopyHot(block, destination, fitting, *crc)
                                       : destination.At(0, [&](const auto& target) {
                                           return CopyColumn(block, target, row_bytes, fitting, source.num_rows, order);
                                         });
  FinishStreaming();
  return wrong < 0 && fitting < count ? fitting : wrong;
}

void ExpandEdges(std::span<const int32_t> rows, std::span<const int64_t> colptr,
                 int64_t* neighbors, int64_t* targets) {
  for (size_t e = 0; e < rows.size(); ++e) neighbors[e] = rows[e];
  for (size_t t = 0; t + 1 < colptr.size(); ++t) {
    for (int64_t e = colptr[t]; e < colptr[t + 1]; ++e) targets[e] = static_cast<int64_t>(t);
  }
}

}  // namespace gigl
