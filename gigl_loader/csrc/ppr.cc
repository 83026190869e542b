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

PprNodes::PprNodes(std::vector<NodeTypePlan> types) : types_(std::move(types)), firsts_{0} {
  for (const NodeTypePlan& type : types_) firsts_.push_back(firsts_.back() + type.count);
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

std::span<const PprNeighbor> ForwardPush::Select(const PprNodes& nodes, const PprRule& rule) {
  const auto before = [&](const Ranked& a, const Ranked& b) {
    if (a.score != b.score) return a.score > b.score;
    const int64_t keys[] = {entries_[a.entry].key, entries_[b.entry].key};
    const int types[] = {nodes.TypeOf(keys[0]), nodes.TypeOf(keys[1])};
    if (types[0] != types[1]) return types[0] < types[1];
    return nodes.IdOf(types[0], keys[0] - nodes.first(types[0])) < nodes.IdOf(types[1], keys[1] - nodes.first(types[1]));
  };
  // Keeps the best of those from `begin` on.
  const auto keep = [&](size_t begin) {
    const size_t most = static_cast<size_t>(rule.max_nodes);
    if (ranked_.size() <= most) return;
    Ranked* const data = ranked_.data();
    const auto select = [&](auto order) { std::nth_element(data + begin, data + most, data + ranked_.size(), order); };
    SortUnlessStopped(static_cast<int64_t>(ranked_.size() - begin), before, select);
    ranked_.Truncate(most);
  };
  const std::span<const Entry> entries = entries_.view();
  ranked_.Clear();
  const int64_t count = static_cast<int64_t>(entries.size());
  ForEachUnlessStopped(count, [&](int64_t i) {
    if (entries[i].score > 0) ranked_.Push({RoundedDown(entries[i].score), static_cast<int32_t>(i)});
  });
  keep(0);
  const size_t pushed = ranked_.size();
  if (rule.top_up && pushed < static_cast<size_t>(rule.max_nodes)) {
    ForEachUnlessStopped(count, [&](int64_t i) {
      if (entries[i].score == 0) ranked_.Push({RoundedDown(entries[i].residual), static_cast<int32_t>(i)});
    });
    keep(pushed);
  }
  SortUnlessStopped(ranked_.data(), ranked_.data() + ranked_.size(), before);
  kept_.Clear();
  for (const Ranked& each : ranked_.view()) {
    const Entry& entry = entries_[each.entry];
    const int type = nodes.TypeOf(entry.key);
    kept_.Push({type, entry.key - nodes.first(type), each.score, entry.hop});
  }
  return kept_.view();
}

}  // namespace gigl
