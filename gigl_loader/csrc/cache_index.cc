#include "cache_index.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace gigl {
namespace {

constexpr size_t kBlock = 256;  // lookups whose cache misses overlap
constexpr size_t kAhead = 16;   // counts between the fetch of one and its use
constexpr int kDigitBits = 11;
constexpr size_t kDigits = size_t{1} << kDigitBits;
constexpr int64_t kMeanCount = 32;
constexpr size_t kSlack = 2;  // batches by which a rank may lag behind another
constexpr uint32_t kDoubled = UINT32_MAX;  // rank of a slot whose row a peer keeps as well

std::span<const int64_t> BlockOf(std::span<const int64_t> values, size_t begin) {
  return values.subspan(begin, std::min(kBlock, values.size() - begin));
}

// Sorts rows that are not negative, least significant digit first. A digit that all rows share costs nothing: the rows
// of edges have a partition far above them.
void RadixSort(std::vector<int64_t>& rows) {
  if (rows.size() < kDigits) return std::sort(rows.begin(), rows.end());
  uint64_t differing = 0;
  for (const int64_t row : rows) differing |= static_cast<uint64_t>(row ^ rows[0]);
  std::vector<int64_t> sorted(rows.size());
  for (int shift = 0; shift < 64; shift += kDigitBits) {
    if (((differing >> shift) & (kDigits - 1)) == 0) continue;
    const auto digit = [shift](int64_t row) { return (static_cast<uint64_t>(row) >> shift) & (kDigits - 1); };
    std::array<size_t, kDigits> ends{};
    for (const int64_t row : rows) ++ends[digit(row)];
    size_t begin = 0;
    for (size_t& end : ends) begin += std::exchange(end, begin);
    for (const int64_t row : rows) sorted[ends[digit(row)]++] = row;
    rows.swap(sorted);
  }
}

// Leaves out the rows that peers have, and will be asked for once the batches before this window and in it are complete.
void DropFound(std::vector<int64_t>& rows, size_t batches, std::span<const PeerSlots* const> peers) {
  if (peers.empty()) return;
  std::vector<uint8_t> found(rows.size());
  for (const PeerSlots* const peer : peers) peer->FindAny(rows, 2 * batches + kSlack, found);
  size_t kept = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (found[i] == 0) rows[kept++] = rows[i];
  }
  rows.resize(kept);
}

// Finds in which class the item number `rank` (from 1) lies, if items are ordered by class, and leaves in `rank` its
// number within the class.
size_t ClassOf(const std::vector<int64_t>& sizes, int64_t& rank) {
  for (size_t at = 0; at < sizes.size(); ++at) {
    if (rank <= sizes[at]) return at;
    rank -= sizes[at];
  }
  throw std::logic_error("fewer rows can leave the cache than were counted");
}

}  // namespace

// Rows of a window that compete for slots with rows in the cache.
class RowsWithoutSlot {
 public:
  // `rows` are distinct, and stay where they are.
  explicit RowsWithoutSlot(std::span<const int64_t> rows) : rows_(rows), ranks_(rows.size()), table_(2 * rows.size()) {
    for (size_t i = 0; i < rows.size(); ++i) {
      size_t at = PlaceOf(HashRow(rows[i]), table_.size());
      while (table_[at] != 0) at = Next(at);
      table_[at] = static_cast<uint32_t>(i + 1);
    }
  }

  size_t size() const { return rows_.size(); }

  // Gives a rank to those of a block of rows that have none yet. Returns how many.
  int64_t Rank(std::span<const int64_t> block, uint32_t rank) {
    if (rows_.empty()) return 0;
    std::array<size_t, kBlock> at;
    for (size_t i = 0; i < block.size(); ++i) {
      at[i] = PlaceOf(HashRow(block[i]), table_.size());
      __builtin_prefetch(&table_[at[i]]);
    }
    int64_t count = 0;
    for (size_t i = 0; i < block.size(); ++i) {
      size_t place = at[i];
      while (table_[place] != 0 && rows_[table_[place] - 1] != block[i]) place = Next(place);
      if (table_[place] == 0 || ranks_[table_[place] - 1] != 0) continue;
      ranks_[table_[place] - 1] = rank;
      ++count;
    }
    return count;
  }

