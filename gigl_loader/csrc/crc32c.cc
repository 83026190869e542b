#include "crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace gigl {
namespace {

// Registers hold polynomials over GF(2) with the coefficient of x^0 in the highest bit.
constexpr uint32_t kPolynomial = 0x82F63B78;

constexpr uint32_t TimesX(uint32_t a) { return (a >> 1) ^ (a & 1 ? kPolynomial : 0); }

constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1, b = TimesX(b)) product ^= a & bit ? b : 0;
  return product;
}

// x^(8 * bytes): what a register is multiplied by when so many zero bytes go through it.
constexpr uint32_t PowerOfZeros(uint64_t bytes) {
  uint32_t result = uint32_t{1} << 31;
  uint32_t power = uint32_t{1} << 23;  // x^8
  for (; bytes != 0; bytes >>= 1, power = Multiply(power, power)) {
    if (bytes & 1) result = Multiply(result, power);
  }
  return result;
}

// Table k gives what a byte becomes that is followed by k zero bytes.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = TimesX(value);
    tables[0][byte] = value;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 255];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint32_t StepByte(uint32_t state, std::byte byte) {
  return (state >> 8) ^ kTables[0][(state ^ static_cast<uint32_t>(byte)) & 255];
}

uint32_t RunPortable(uint32_t state, const std::byte* data, size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    uint32_t low, high;
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + 4, 4);
    low ^= state;
    state = kTables[7][low & 255] ^ kTables[6][(low >> 8) & 255] ^ kTables[5][(low >> 16) & 255] ^
            kTables[4][low >> 24] ^ kTables[3][high & 255] ^ kTables[2][(high >> 8) & 255] ^
            kTables[1][(high >> 16) & 255] ^ kTables[0][high >> 24];
  }
  for (; size > 0; ++data, --size) state = StepByte(state, *data);
  return state;
}

#if defined(__x86_64__) || (defined(__aarch64__) && defined(__linux__))
#define GIGL_CRC_INSTRUCTIONS 1

#if defined(__x86_64__)
#define GIGL_CRC_TARGET __attribute__((target("sse4.2")))
GIGL_CRC_TARGET inline uint64_t StepWord(uint64_t state, uint64_t word) { return _mm_crc32_u64(state, word); }
bool HasInstructions() { return __builtin_cpu_supports("sse4.2"); }
#else
#define GIGL_CRC_TARGET __attribute__((target("+crc")))
GIGL_CRC_TARGET inline uint64_t StepWord(uint64_t state, uint64_t word) {
  return __crc32cd(static_cast<uint32_t>(state), word);
}
bool HasInstructions() { return getauxval(AT_HWCAP) & HWCAP_CRC32; }
#endif

// Multiplies a register by x^(8 * bytes), byte by byte from tables.
class Shift {
 public:
  explicit Shift(uint64_t bytes) {
    const uint32_t power = PowerOfZeros(bytes);
    for (size_t k = 0; k < 4; ++k) {
      for (uint32_t byte = 0; byte < 256; ++byte) tables_[k][byte] = Multiply(byte << (8 * k), power);
    }
  }
  uint32_t operator()(uint32_t state) const {
    return tables_[0][state & 255] ^ tables_[1][(state >> 8) & 255] ^ tables_[2][(state >> 16) & 255] ^
           tables_[3][state >> 24];
  }

 private:
  std::array<std::array<uint32_t, 256>, 4> tables_;
};

uint64_t WordAt(const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, 8);
  return word;
}

// The instruction takes three cycles, and one may begin in each: three strands at a time.
template <size_t kStrand>
GIGL_CRC_TARGET uint32_t RunStrands(uint32_t state, const std::byte*& data, size_t& size) {
  static const Shift shift(kStrand);
  for (; size >= 3 * kStrand; data += 3 * kStrand, size -= 3 * kStrand) {
    uint64_t a = state, b = 0, c = 0;
    for (const std::byte* at = data; at < data + kStrand; at += 8) {
      a = StepWord(a, WordAt(at));
      b = StepWord(b, WordAt(at + kStrand));
      c = StepWord(c, WordAt(at + 2 * kStrand));
    }
    state = shift(shift(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^ static_cast<uint32_t>(c);
  }
  return state;
}

GIGL_CRC_TARGET uint32_t RunInstructions(uint32_t state, const std::byte* data, size_t size) {
  state = RunStrands<4096>(state, data, size);
  state = RunStrands<256>(state, data, size);
  uint64_t wide = state;
  for (; size >= 8; data += 8, size -= 8) wide = StepWord(wide, WordAt(data));
  state = static_cast<uint32_t>(wide);
  for (; size > 0; ++data, --size) state = StepByte(state, *data);
  return state;
}
#endif

}  // namespace

uint32_t Crc32cPortable(std::span<const std::byte> data, uint32_t crc) {
  return ~RunPortable(~crc, data.data(), data.size());
}

uint32_t Crc32c(std::span<const std::byte> data, uint32_t crc) {
#ifdef GIGL_CRC_INSTRUCTIONS
  static const bool has_instructions = HasInstructions();
  if (has_instructions) return ~RunInstructions(~crc, data.data(), data.size());
#endif
  return Crc32cPortable(data, crc);
}

void Crc32cBlocks(std::span<const std::byte> data, size_t block_bytes, std::span<uint32_t> sums) {
  for (size_t block = 0; block < sums.size(); ++block) {
    const size_t begin = block * block_bytes;
    sums[block] = Crc32c(data.subspan(begin, std::min(block_bytes, data.size() - begin)));
  }
}

uint32_t Crc32cCombine(uint32_t first, uint32_t second, uint64_t second_bytes) {
  return Multiply(PowerOfZeros(second_bytes), first) ^ second;
}

}  // namespace gigl
