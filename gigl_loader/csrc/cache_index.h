// Which rows of one type lie in which slot of a cache, and which of them make room for the rows of a window.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "shared_slots.h"

namespace gigl {

void* AllocateHuge(size_t nbytes);

// Allocates large arrays in huge pages, where the kernel has them: random reads then miss the TLB less often, which took
// a fifth of the time of lookups among 4 M slots.
template <typename T>
struct HugePageAllocator {
  using value_type = T;
  T* allocate(size_t count) { return static_cast<T*>(AllocateHuge(count * sizeof(T))); }
  void deallocate(T* memory, size_t) { std::free(memory); }
  bool operator==(const HugePageAllocator&) const = default;
};

// Slots of the rows of a window of batches.
struct WindowPlan {
  int32_t number;
  std::vector<int64_t> missing;        // rows to read into slots: ascending, distinct
  std::vector<int64_t> missing_slots;  // where each of them goes: ascending
};

class RowsWithoutSlot;

// Numbers rows with the slots of a cache. Replacement follows the known future: of the rows that no window needs, those
// go whose next use is farthest (Belady, "A study of replacement algorithms", 1966); of equal ones those with the lower
// count, then those planned least recently, then those in lower slots. It depends on nothing else.
//
// A window is pinned from Plan to Release. Its rows cannot be replaced while it or an earlier window is pinned.
//
// Where slots are published, other ranks copy rows from them, and this rank from theirs (shared_slots.h). Rows that a peer
// has take no slot. Rows that a peer keeps as well go before all others; rows that peers are about to copy go last.
//
// Takes 22 bytes a slot, 8 more for each row that a pinned window has to read, and a byte for each row counted. One
// thread at a time; the counters alone may be read by others.
class CacheIndex {
 public:
  static constexpr int64_t kMaxSlots = INT32_MAX;
  static constexpr int64_t kMaxAhead = 1 << 23;


  // `num_rows` > 0 keeps a count for each row below it; others are refused then. `published` is zeros, of the right
  // sizes for `num_slots`, or nothing.
  CacheIndex(int64_t num_slots, int64_t num_rows, const PublishedSlots& published = {});

  // Whether every row is one that the cache may hold.
  bool Accepts(std::span<const int64_t> rows) const;

  // Plans the next window. `batches` are its rows in order, `ahead` those of later batches, as far as they are known,
  // at most kMaxAhead. Writes the slot of each row of batch b to slots[b]. Returns nothing, and changes nothing but
  // `slots`, where the rows that are missing exceed the free slots and those that are not pinned.
  //
  // `partial`: those rows get slots then whose next use comes before that of rows in the cache (of equal ones, those
  // with the higher count). Others have none, -1 in `slots`. Nor have rows that are missing and that `peers` have.
  std::optional<WindowPlan> Plan(std::span<const std::span<const int64_t>> batches,
                                 std::span<const std::span<const int64_t>> ahead, std::span<int64_t* const> slots,
                                 bool partial, std::span<const PeerSlots* const> peers = {});

  // Whether Plan has slots for all rows of a window, without `partial`.
  bool Fits(std::span<const std::span<const int64_t>> batches, std::span<const PeerSlots* const> peers);

  // Lets peers copy the rows that were missing in a window: they have been read. False where it is not pinned.
  bool Publish(int64_t window);

  // Ends a window. False where it is not pinned.
  bool Release(int64_t window);

  // Ends a window whose missing rows were not read, and later ones that are pinned, as these count on its rows: what
  // they were to read leaves the cache. False where the window is not pinned.
  bool Forget(int64_t window);

  // Adds 1 to the count of each row, up to 255. Counts are halved when they come to 32 a row on average, so that they
  // follow what is wanted (Einziger et al., "TinyLFU", 2017).
  void Count(std::span<const int64_t> rows);
  void Preset(std::span<const uint8_t> counts);