  // Adds their counts to the ranks of those with this one, and to the numbers of rows with each count.
  void RankByCount(std::span<const uint8_t> counts, uint32_t rank, std::vector<int64_t>& sizes) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (i + kAhead < rows_.size()) __builtin_prefetch(&counts[rows_[i + kAhead]]);
      if (ranks_[i] != rank) continue;
      ranks_[i] |= counts[rows_[i]];
      ++sizes[counts[rows_[i]]];
    }
  }

  // Leaves out the rows with a lower rank, and of those with this one the first `left`, which it counts down.
  void Drop(uint32_t rank, int64_t& left) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (ranks_[i] > rank || (ranks_[i] == rank && left == 0)) {
        chosen_.push_back(rows_[i]);
      } else if (ranks_[i] == rank) {
        --left;
      }
    }
  }
  std::vector<int64_t> TakeChosen() { return std::move(chosen_); }

 private:
  size_t Next(size_t at) const { return at + 1 == table_.size() ? 0 : at + 1; }

  std::span<const int64_t> rows_;
  std::vector<int64_t> chosen_;
  std::vector<uint32_t> ranks_;  // as those of slots
  std::vector<uint32_t> table_;  // linear probing: which row, + 1; 0: empty
};

void* AllocateHuge(size_t nbytes) {
  constexpr size_t kPage = size_t{1} << 21;
  const size_t alignment = nbytes < kPage ? alignof(std::max_align_t) : kPage;
  void* memory = std::aligned_alloc(alignment, (nbytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (nbytes >= kPage) madvise(memory, nbytes, MADV_HUGEPAGE);
#endif
  return memory;
}

CacheIndex::CacheIndex(int64_t num_slots, int64_t num_rows, const PublishedSlots& published)
    : slots_(static_cast<size_t>(num_slots), Slot{-1, -1, 0}),
      own_table_(published.table.empty() ? TableSize(static_cast<size_t>(num_slots)) : 0),
      table_(published.table.empty() ? std::span(own_table_) : published.table),
      published_(published),
      slot_mask_(SlotMask(static_cast<size_t>(num_slots))),
      counts_(static_cast<size_t>(num_rows)) {
  for (SlotHead& head : published_.heads) head = {-1, 1};
  if (published_.clock != nullptr) *published_.clock = 1;
}

bool CacheIndex::Accepts(std::span<const int64_t> rows) const {
  const uint64_t end = counts_.empty() ? uint64_t{1} << 63 : counts_.size();
  bool inside = true;
  for (const int64_t row : rows) inside &= static_cast<uint64_t>(row) < end;
  return inside;
}

size_t CacheIndex::nbytes() const {
  return slots_.capacity() * sizeof(Slot) + table_.size() * sizeof(uint32_t) + counts_.capacity() +
         wanted_.capacity() * sizeof(Wanted);
}

// A lookup reads a place of the table, and a slot. Each of these steps runs over a block of rows, so that their cache
// misses overlap.
void CacheIndex::Find(std::span<const int64_t> rows, int64_t* found) const {
  std::array<size_t, kBlock> at;
  std::array<uint32_t, kBlock> tags;
  for (size_t begin = 0; begin < rows.size(); begin += kBlock) {
    const std::span<const int64_t> block = BlockOf(rows, begin);
    for (size_t i = 0; i < block.size(); ++i) {
      const uint64_t hash = HashRow(block[i]);
      at[i] = Home(hash);
      tags[i] = Tag(hash);
      __builtin_prefetch(&table_[at[i]]);
    }
    for (size_t i = 0; i < block.size(); ++i) {
      while (table_[at[i]] != 0 && (table_[at[i]] & ~slot_mask_) != tags[i]) at[i] = Next(at[i]);
      if (table_[at[i]] != 0) __builtin_prefetch(&slots_[SlotOf(table_[at[i]])], 1);
    }
    for (size_t i = 0; i < block.size(); ++i) {
      size_t place = at[i];
      while (table_[place] != 0 && slots_[SlotOf(table_[place])].row != block[i]) place = Next(place);
      found[begin + i] = SlotOf(table_[place]);
    }
  }
}

// Enters the rows of these slots.
void CacheIndex::Insert(std::span<const int64_t> slots) {
  std::array<uint64_t, kBlock> hashes;
  for (size_t begin = 0; begin < slots.size(); begin += kBlock) {
    const std::span<const int64_t> block = BlockOf(slots, begin);
    for (size_t i = 0; i < block.size(); ++i) {
      hashes[i] = HashRow(slots_[block[i]].row);
      __builtin_prefetch(&table_[Home(hashes[i])], 1);
    }
    for (size_t i = 0; i < block.size(); ++i) {
      size_t at = Home(hashes[i]);
      while (table_[at] != 0) at = Next(at);
      Enter(at, Tag(hashes[i]) | static_cast<uint32_t>(block[i] + 1));
    }
  }
  num_used_ += static_cast<int64_t>(slots.size());
}

// Frees these slots. What lies behind an entry moves into its place, unless a lookup would not pass there.
void CacheIndex::Remove(std::span<const int64_t> slots) {
  std::array<size_t, kBlock> homes;
  for (size_t begin = 0; begin < slots.size(); begin += kBlock) {
    const std::span<const int64_t> block = BlockOf(slots, begin);
    for (size_t i = 0; i < block.size(); ++i) {
      homes[i] = Home(HashRow(slots_[block[i]].row));
      __builtin_prefetch(&table_[homes[i]], 1);
    }
    for (size_t i = 0; i < block.size(); ++i) {
      size_t hole = homes[i];
      while (SlotOf(table_[hole]) != block[i]) hole = Next(hole);
      for (size_t at = Next(hole); table_[at] != 0; at = Next(at)) {
        const size_t home = Home(HashRow(slots_[SlotOf(table_[at])].row));
        const bool behind = hole <= at ? hole < home && home <= at : hole < home || home <= at;
        if (!behind) Enter(std::exchange(hole, at), table_[at]);
      }
      Enter(hole, 0);
    }
  }
  for (const int64_t slot : slots) slots_[slot].row = -1;
  num_used_ -= static_cast<int64_t>(slots.size());
}

// Writes the slots of the rows of a window, where they have some, and lets the window want them.
CacheIndex::Lookup CacheIndex::LookUp(std::span<const std::span<const int64_t>> batches, std::span<int64_t* const> slots,
                                      std::span<const PeerSlots* const> peers) {
  const int32_t number = first_ + static_cast<int32_t>(windows_.size());
  Lookup lookup{{}, 0, num_used_ - num_pinned_, 0};
  wanted_.clear();
  for (size_t b = 0; b < batches.size(); ++b) {
    lookup.num_wanted += static_cast<int64_t>(batches[b].size());
    for (size_t begin = 0; begin < batches[b].size(); begin += kBlock) {
      const std::span<const int64_t> block = BlockOf(batches[b], begin);
      int64_t* const found = slots[b] + begin;
      Find(block, found);
      for (size_t i = 0; i < block.size(); ++i) {
        if (found[i] < 0) {
          lookup.missing.push_back(block[i]);
        } else if (Slot& slot = slots_[found[i]]; slot.last != number) {
          lookup.num_evictable -= slot.last < first_;
          wanted_.push_back({static_cast<int32_t>(found[i]), slot.last});
          slot.last = number;
        }
      }
    }
  }
  RadixSort(lookup.missing);
  lookup.missing.erase(std::unique(lookup.missing.begin(), lookup.missing.end()), lookup.missing.end());
  DropFound(lookup.missing, batches.size(), peers);
  lookup.num_free = std::min(num_slots() - num_used_, static_cast<int64_t>(lookup.missing.size()));
  return lookup;
}

void CacheIndex::UndoLookup() {
  for (const auto& [slot, last] : wanted_) slots_[slot].last = last;
}

bool CacheIndex::Fits(std::span<const std::span<const int64_t>> batches, std::span<const PeerSlots* const> peers) {
  std::vector<std::vector<int64_t>> slots;
  std::vector<int64_t*> targets;
  for (const auto& rows : batches) targets.push_back(slots.emplace_back(rows.size()).data());
  const bool fits = LookUp(batches, targets, peers).fits();
  UndoLookup();
  return fits;
}

std::optional<WindowPlan> CacheIndex::Plan(std::span<const std::span<const int64_t>> batches,
                                           std::span<const std::span<const int64_t>> ahead,
                                           std::span<int64_t* const> slots, bool partial,
                                           std::span<const PeerSlots* const> peers) {
  WindowPlan plan{first_ + static_cast<int32_t>(windows_.size()), {}, {}};
  Lookup lookup = LookUp(batches, slots, peers);
  const bool fits = lookup.fits();
  if (!fits && !partial) {
    UndoLookup();
    return std::nullopt;
  }
  plan.missing = std::move(lookup.missing);
  const int64_t num_wanted = lookup.num_wanted, num_evictable = lookup.num_evictable, num_free = lookup.num_free;
  const int64_t num_missing = static_cast<int64_t>(plan.missing.size());

  RowsWithoutSlot rivals(fits ? std::span<const int64_t>() : plan.missing);
  const std::vector<int64_t> victims = Victims(ahead, num_evictable, num_missing - num_free, rivals, peers);
  if (!fits) plan.missing = rivals.TakeChosen();
  const int64_t num_read = static_cast<int64_t>(plan.missing.size()), num_victims = num_read - num_free;
  for (int64_t slot = 0; static_cast<int64_t>(plan.missing_slots.size()) < num_free; ++slot) {
    if (slots_[slot].row < 0) plan.missing_slots.push_back(slot);
  }
  plan.missing_slots.insert(plan.missing_slots.end(), victims.begin(), victims.end());
  std::inplace_merge(plan.missing_slots.begin(), plan.missing_slots.begin() + num_free, plan.missing_slots.end());

  Remove(victims);
  for (const auto& [slot, last] : wanted_) {
    if (last >= first_) --At(last).num_slots;
  }
  windows_.push_back({true, static_cast<int64_t>(wanted_.size()) + num_read, plan.missing_slots});
  num_pinned_ = num_used_ - (num_evictable - num_victims) + num_read;
  for (size_t i = 0; i < plan.missing.size(); ++i) slots_[plan.missing_slots[i]] = {plan.missing[i], plan.number, 0};
  if (!published_.heads.empty()) {
    for (size_t i = 0; i < plan.missing.size(); ++i) published_.Begin(plan.missing_slots[i], plan.missing[i]);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // Before the rows are written: see shared_slots.h.
  }
  if (published_.clock != nullptr) {
    const int64_t now = *published_.clock + static_cast<int64_t>(batches.size());
    std::atomic_ref(*published_.clock).store(now, std::memory_order_relaxed);
  }
  Insert(plan.missing_slots);
  for (size_t b = 0; b < batches.size(); ++b) FindMissing(batches[b], slots[b]);
  evicted_ += num_victims;
  hits_ += num_wanted - num_missing;
  return plan;
}

// Writes the slots of rows that had none.
void CacheIndex::FindMissing(std::span<const int64_t> rows, int64_t* slots) const {
  std::array<int64_t, kBlock> missing, found;
  for (size_t begin = 0; begin < rows.size(); begin += kBlock) {
    const size_t end = std::min(begin + kBlock, rows.size());
    size_t count = 0;
    for (size_t i = begin; i < end; ++i) {
      missing[count] = rows[i];
      count += slots[i] < 0;
    }
    Find({missing.data(), count}, found.data());
    count = 0;
    for (size_t i = begin; i < end; ++i) {
      if (slots[i] < 0) slots[i] = found[count++];
    }
  }
}

// The slots whose rows make room for others, ascending: `count` of them, of `num_evictable`, less the rivals that get no
// slot.
std::vector<int64_t> CacheIndex::Victims(std::span<const std::span<const int64_t>> ahead, int64_t num_evictable,
                                         int64_t count, RowsWithoutSlot& rivals,
                                         std::span<const PeerSlots* const> peers) {
  std::vector<int64_t> victims;
  if (count == 0) return victims;
  const int64_t doubled = peers.empty() ? 0 : TakeDoubled(count, peers);
  num_evictable -= doubled;
  // Rivals up to this rank and slots up to this rank and window go, `left` of the last.
  int64_t left = count - doubled;
  uint32_t rank = static_cast<uint32_t>(ClassOf(RankByNextUse(ahead, num_evictable, left, rivals), left)) << 8;
  if (!counts_.empty()) rank |= static_cast<uint32_t>(ClassOf(RankByCount(rank, rivals), left));
  rivals.Drop(rank, left);
  int32_t last = 0;
  for (int shift = first_ < 1 << 16 ? 0 : 16; shift >= 0; shift -= 16) {
    std::vector<int64_t> sizes(std::min(first_ >> shift, 0xFFFF) + 1);
    for (const Slot& slot : slots_) {
      if (!Evictable(slot) || slot.rank != rank || (shift == 0 && slot.last >> 16 != last >> 16)) continue;
      ++sizes[(slot.last >> shift) & 0xFFFF];
    }
    last |= static_cast<int32_t>(ClassOf(sizes, left) << shift);
  }
  victims.reserve(count);
  for (int64_t at = 0; at < num_slots(); ++at) {
    Slot& slot = slots_[at];
    if (!Evictable(slot)) continue;
    const auto order = std::pair(slot.rank, slot.last) <=> std::pair(rank, last);
    if (slot.rank == kDoubled || order < 0 || (order == 0 && left-- > 0)) victims.push_back(at);
    slot.rank = 0;
  }
  return victims;
}

// Chooses slots whose rows a peer keeps as well, among the next `count` slots. Returns how many.
int64_t CacheIndex::TakeDoubled(int64_t count, std::span<const PeerSlots* const> peers) {
  std::vector<int64_t> slots, rows;
  for (int64_t i = 0; i < std::min(count, num_slots()); ++i) {
    const int64_t slot = std::exchange(next_doubled_, next_doubled_ + 1 == num_slots() ? 0 : next_doubled_ + 1);
    if (!Evictable(slots_[slot])) continue;
    slots.push_back(slot);
    rows.push_back(slots_[slot].row);
  }
  std::vector<uint8_t> found(rows.size());
  for (const PeerSlots* const peer : peers) peer->FindKept(rows, found);
  int64_t taken = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (found[i] == 0) continue;
    slots_[slots[i]].rank = kDoubled;
    ++taken;
  }
  return taken;
}

// Gives this rank to slots that can be evicted, and whose rows peers are about to copy. Returns how many.
int64_t CacheIndex::RankMarked(uint32_t rank) {
  if (published_.heads.empty()) return 0;
  const uint32_t now = static_cast<uint32_t>(*published_.clock);
  int64_t marked = 0;
  for (size_t at = 0; at < slots_.size(); ++at) {
    const uint32_t mark = Load(published_.marks[at]);
    if (mark == 0 || static_cast<int32_t>(mark - now) < 0 || !Evictable(slots_[at]) || slots_[at].rank != 0) continue;
    slots_[at].rank = rank;
    ++marked;
  }
  return marked;
}

// Ranks slots that can be evicted by the next use of their rows: 0 without one, else the higher the sooner, in the
// upper 24 bits; and rivals in the same way. Returns how many have each. Looks ahead only until it knows `count` that go
// first.
std::vector<int64_t> CacheIndex::RankByNextUse(std::span<const std::span<const int64_t>> ahead, int64_t num_evictable,
                                               int64_t count, RowsWithoutSlot& rivals) {
  std::vector<int64_t> sizes(ahead.size() + 2);
  std::array<int64_t, kBlock> found;
  sizes.back() = RankMarked(static_cast<uint32_t>(ahead.size() + 1) << 8);
  sizes[0] = num_evictable + static_cast<int64_t>(rivals.size()) - sizes.back();
  for (size_t b = 0; b < ahead.size() && sizes[0] > count; ++b) {
    const size_t use = ahead.size() - b;
    for (size_t begin = 0; begin < ahead[b].size(); begin += kBlock) {
      const std::span<const int64_t> block = BlockOf(ahead[b], begin);
      Find(block, found.data());
      for (size_t i = 0; i < block.size(); ++i) {
        if (found[i] < 0 || slots_[found[i]].rank != 0 || !Evictable(slots_[found[i]])) continue;
        slots_[found[i]].rank = static_cast<uint32_t>(use) << 8;
        ++sizes[use];
      }
      sizes[use] += rivals.Rank(block, static_cast<uint32_t>(use) << 8);
    }
    sizes[0] -= sizes[use];
  }
  return sizes;
}

// Adds the counts of their rows to slots of this rank that can be evicted, and to rivals. Returns how many have each.
std::vector<int64_t> CacheIndex::RankByCount(uint32_t rank, RowsWithoutSlot& rivals) {
  std::vector<int64_t> sizes(256);
  for (size_t at = 0; at < slots_.size(); ++at) {
    if (at + kAhead < slots_.size() && slots_[at + kAhead].row >= 0) __builtin_prefetch(&counts_[slots_[at + kAhead].row]);
    Slot& slot = slots_[at];
    if (!Evictable(slot) || slot.rank != rank) continue;
    const uint8_t count = counts_[slot.row];
    slot.rank |= count;
    ++sizes[count];
  }
  rivals.RankByCount(counts_, rank, sizes);
  return sizes;
}

bool CacheIndex::IsPinned(int64_t window) const {
  const int64_t at = window - first_;
  return at >= 0 && at < static_cast<int64_t>(windows_.size()) && windows_[at].pinned;
}

bool CacheIndex::Publish(int64_t window) {
  if (!IsPinned(window)) return false;
  if (published_.heads.empty()) return true;
  for (const int64_t slot : At(static_cast<int32_t>(window)).missing) published_.Publish(static_cast<size_t>(slot));
  return true;
}

bool CacheIndex::Release(int64_t window) {
  if (!IsPinned(window)) return false;
  windows_[window - first_].pinned = false;
  DropEnded();
  return true;
}

bool CacheIndex::Forget(int64_t window) {
  if (!IsPinned(window)) return false;
  for (size_t at = window - first_; at < windows_.size(); ++at) {
    if (!windows_[at].pinned) continue;
    windows_[at].pinned = false;
    for (const int64_t slot : windows_[at].missing) --At(slots_[slot].last).num_slots;
    num_pinned_ -= static_cast<int64_t>(windows_[at].missing.size());
    Remove(windows_[at].missing);
    if (!published_.heads.empty()) {
      for (const int64_t slot : windows_[at].missing) published_.Begin(static_cast<size_t>(slot), -1);
    }
  }
  DropEnded();
  return true;
}

// Unpins rows that only windows wanted which ended, as all before them.
void CacheIndex::DropEnded() {
  for (; !windows_.empty() && !windows_.front().pinned; ++first_) {
    num_pinned_ -= windows_.front().num_slots;
    windows_.pop_front();
  }
}

void CacheIndex::Count(std::span<const int64_t> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) __builtin_prefetch(&counts_[rows[i + kAhead]], 1);
    uint8_t& count = counts_[rows[i]];
    const bool grows = count < UINT8_MAX;
    count += grows;
    sum_of_counts_ += grows;
  }
  while (sum_of_counts_ > kMeanCount * num_rows()) {
    for (uint8_t& count : counts_) count /= 2;
    sum_of_counts_ = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
  }
}

void CacheIndex::Preset(std::span<const uint8_t> counts) {
  std::copy(counts.begin(), counts.end(), counts_.begin());
  sum_of_counts_ = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
}

}  // namespace gigl
