// Which nodes of one type a batch holds, and the local index of each.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <variant>
#include <vector>

#include "buffer.h"
#include "stop.h"

namespace gigl {

// Where a lookup in a table begins, whatever the width of its keys: to fetch entries ahead of InsertAll.
struct TableLines {
  const void* entries;
  int shift;       // of a hash, to its bucket
  int entry_bits;  // an entry has 1 << entry_bits bytes

  static uint64_t Hash(uint64_t key) { return key * 0x9E3779B97F4A7C15u; }

  void Prefetch(int64_t position) const {
    const uint64_t bucket = Hash(static_cast<uint64_t>(position)) >> shift;
    __builtin_prefetch(static_cast<const char*>(entries) + (bucket << entry_bits), 1, 3);
  }
};

// A NodeTable whose keys have one width: an open-addressing table with linear probing. An entry is one 64-bit word, key
// and local index side by side, for narrow keys (eight entries a cache line, so a lookup costs one miss), else two.
template <typename Key>
class KeyedTable {
 public:
  KeyedTable() : entries_(kMinCapacity, kEmpty) {}

  // Valid until the next insertion.
  TableLines lines() const { return {entries_.data(), shift_, std::countr_zero(sizeof(Entry))}; }

  // Writes the local index of each position; new ones get the next indices. Throws Stopped; then clear the table.
  void InsertAll(std::span<const int64_t> positions, int32_t* locals) {
    for (; positions.size() > kMaxBlock; positions = positions.subspan(kMaxBlock), locals += kMaxBlock) {
      InsertBlock(positions.first(kMaxBlock), locals);
      CheckStop(kMaxBlock);
    }
    InsertBlock(positions, locals);
  }

  // The local index of a position, -1 where it has none.
  int32_t LocalOf(int64_t position) const {
    const Key key = static_cast<Key>(position);
    size_t at = Bucket(key);
    while (entries_[at].local >= 0 && entries_[at].key != key) at = (at + 1) & mask_;
    return entries_[at].local;
  }

  std::span<const int64_t> nodes() const { return nodes_.view(); }
  size_t nbytes() const { return entries_.capacity() * sizeof(Entry) + nodes_.nbytes(); }

  void Clear() {
    if (nodes_.size() * 8 > entries_.size()) {
      std::fill(entries_.begin(), entries_.end(), kEmpty);
    } else {
      // Few nodes in a large table: empty their entries alone. Backwards, because what a node's
      // lookup passes over was inserted before it and must still be there.
      for (size_t i = nodes_.size(); i-- > 0;) entries_[Find(static_cast<Key>(nodes_[i]))] = kEmpty;
    }
    nodes_.Clear();
  }

 private:
  struct Entry {
    Key key;
    int32_t local;
  };
  static constexpr Entry kEmpty{0, -1};
  static constexpr size_t kMinCapacity = 1024;
  static constexpr size_t kMaxBlock = 1 << 14;

  // Whether a node is new is a coin toss, so both outcomes take the same path: a mispredicted branch
  // would cost more than the stores that it saves.
  void InsertBlock(std::span<const int64_t> positions, int32_t* locals) {
    while ((nodes_.size() + positions.size()) * 2 > entries_.size()) Grow();
    size_t size = nodes_.size();
    int64_t* const nodes = nodes_.Extend(positions.size()) - size;
    Entry* const entries = entries_.data();
    for (size_t i = 0; i < positions.size(); ++i) {
      const Key key = static_cast<Key>(positions[i]);
      size_t at = Bucket(key);
      Entry entry = entries[at];
      while (entry.local >= 0 && entry.key != key) {
        at = (at + 1) & mask_;
        entry = entries[at];
      }
      const bool is_new = entry.local < 0;
      locals[i] = is_new ? static_cast<int32_t>(size) : entry.local;
      entries[at] = {key, locals[i]};
      nodes[size] = positions[i];
      size += is_new;
    }
    nodes_.Truncate(size);
    nodes_.PrefetchEnd(2 * positions.size());
  }

  size_t Bucket(Key key) const {
    return static_cast<size_t>(TableLines::Hash(key) >> shift_);
  }

  size_t Find(Key key) const {
    size_t at = Bucket(key);
    while (entries_[at].key != key || entries_[at].local < 0) at = (at + 1) & mask_;
    return at;
  }

  void Grow() {
    if (nodes_.size() > (size_t{1} << 30)) throw std::length_error("a batch of more than 2^30 nodes of one type");
    entries_.assign(entries_.size() * 2, kEmpty);
    mask_ = entries_.size() - 1;
    --shift_;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      // What is thrown leaves a table that Clear fills whole, as its nodes are over an eighth of it.
      if (i % 4096 == 4095) CheckStop(4096);
      const Key key = static_cast<Key>(nodes_[i]);
      size_t at = Bucket(key);
      while (entries_[at].local >= 0) at = (at + 1) & mask_;
      entries_[at] = {key, static_cast<int32_t>(i)};
    }
  }

  std::vector<Entry> entries_;
  size_t mask_ = kMinCapacity - 1;
  int shift_ = 64 - std::countr_zero(kMinCapacity);
  Buffer<int64_t> nodes_;
};

// Numbers positions in the order in which they are first seen. Reused from batch to batch.
class NodeTable {
 public:
  // `wide`: positions may be 2^31 and more.
  explicit NodeTable(bool wide = false) {
    if (wide) table_.emplace<KeyedTable<uint64_t>>();
  }

  // Writes the local index of each position; new ones get the next indices. Throws Stopped; then clear the table.
  void InsertAll(std::span<const int64_t> positions, int32_t* locals) {
    std::visit([&](auto& table) { table.InsertAll(positions, locals); }, table_);
  }

  // The local index of a position, -1 where it has none.
  int32_t LocalOf(int64_t position) const {
    return std::visit([=](const auto& table) { return table.LocalOf(position); }, table_);
  }

  void Clear() {
    std::visit([](auto& table) { table.Clear(); }, table_);
  }

  // Valid until the next insertion.
  TableLines lines() const {
    return std::visit([](const auto& table) { return table.lines(); }, table_);
  }
  std::span<const int64_t> nodes() const {
    return std::visit([](const auto& table) { return table.nodes(); }, table_);
  }
  size_t nbytes() const {
    return std::visit([](const auto& table) { return table.nbytes(); }, table_);
  }

 private:
  std::variant<KeyedTable<uint32_t>, KeyedTable<uint64_t>> table_;
};

}  // namespace gigl
