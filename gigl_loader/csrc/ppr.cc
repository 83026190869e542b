#include "ppr.h"

#include <cmath>
#include <stdexcept>
#include <utility>

namespace gigl {
namespace {

// The largest float that is not above a score: what is returned stays a lower bound.
float RoundedDown(double score) {
  const float rounded = static_cast<float>(score);
  return static_cast<double>(rounded) > score ? std::nextafter(rounded, 0.0f) : rounded;
}

}  // namespace

PprNodes::PprNodes(std::vector<NodeTypePlan> states) : states_(std::move(states)), firsts_{0} {
  for (const NodeTypePlan& state : states_) firsts_.push_back(firsts_.back() + state.count);
}

void ForwardPush::Begin(int64_t key, const PprRule& rule) {
  // Numbers of the seed before are below the base, so that its slots are empty.
  base_ += static_cast<uint32_t>(entries_.size());
  entries_.Clear();
  changed_.Clear();
  round_ = 0;
  if (slots_.empty() || base_ > uint32_t{1} << 31) Rehash(std::max(slots_.size(), kMinSlots));
  Add(key, rule.alpha);
}

void ForwardPush::Reserve(int64_t count) {
  const size_t wanted = (entries_.size() + static_cast<size_t>(count)) * 2;
  if (wanted > size_t{1} << 31) throw BatchTooLarge("more than 2^30 nodes around one seed");
  if (wanted > slots_.size()) Rehash(std::bit_ceil(wanted));
}

void ForwardPush::Rehash(size_t num_slots) {
  slots_.assign(num_slots, {0, 0});
  shift_ = 64 - std::countr_zero(num_slots);
  base_ = 1;
  WorkCounter work;
  for (size_t entry = 0; entry < entries_.size(); ++entry) {
    work.Add(1);  // What is thrown leaves a table that is only emptied by the next Begin: see base_.
    const int64_t key = entries_[entry].key;
    size_t place = Bucket(key);
    while (slots_[place].number != 0) place = (place + 1) & (num_slots - 1);
    slots_[place] = {static_cast<uint32_t>(key), static_cast<uint32_t>(entry) + 1};
  }
}

void ForwardPush::Select(const PprNodes& nodes, const PprRule& rule, int64_t twin, std::vector<Buffer<PprNeighbor>>& kept) {
  const size_t most = static_cast<size_t>(rule.max_nodes);
  Entry* const entries = entries_.data();
  const int64_t count = static_cast<int64_t>(entries_.size());
  // Calls use(node type, state, position) for each entry that can be kept.
  const auto for_each = [&](auto use) {
    ForEachUnlessStopped(count, [&](int64_t i) {
      const int state = nodes.StateOf(entries[i].key);
      if (rule.states[state].kept && entries[i].key != twin) use(entries[i], state, rule.states[state].node_type);
    });
  };
  if (twin >= 0) {  // Entry 0 is the seed.
    ForEachUnlessStopped(count, [&](int64_t i) {
      if (entries[i].key == twin) entries[0].score += entries[i].score;
    });
  }
  const auto add = [&](const Entry& entry, int state, double score, Buffer<PprNeighbor>& to) {
    const int64_t position = entry.key - nodes.first(state);
    to.Push({position, nodes.IdOf(state, position), RoundedDown(score), entry.hop});
  };
  // Keeps the best of those from `begin` on.
  const auto keep = [&](Buffer<PprNeighbor>& ranked, size_t begin) {
    if (ranked.size() <= most) return;
    PprNeighbor* const data = ranked.data();
    const auto select = [&](auto order) { std::nth_element(data + begin, data + most, data + ranked.size(), order); };
    SortUnlessStopped(static_cast<int64_t>(ranked.size() - begin), IsBefore, select);
    ranked.Truncate(most);
  };
  for (Buffer<PprNeighbor>& each : kept) each.Clear();
  for_each([&](const Entry& entry, int state, int type) {
    if (entry.score > 0) add(entry, state, entry.score, kept[type]);
  });
  std::vector<size_t> pushed;
  for (Buffer<PprNeighbor>& each : kept) {
    keep(each, 0);
    pushed.push_back(each.size());
  }
  if (rule.top_up) {
    for_each([&](const Entry& entry, int state, int type) {
      if (entry.score == 0 && pushed[type] < most) add(entry, state, entry.residual, kept[type]);
    });
  }
  for (size_t type = 0; type < kept.size(); ++type) {
    if (kept[type].size() > pushed[type]) keep(kept[type], pushed[type]);
    SortUnlessStopped(kept[type].data(), kept[type].data() + kept[type].size(), IsBefore);
  }
}

}  // namespace gigl
