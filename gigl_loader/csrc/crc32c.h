// CRC-32C (Castagnoli, RFC 3720): the checksum of wires and of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gigl {

// Returns the CRC-32C of the bytes that `crc` was computed of, followed by `data`. Start with 0.
// Uses the instructions of the processor where it has them.
uint32_t Crc32c(std::span<const std::byte> data, uint32_t crc = 0);

// The same without carry-less multiplication, for processors that have CRC instructions only.
uint32_t Crc32cStrands(std::span<const std::byte> data, uint32_t crc = 0);

// The same by tables, for processors without the instructions.
uint32_t Crc32cPortable(std::span<const std::byte> data, uint32_t crc = 0);

// Copies `data` to `out`, elsewhere, and returns what Crc32c does: each byte comes out of memory once.
uint32_t CopyCrc32c(std::span<const std::byte> data, std::byte* out, uint32_t crc = 0);

// Writes the CRC-32C of each block of `data` to `sums`. Blocks have `block_bytes` (at least 1), the last
// one what is left; `sums` has one entry for each.
void Crc32cBlocks(std::span<const std::byte> data, size_t block_bytes, std::span<uint32_t> sums);

// Returns the CRC-32C of two strings of bytes in a row, the second of which has `second_bytes`.
uint32_t Crc32cCombine(uint32_t first, uint32_t second, uint64_t second_bytes);

}  // namespace gigl
