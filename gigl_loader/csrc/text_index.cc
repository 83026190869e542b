#include "text_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace gigl {
namespace {

constexpr int32_t kEmpty = -1;
constexpr size_t kMinSlots = 16;
constexpr size_t kMaxTexts = (size_t{1} << 31) - 1;

std::string_view View(std::span<const uint8_t> bytes, int64_t begin, int64_t end) {
  return {reinterpret_cast<const char*>(bytes.data()) + begin, static_cast<size_t>(end - begin)};
}

}  // namespace

uint64_t HashText(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return (hash * 0x9E3779B97F4A7C15u) >> 32;
}

TextIndexView::TextIndexView(std::span<const uint8_t> bytes, std::span<const int64_t> offsets,
                             std::span<const int32_t> slots)
    : bytes_(bytes), offsets_(offsets), slots_(slots) {
  if (offsets.empty()) throw std::runtime_error("offsets of texts need an entry");
  if (!std::has_single_bit(slots.size())) throw std::runtime_error("slots of texts must be a power of two");
}

std::string_view TextIndexView::At(int64_t number) const {
  if (number < 0 || static_cast<size_t>(number) >= size()) throw std::runtime_error("a slot names no text");
  const int64_t begin = offsets_[number], end = offsets_[number + 1];
  if (begin < 0 || begin > end || static_cast<uint64_t>(end) > bytes_.size()) {
    throw std::runtime_error("offsets of texts leave their bytes");
  }
  return View(bytes_, begin, end);
}

std::optional<int32_t> TextIndexView::Find(std::string_view text) const {
  const size_t mask = slots_.size() - 1;
  size_t at = HashText(text) & mask;
  for (size_t probes = 0; probes <= mask; ++probes, at = (at + 1) & mask) {
    const int32_t number = slots_[at];
    if (number == kEmpty) return std::nullopt;
    if (At(number) == text) return number;
  }
  return std::nullopt;
}

TextIndex::TextIndex() : slots_(kMinSlots, kEmpty) { offsets_.Push(0); }

std::string_view TextIndex::At(size_t number) const {
  return View(bytes_.view(), offsets_[number], offsets_[number + 1]);
}

int32_t TextIndex::Add(std::string_view text) {
  const size_t mask = slots_.size() - 1;
  size_t at = HashText(text) & mask;
  for (; slots_[at] != kEmpty; at = (at + 1) & mask) {
    if (At(slots_[at]) == text) return slots_[at];
  }
  if (size() == kMaxTexts) throw std::length_error("a node type of more than 2^31 - 1 text ids");
  const int32_t number = static_cast<int32_t>(size());
  slots_[at] = number;
  if (!text.empty()) std::memcpy(bytes_.Extend(text.size()), text.data(), text.size());
  offsets_.Push(static_cast<int64_t>(bytes_.size()));
  if (size() * 3 > slots_.size() * 2) Resize(slots_.size() * 2);
  return number;
}

std::vector<int64_t> TextIndex::Sort() {
  std::vector<int32_t> order(size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [this](int32_t a, int32_t b) { return At(a) < At(b); });
  std::vector<int64_t> numbers(size());
  Buffer<uint8_t> bytes;
  Buffer<int64_t> offsets;
  bytes.Reserve(bytes_.size());
  offsets.Reserve(offsets_.size());
  offsets.Push(0);
  for (size_t i = 0; i < order.size(); ++i) {
    const std::string_view text = At(order[i]);
    numbers[order[i]] = static_cast<int64_t>(i);
    if (!text.empty()) std::memcpy(bytes.Extend(text.size()), text.data(), text.size());
    offsets.Push(static_cast<int64_t>(bytes.size()));
  }
  bytes_ = std::move(bytes);
  offsets_ = std::move(offsets);
  Resize(slots_.size());
  return numbers;
}

void TextIndex::Resize(size_t num_slots) {
  slots_.assign(num_slots, kEmpty);
  const size_t mask = num_slots - 1;
  for (size_t i = 0; i < size(); ++i) {
    size_t at = HashText(At(i)) & mask;
    while (slots_[at] != kEmpty) at = (at + 1) & mask;
    slots_[at] = static_cast<int32_t>(i);
  }
}

}  // namespace gigl
