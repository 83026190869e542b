// Ranks that copy rows from each other's slots, as threads: for ThreadSanitizer. `shared_slots_traffic [seconds]`
//
// Each thread plans windows, reads rows and copies those of the others. Exits with 1 where a row was not whole. Rows
// are written as relaxed atomics here: what the kernel writes in their place is not seen by the sanitizer either.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "../../gigl_loader/csrc/cache_index.h"

namespace gigl {
namespace {

constexpr size_t kRanks = 3, kSlots = 96, kWords = 24, kRows = 300, kBatch = 40;

struct Rank {
  std::vector<uint32_t> table = std::vector<uint32_t>(TableSize(kSlots)), marks = std::vector<uint32_t>(kSlots);
  std::vector<SlotHead> heads = std::vector<SlotHead>(kSlots);
  std::vector<uint64_t> words = std::vector<uint64_t>(kSlots * kWords);
  int64_t clock = 0;
  CacheIndex index{kSlots, 0, {table, heads, marks, &clock}};

  PeerSlots Seen(bool first) {
    return {table, heads, marks, &clock, {{reinterpret_cast<const std::byte*>(words.data()), kWords * sizeof(uint64_t)}}, first};
  }
  void Read(const WindowPlan& plan) {
    for (size_t i = 0; i < plan.missing.size(); ++i) {
      for (size_t w = 0; w < kWords; ++w) {
        const uint64_t word = static_cast<uint64_t>(plan.missing[i]) * kWords + w;
        std::atomic_ref(words[static_cast<size_t>(plan.missing_slots[i]) * kWords + w]).store(word, std::memory_order_relaxed);
      }
    }
    index.Publish(plan.number);
  }
};

struct Counts {
  std::atomic<uint64_t> copied = 0, missed = 0, wrong = 0;
};

// Copies rows that have no slot, and compares them.
void CopyAll(std::span<const PeerSlots* const> peers, std::span<const int64_t> rows, Counts& counts) {
  std::vector<uint64_t> out(rows.size() * kWords);
  std::vector<uint8_t> copied(rows.size());
  const PeerSlots::Target target{reinterpret_cast<std::byte*>(out.data()), rows.size()};
  for (const PeerSlots* const peer : peers) peer->Copy(rows, {}, {&target, 1}, copied);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (copied[i] == 0) {
      ++counts.missed;
      continue;
    }
    ++counts.copied;
    for (size_t w = 0; w < kWords; ++w) counts.wrong += out[i * kWords + w] != static_cast<uint64_t>(rows[i]) * kWords + w;
  }
}

void Run(std::vector<std::unique_ptr<Rank>>& ranks, size_t number, const std::atomic<bool>& stop, Counts& counts) {
  std::mt19937 dice(static_cast<unsigned>(number));
  std::vector<PeerSlots> seen;
  std::vector<const PeerSlots*> peers;
  for (size_t other = 0; other < kRanks; ++other) {
    if (other != number) seen.push_back(ranks[other]->Seen(other < number));
  }
  for (const PeerSlots& each : seen) peers.push_back(&each);
  Rank& rank = *ranks[number];
  while (!stop) {
    std::vector<int64_t> rows(kBatch), slots(kBatch);
    for (int64_t& row : rows) row = static_cast<int64_t>(dice() % kRows * (dice() % kRows) / kRows);
    const std::span<const int64_t> batch = rows;
    int64_t* const target = slots.data();
    const auto plan = rank.index.Plan({&batch, 1}, {}, {&target, 1}, true, peers);
    if (!plan) continue;
    if (dice() % 16 == 0) {
      rank.index.Forget(plan->number);
      continue;
    }
    rank.Read(*plan);
    std::vector<int64_t> lacking;
    for (size_t i = 0; i < kBatch; ++i) {
      if (slots[i] < 0) lacking.push_back(rows[i]);
    }
    CopyAll(peers, lacking, counts);
    rank.index.Release(plan->number);
  }
}

}  // namespace
}  // namespace gigl

int main(int count, char** arguments) {
  using namespace gigl;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (size_t i = 0; i < kRanks; ++i) ranks.push_back(std::make_unique<Rank>());
  Counts counts;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kRanks; ++i) threads.emplace_back([&, i] { Run(ranks, i, stop, counts); });
  std::this_thread::sleep_for(std::chrono::duration<double>(count > 1 ? std::atof(arguments[1]) : 5.0));
  stop = true;
  for (std::thread& each : threads) each.join();
  std::printf("%lu copied, %lu missed, %lu wrong\n", static_cast<unsigned long>(counts.copied),
              static_cast<unsigned long>(counts.missed), static_cast<unsigned long>(counts.wrong));
  return counts.wrong == 0 && counts.copied > 0 ? 0 : 1;
}
