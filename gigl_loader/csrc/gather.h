// Copies of rows, and the expansion of compact edges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "read_order.h"

namespace gigl {

// One column of a gather: part p has rows of `row_bytes` from parts[p] on, row i of the result goes to
// out + i * row_bytes.
struct Column {
  std::vector<const std::byte*> parts;
  int64_t row_bytes;
  std::byte* out;
};

// Copies row positions[i] of each column. Part p holds the rows [bounds[p], bounds[p + 1]). Returns the index of the
// first position outside the bounds, or -1.
int64_t Gather(std::span<const Column> columns, std::span<const int64_t> bounds, std::span<const int64_t> positions,
               ReadOrder order = ReadOrder::kMeasured);

// One block of rows, row r of which is named first + r.
struct RowBlock {
  const std::byte* data;
  int64_t num_rows;
  int64_t first;
};

// Gathers and scatters in one: copies row rows[i] of `source` to row places[i] of `out`, which has
// `out_rows`. An empty `rows` or `places` stands for 0 .. count - 1 (rows counted from the first).
// Returns the first i with a row or a place outside, or -1. Each place is to be named once. A `crc` is
// continued with the rows in the order of i, while they are in the caches: its value is that of Crc32c. Rows are then
// read as they come.
int64_t CopyRows(const RowBlock& source, std::span<const int64_t> rows, std::span<const int64_t> places,
                 int64_t count, int64_t row_bytes, std::byte* out, int64_t out_rows,
                 ReadOrder order = ReadOrder::kMeasured, uint32_t* crc = nullptr);

// Writes compact edges as two rows of int64: neighbours[e] = rows[e], and targets[e] = t for the
// edges e in [colptr[t], colptr[t + 1]). colptr must rise from 0 to rows.size().
void ExpandEdges(std::span<const int32_t> rows, std::span<const int64_t> colptr,
                 int64_t* neighbors, int64_t* targets);

}  // namespace gigl
