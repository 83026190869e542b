#include "crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
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

// x^exponent, where `base` is x, or x^(8 * exponent), where it is x^8.
constexpr uint32_t Power(uint32_t base, uint64_t exponent) {
  uint32_t result = uint32_t{1} << 31;
  for (; exponent != 0; exponent >>= 1, base = Multiply(base, base)) {
    if (exponent & 1) result = Multiply(result, base);
  }
  return result;
}

// x^(8 * bytes): what a register is multiplied by when so many zero bytes go through it.
constexpr uint32_t PowerOfZeros(uint64_t bytes) { return Power(uint32_t{1} << 23, bytes); }

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

#if defined(__x86_64__)
#define GIGL_FOLD_TARGET __attribute__((target("sse4.2,avx2,pclmul,vpclmulqdq")))

bool CanFold() {
  return HasInstructions() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul") &&
         __builtin_cpu_supports("vpclmulqdq");
}

constexpr size_t kFoldedLine = 128;   // Four registers of 32 bytes.
constexpr size_t kStrandLine = 40;    // What each of three strands takes meanwhile.
constexpr size_t kFoldedLines = 32;

// Half a register, multiplied by x^(8 * kFoldedLine) and, for the half of higher powers, by x^64. The product
// of two reflected halves lies one bit off, hence the 1.
constexpr int64_t FoldFactor(uint64_t half_bits) {
  return static_cast<int64_t>(uint64_t{Power(uint32_t{1} << 30, 8 * kFoldedLine + half_bits - 1)} << 32);
}

GIGL_FOLD_TARGET inline __m256i Load(const std::byte* data) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
}

// Moves a register by kFoldedLine bytes towards the end of the data, and adds what lies there.
GIGL_FOLD_TARGET inline __m256i Fold(__m256i a, const std::byte* data) {
  constexpr int64_t kLow = FoldFactor(64), kHigh = FoldFactor(0);
  const __m256i factors = _mm256_set_epi64x(kHigh, kLow, kHigh, kLow);
  const __m256i moved =
      _mm256_xor_si256(_mm256_clmulepi64_epi128(a, factors, 0x00), _mm256_clmulepi64_epi128(a, factors, 0x11));
  return _mm256_xor_si256(moved, Load(data));
}

// Carry-less multiplication and the CRC instruction have units of their own: half the bytes go through
// each at the same time. Folding is that of Gopal et al., "Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ Instruction" (Intel, 2009). 27 GB/s out of the caches, where strands alone do 17.
GIGL_FOLD_TARGET uint32_t RunFolding(uint32_t state, const std::byte* data, size_t size) {
  constexpr size_t kFolded = kFoldedLine * kFoldedLines;
  constexpr size_t kStrand = kStrandLine * kFoldedLines;
  constexpr size_t kBlock = kFolded + 3 * kStrand;
  static const Shift shift(kStrand);
  for (; size >= kBlock; data += kBlock, size -= kBlock) {
    uint64_t a = 0, b = 0, c = 0;
    __m256i first = _mm256_xor_si256(Load(data), _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, static_cast<int>(state)));
    __m256i second = Load(data + 32), third = Load(data + 64), fourth = Load(data + 96);
    for (size_t line = 0; line < kFoldedLines; ++line) {
      const std::byte* at = data + kFolded + line * kStrandLine;
      for (const std::byte* end = at + kStrandLine; at < end; at += 8) {
        a = StepWord(a, WordAt(at));
        b = StepWord(b, WordAt(at + kStrand));
        c = StepWord(c, WordAt(at + 2 * kStrand));
      }
      if (line + 1 == kFoldedLines) break;
      const std::byte* next = data + (line + 1) * kFoldedLine;
      first = Fold(first, next);
      second = Fold(second, next + 32);
      third = Fold(third, next + 64);
      fourth = Fold(fourth, next + 96);
    }
    // The registers are as many bytes as stand for all that were folded.
    const __m256i folded[] = {first, second, third, fourth};
    const auto* words = reinterpret_cast<const std::byte*>(folded);
    uint64_t wide = 0;
    for (size_t at = 0; at < kFoldedLine; at += 8) wide = StepWord(wide, WordAt(words + at));
    const uint32_t before = shift(static_cast<uint32_t>(wide)) ^ static_cast<uint32_t>(a);
    state = shift(shift(before) ^ static_cast<uint32_t>(b)) ^ static_cast<uint32_t>(c);
  }
  return RunInstructions(state, data, size);
}
#endif

using Run = uint32_t (*)(uint32_t state, const std::byte* data, size_t size);

Run RunWithInstructions() {
#ifdef GIGL_CRC_INSTRUCTIONS
  if (HasInstructions()) return RunInstructions;
#endif
  return RunPortable;
}

// The fastest of what the processor can.
Run FastestRun() {
#if defined(__x86_64__)
  if (CanFold()) return RunFolding;
#endif
  return RunWithInstructions();
}

constexpr size_t kHotBytes = 32 << 10;

}  // namespace

uint32_t Crc32cPortable(std::span<const std::byte> data, uint32_t crc) {
  return ~RunPortable(~crc, data.data(), data.size());
}

uint32_t Crc32cStrands(std::span<const std::byte> data, uint32_t crc) {
  return ~RunWithInstructions()(~crc, data.data(), data.size());
}

uint32_t Crc32c(std::span<const std::byte> data, uint32_t crc) {
  static const Run run = FastestRun();
  return ~run(~crc, data.data(), data.size());
}

uint32_t CopyCrc32c(std::span<const std::byte> data, std::byte* out, uint32_t crc) {
  for (size_t at = 0; at < data.size(); at += kHotBytes) {
    const std::span<const std::byte> block = data.subspan(at, std::min(kHotBytes, data.size() - at));
    crc = Crc32c(block, crc);
    std::memcpy(out + at, block.data(), block.size());
  }
  return crc;
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