  int64_t num_rows() const { return static_cast<int64_t>(counts_.size()); }
  int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }
  int64_t num_used() const { return num_used_; }
  int64_t num_pinned() const { return num_pinned_; }  // slots
  int64_t hits() const { return hits_; }              // rows of batches, repeated ones too, that needed no read
  int64_t evicted() const { return evicted_; }
  size_t nbytes() const;

 private:
  struct Slot {
    int64_t row;    // -1: free
    int32_t last;   // window that wanted it last
    uint32_t rank;  // while a window is planned: who goes first. Next use (0: none is known) << 8 | count
  };
  struct Window {
    bool pinned;
    int64_t num_slots;             // slots that no later window wants
    std::vector<int64_t> missing;  // slots
  };
  struct Wanted {
    int32_t slot;
    int32_t last;  // before this window
  };

  struct Lookup {
    std::vector<int64_t> missing;  // ascending, distinct
    int64_t num_wanted;            // rows of batches
    int64_t num_evictable;         // slots that neither this window wants nor one before it
    int64_t num_free;              // of the missing rows, those that take a free slot
    bool fits() const { return static_cast<int64_t>(missing.size()) - num_free <= num_evictable; }
  };

  size_t Home(uint64_t hash) const { return PlaceOf(hash, table_.size()); }
  uint32_t Tag(uint64_t hash) const { return static_cast<uint32_t>(hash) & ~slot_mask_; }
  size_t Next(size_t at) const { return at + 1 == table_.size() ? 0 : at + 1; }
  int64_t SlotOf(uint32_t entry) const { return static_cast<int64_t>(entry & slot_mask_) - 1; }
  bool Evictable(const Slot& slot) const { return slot.row >= 0 && slot.last < first_; }

  Lookup LookUp(std::span<const std::span<const int64_t>> batches, std::span<int64_t* const> slots,
                std::span<const PeerSlots* const> peers);
  void UndoLookup();
  void Find(std::span<const int64_t> rows, int64_t* found) const;
  void Insert(std::span<const int64_t> slots);
  void Remove(std::span<const int64_t> slots);
  void FindMissing(std::span<const int64_t> rows, int64_t* slots) const;
  void Enter(size_t at, uint32_t entry) { std::atomic_ref(table_[at]).store(entry, std::memory_order_relaxed); }
  int64_t TakeDoubled(int64_t count, std::span<const PeerSlots* const> peers);
  int64_t RankMarked(uint32_t rank);
  std::vector<int64_t> Victims(std::span<const std::span<const int64_t>> ahead, int64_t num_evictable, int64_t count,
                               RowsWithoutSlot& rivals, std::span<const PeerSlots* const> peers);
  std::vector<int64_t> RankByNextUse(std::span<const std::span<const int64_t>> ahead, int64_t num_evictable,
                                     int64_t count, RowsWithoutSlot& rivals);
  std::vector<int64_t> RankByCount(uint32_t rank, RowsWithoutSlot& rivals);
  Window& At(int32_t window) { return windows_[static_cast<size_t>(window - first_)]; }
  bool IsPinned(int64_t window) const;
  void DropEnded();

  std::vector<Slot, HugePageAllocator<Slot>> slots_;
  std::vector<uint32_t, HugePageAllocator<uint32_t>> own_table_;
  std::span<uint32_t> table_;  // linear probing: slot + 1 in the low bits, bits of the hash above; 0: empty
  PublishedSlots published_;
  int64_t next_doubled_ = 0;  // slot whose row is next looked for in the slots of peers
  uint32_t slot_mask_;
  std::vector<uint8_t> counts_;
  int64_t sum_of_counts_ = 0;
  std::deque<Window> windows_;  // from the oldest one that is pinned
  int32_t first_ = 0;           // its number
  std::vector<Wanted> wanted_;  // slots of the window that is planned
  std::atomic<int64_t> num_used_ = 0, num_pinned_ = 0, hits_ = 0, evicted_ = 0;
};

}  // namespace gigl
