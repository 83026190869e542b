// Copies of rows and the expansion of compact edges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gigl {

// Copies row positions[i] of a column to out + i * row_bytes. Part p holds the rows
// [bounds[p], bounds[p + 1]). Returns the index of a position outside the bounds, or -1.
int64_t Gather(std::span<const std::byte* const> parts, std::span<const int64_t> bounds,
               std::span<const int64_t> positions, int64_t row_bytes, std::byte* out);

// Writes compact edges as two rows of int64: neighbours[e] = rows[e], and targets[e] = t for the
// edges e in [colptr[t], colptr[t + 1]). colptr must rise from 0 to rows.size().
void ExpandEdges(std::span<const int32_t> rows, std::span<const int64_t> colptr,
                 int64_t* neighbors, int64_t* targets);

}  // namespace gigl
