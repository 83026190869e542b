#include "shared_slots.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace gigl {
namespace {

constexpr size_t kBlock = 256;      // lookups whose cache misses overlap
constexpr size_t kMostProbes = 128;  // of a table that its owner changes meanwhile, and in which no end may be met
constexpr size_t kLine = 64;
constexpr size_t kPrefetched = 4;  // rows fetched ahead of the copy

// Copies bytes that another process may write meanwhile, by words where they are aligned.
void CopyRelaxed(std::byte* to, const std::byte* from, size_t nbytes) {
  const auto byte = [&] {
    *to++ = Load(*from++);
    --nbytes;
  };
  while (nbytes > 0 && reinterpret_cast<uintptr_t>(from) % sizeof(uint64_t) != 0) byte();
  for (; nbytes >= sizeof(uint64_t); nbytes -= sizeof(uint64_t)) {
    const uint64_t word = Load(*reinterpret_cast<const uint64_t*>(from));
    std::memcpy(to, &word, sizeof word);
    to += sizeof word;
    from += sizeof word;
  }
  while (nbytes > 0) byte();
}

}  // namespace

uint64_t HashRow(int64_t row) {
  uint64_t hash = static_cast<uint64_t>(row);
  hash = (hash ^ (hash >> 32)) * 0x9E3779B97F4A7C15u;
  hash = (hash ^ (hash >> 29)) * 0xD6E8FEB86659FD93u;
  return hash ^ (hash >> 32);
}

uint32_t SlotMask(size_t num_slots) {
  return (uint32_t{1} << std::bit_width(static_cast<uint32_t>(num_slots))) - 1;
}

// Calls each(i, slot) for the slot that is named by row i, where there is one and not done[i].
template <typename Each>
void PeerSlots::ForEachFound(std::span<const int64_t> rows, std::span<const uint8_t> done, Each each) const {
  const uint32_t mask = SlotMask(heads.size());
  std::array<size_t, kBlock> at;
  std::array<uint32_t, kBlock> tags, entries;
  std::array<size_t, kBlock> probes;
  const auto next = [this](size_t place) { return place + 1 == table.size() ? 0 : place + 1; };
  // Goes on to the entry with the tag of the row, or to an empty one. Returns 0 there.
  const auto seek = [&](size_t i) {
    uint32_t entry;
    while ((entry = Load(table[at[i]])) != 0 && (entry & ~mask) != tags[i]) {
      if (++probes[i] == kMostProbes) return uint32_t{0};
      at[i] = next(at[i]);
    }
    return (entry & mask) - 1 < heads.size() ? entry : 0;  // A damaged entry ends the lookup.
  };
  for (size_t begin = 0; begin < rows.size(); begin += kBlock) {
    const std::span<const int64_t> block = rows.subspan(begin, std::min(kBlock, rows.size() - begin));
    for (size_t i = 0; i < block.size(); ++i) {
      const uint64_t hash = HashRow(block[i]);
      at[i] = PlaceOf(hash, table.size());
      tags[i] = static_cast<uint32_t>(hash) & ~mask;
      probes[i] = 0;
      __builtin_prefetch(&table[at[i]]);
    }
    for (size_t i = 0; i < block.size(); ++i) {
      entries[i] = done[begin + i] ? 0 : seek(i);
      if (entries[i] != 0) __builtin_prefetch(&heads[(entries[i] & mask) - 1]);
    }
    for (size_t i = 0; i < block.size(); ++i) {
      uint32_t entry = entries[i];
      while (entry != 0 && Load(heads[(entry & mask) - 1].row) != block[i]) {
        at[i] = next(at[i]);
        entry = ++probes[i] < kMostProbes ? seek(i) : 0;
      }
      if (entry != 0) each(begin + i, static_cast<size_t>((entry & mask) - 1));
    }
  }
}

void PeerSlots::FindAny(std::span<const int64_t> rows, size_t batches, std::span<uint8_t> found) const {
  const uint32_t until = static_cast<uint32_t>(Load(*clock)) + static_cast<uint32_t>(batches);
  ForEachFound(rows, found, [&](size_t i, size_t slot) {
    found[i] = 1;
    std::atomic_ref mark(marks[slot]);
    const uint32_t before = mark.load(std::memory_order_relaxed);
    if (before == 0 || static_cast<int32_t>(until - before) > 0) mark.store(until, std::memory_order_relaxed);
  });
}

void PeerSlots::FindKept(std::span<const int64_t> rows, std::span<uint8_t> found) const {
  ForEachFound(rows, found, [&](size_t i, size_t slot) {
    const bool is_first = (HashRow(rows[i]) & 1) != 0;  // Half of the rows stay with either.
    found[i] = is_first == first && Load(heads[slot].version) % 2 == 0;
  });
}

bool PeerSlots::Copy(std::span<const int64_t> rows, std::span<const int64_t> places, std::span<const Target> targets,
                     std::span<uint8_t> copied) const {
  size_t room = SIZE_MAX;
  for (const Target& each : targets) room = std::min(room, each.num_rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<uint64_t>(places.empty() ? static_cast<int64_t>(i) : places[i]) >= room) return false;
  }
  std::vector<std::pair<size_t, size_t>> jobs;
  jobs.reserve(rows.size());
  ForEachFound(rows, copied, [&](size_t i, size_t slot) { jobs.emplace_back(i, slot); });
  for (size_t job = 0; job < jobs.size(); ++job) {
    if (job + kPrefetched < jobs.size()) {
      for (const Column& column : columns) {
        const std::byte* const row = column.rows + jobs[job + kPrefetched].second * column.row_bytes;
        for (size_t at = 0; at < column.row_bytes; at += kLine) __builtin_prefetch(row + at);
      }
    }
    const auto [i, slot] = jobs[job];
    const int64_t version = Load(heads[slot].version, std::memory_order_acquire);
    if (version % 2 != 0 || Load(heads[slot].row) != rows[i]) continue;
    const size_t place = places.empty() ? i : static_cast<size_t>(places[i]);
    for (size_t c = 0; c < columns.size(); ++c) {
      const size_t size = columns[c].row_bytes;
      CopyRelaxed(targets[c].rows + place * size, columns[c].rows + slot * size, size);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    copied[i] = Load(heads[slot].version) == version;
  }
  return true;
}

}  // namespace gigl
