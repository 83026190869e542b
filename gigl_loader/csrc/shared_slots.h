// The slots of a rank's cache, as its process publishes them to the other ranks of the host, which copy rows from there.
//
// One process, the owner, writes everything but the marks, which only tell it what to keep. Readers lock nothing and wait for
// nothing, and the owner waits for no reader: a process that is killed anywhere leaves memory that the others can still read.
//
// A slot is read as under a sequence lock (Lameter, "Effective synchronization on Linux/NUMA systems", 2005; Boehm, "Can
// seqlocks get along with programming language memory models?", 2012). Its version is odd from the time when its row is
// replaced until the new row has been written:
//
//   owner   version = odd, relaxed; full fence (A); row number and bytes; version = even, release (B)
//   reader  version, acquire (C); row number and bytes, relaxed; acquire fence (D); version, relaxed, once more
//
// Where both versions of a reader are the same even number, the bytes are those of the row. C reads what B wrote, or a
// later store: all writes before B happen before the reads. If a read saw a byte that was written for a later row, that
// write came after A, and D follows the read: the second version is then not older than the odd one, and differs. Versions
// have 64 bits and never repeat. The fence A is a full one because rows may be written past the caches (gather.cc), by
// stores that a release fence of x86 need not hold back.
//
// A killed owner leaves slots with odd versions, which are never read. Rows are written by the kernel (recv) and by other
// threads of the owner, which it has joined before B: these writes cannot be atomic in the language. What the argument
// takes from them is that they lie between A and B in the order of the owner's stores, and that a read that overlaps one
// of them has no effect but bytes that are thrown away.
//
// The table has no version. It is read with relaxed loads while the owner moves entries: a lookup may miss a row that is
// there, or come to a slot that has another row, whose number tells.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gigl {

// What another process may write. C++20 has no atomic_ref of what is const.
template <typename T>
T Load(const T& value, std::memory_order order = std::memory_order_relaxed) {
  return std::atomic_ref(const_cast<T&>(value)).load(order);
}

// Every bit of a row reaches the high bits, which choose the place in the table, and the low ones, the tag.
uint64_t HashRow(int64_t row);

// Scales the upper half of a hash to a place in a table of this size.
inline size_t PlaceOf(uint64_t hash, size_t size) { return static_cast<size_t>(((hash >> 32) * size) >> 32); }

// Bits of a table entry that hold slot + 1. The others hold the tag.
uint32_t SlotMask(size_t num_slots);

// Entries of the table of so many slots.
inline size_t TableSize(size_t num_slots) { return num_slots + num_slots / 2 + 2; }

struct SlotHead {
  int64_t row;      // -1: none
  int64_t version;  // odd: the row is not there yet
};

// Memory of the owner. Empty where the cache is not shared.
struct PublishedSlots {
  std::span<uint32_t> table;         // TableSize entries
  std::span<SlotHead> heads;         // of each slot
  std::span<const uint32_t> marks;   // of each slot: until when a reader needs its row, on the clock; 0: no reader does
  int64_t* clock = nullptr;          // batches that the owner has planned

  void Begin(size_t slot, int64_t row) const {
    std::atomic_ref version(heads[slot].version);
    version.store(version.load(std::memory_order_relaxed) | 1, std::memory_order_relaxed);
    std::atomic_ref(heads[slot].row).store(row, std::memory_order_relaxed);
  }
  void Publish(size_t slot) const {
    std::atomic_ref version(heads[slot].version);
    const int64_t odd = version.load(std::memory_order_relaxed) | 1;
    version.store(odd + 1, std::memory_order_release);
  }
};

// Slots of another rank, for readers. Whatever its memory holds, nothing outside of it is read.
struct PeerSlots {
  // A column: uint8 [slots, row_bytes].
  struct Column {
    const std::byte* rows;
    size_t row_bytes;
  };
  // Where rows of a column go: uint8 [num_rows, row_bytes].
  struct Target {
    std::byte* rows;
    size_t num_rows;
  };

  std::span<const uint32_t> table;
  std::span<const SlotHead> heads;
  std::span<uint32_t> marks;
  const int64_t* clock;
  std::vector<Column> columns;
  bool first = false;  // of two ranks that hold a row, the other one may drop it: see Keeps

  // Sets found[i] where the slots have row i, or are to have it once it is read, and marks the slot for as long as the owner
  // takes for so many batches.
  void FindAny(std::span<const int64_t> rows, size_t batches, std::span<uint8_t> found) const;

  // Sets found[i] where the slots have row i, and this rank rather than the other is to keep it.
  void FindKept(std::span<const int64_t> rows, std::span<uint8_t> found) const;

  // Copies the rows i that the slots have, and that are not yet copied[i], to places[i] of each target (i without
  // places), and sets copied[i]. Targets of rows that are not copied may hold anything then. False, before anything is
  // copied, where a place lies outside.
  bool Copy(std::span<const int64_t> rows, std::span<const int64_t> places, std::span<const Target> targets,
            std::span<uint8_t> copied) const;

 private:
  template <typename Each>
  void ForEachFound(std::span<const int64_t> rows, std::span<const uint8_t> done, Each each) const;
};

}  // namespace gigl
