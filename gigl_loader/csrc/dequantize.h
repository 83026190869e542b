// Values of quantised rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gigl {

// Rows of codes. Code e of a row has `bits` bits (8, 4, 2 or 1), from bit e * bits on, lowest bits first.
struct CodeRows {
  const std::byte* data;
  int64_t num_rows;
  int64_t row_bytes;  // of which codes are the last
  int64_t elements;   // codes of a row
  int bits;
};

// Writes zero_points[e] + code * scales[e] for each code e of each row, computed in double and rounded to
// float: scales are floats, so the product is exact, and every machine gives the same bits.
void DequantizeByColumn(const CodeRows& rows, std::span<const double> scales, std::span<const double> zero_points,
                        float* out);

// The same, with the scale and the zero point that each row begins with (8 bytes: two floats).
void DequantizeByRow(const CodeRows& rows, float* out);

}  // namespace gigl
