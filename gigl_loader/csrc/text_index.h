// Texts that stand for node ids: the number of each text, and the text of each number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "buffer.h"

namespace gigl {

// Numbered texts as they lie in a file. Text i is bytes[offsets[i], offsets[i + 1]), in UTF-8.
//
// `slots` is a hash table with linear probing. Its size is a power of two. A slot holds the number of a text,
// or -1 where it is empty. The search for a text begins at HashText(text) modulo the size.
//
// The arrays may come from a damaged file: every member throws std::runtime_error for what cannot be.
class TextIndexView {
 public:
  TextIndexView(std::span<const uint8_t> bytes, std::span<const int64_t> offsets, std::span<const int32_t> slots);

  size_t size() const { return offsets_.size() - 1; }
  std::string_view At(int64_t number) const;
  std::optional<int32_t> Find(std::string_view text) const;

 private:
  std::span<const uint8_t> bytes_;
  std::span<const int64_t> offsets_;
  std::span<const int32_t> slots_;
};

// FNV-1a of 64 bits, times 0x9E3779B97F4A7C15, shifted right by 32.
uint64_t HashText(std::string_view text);

// Numbers texts in the order in which they are first seen.
class TextIndex {
 public:
  TextIndex();

  // Returns the number of a text, which is size() before the call where the text is new. Throws
  // std::length_error beyond 2^31 - 1 texts.
  int32_t Add(std::string_view text);

  // Numbers the texts by their bytes, ascending. Returns the new number of each old one.
  std::vector<int64_t> Sort();

  size_t size() const { return offsets_.size() - 1; }
  size_t nbytes() const { return bytes_.nbytes() + offsets_.nbytes() + slots_.capacity() * sizeof(int32_t); }
  std::span<const uint8_t> bytes() const { return bytes_.view(); }
  std::span<const int64_t> offsets() const { return offsets_.view(); }
  std::span<const int32_t> slots() const { return slots_; }

 private:
  std::string_view At(size_t number) const;
  void Resize(size_t num_slots);

  Buffer<uint8_t> bytes_;
  Buffer<int64_t> offsets_;
  std::vector<int32_t> slots_;
};

}  // namespace gigl
