#include "dequantize.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace gigl {
namespace {

// Codes that are unpacked at a time: with the scales that belong to them, they stay in the first cache.
constexpr int64_t kBlock = 1024;

// Unpacked codes of every byte: a load and a store for each byte, where shifts take one for each code.
template <int kBits>
constexpr auto UnpackedBytes() {
  constexpr int kPerByte = 8 / kBits;
  std::array<std::array<uint8_t, kPerByte>, 256> table{};
  for (int byte = 0; byte < 256; ++byte) {
    for (int e = 0; e < kPerByte; ++e) {
      table[byte][e] = static_cast<uint8_t>(byte >> (e * kBits) & ((1 << kBits) - 1));
    }
  }
  return table;
}

// Unpacks codes [begin, begin + count) of a row. `begin` and the size of `out` are multiples of 8.
template <int kBits>
const uint8_t* Unpack(const uint8_t* packed, int64_t begin, int64_t count, uint8_t* out) {
  if constexpr (kBits == 8) return packed + begin;
  constexpr int kPerByte = 8 / kBits;
  static constexpr auto kTable = UnpackedBytes<kBits>();
  const uint8_t* from = packed + begin / kPerByte;
  for (int64_t byte = 0; byte * kPerByte < count; ++byte) {
    std::memcpy(out + byte * kPerByte, kTable[from[byte]].data(), kPerByte);
  }
  return out;
}

template <int kBits, typename Convert>
void EachBlock(const CodeRows& rows, int64_t header_bytes, float* out, Convert convert) {
  uint8_t codes[kBlock];
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const auto* data = reinterpret_cast<const uint8_t*>(rows.data + row * rows.row_bytes);
    for (int64_t begin = 0; begin < rows.elements; begin += kBlock) {
      const int64_t count = std::min(kBlock, rows.elements - begin);
      const uint8_t* unpacked = Unpack<kBits>(data + header_bytes, begin, count, codes);
      convert(data, unpacked, begin, count, out + row * rows.elements + begin);
    }
  }
}

template <typename Convert>
void EachBlock(const CodeRows& rows, int64_t header_bytes, float* out, Convert convert) {
  switch (rows.bits) {
    case 8: return EachBlock<8>(rows, header_bytes, out, convert);
    case 4: return EachBlock<4>(rows, header_bytes, out, convert);
    case 2: return EachBlock<2>(rows, header_bytes, out, convert);
    default: return EachBlock<1>(rows, header_bytes, out, convert);
  }
}

}  // namespace

void DequantizeByColumn(const CodeRows& rows, std::span<const double> scales, std::span<const double> zero_points,
                        float* out) {
  const double* scale = scales.data();
  const double* zero = zero_points.data();
  EachBlock(rows, 0, out,
            [=](const uint8_t*, const uint8_t* __restrict codes, int64_t begin, int64_t count, float* __restrict to) {
              for (int64_t e = 0; e < count; ++e) {
                to[e] = static_cast<float>(zero[begin + e] + static_cast<double>(codes[e]) * scale[begin + e]);
              }
            });
}

void DequantizeByRow(const CodeRows& rows, float* out) {
  EachBlock(rows, 2 * sizeof(float), out,
            [](const uint8_t* row, const uint8_t* __restrict codes, int64_t, int64_t count, float* __restrict to) {
              float header[2];
              std::memcpy(header, row, sizeof(header));
              const double scale = header[0], zero = header[1];
              for (int64_t e = 0; e < count; ++e) {
                to[e] = static_cast<float>(zero + static_cast<double>(codes[e]) * scale);
              }
            });
}

}  // namespace gigl
