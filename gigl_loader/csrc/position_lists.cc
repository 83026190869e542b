#include "position_lists.h"

#include <algorithm>
#include <functional>

#include "node_table.h"
#include "stop.h"

namespace gigl {
namespace {

constexpr size_t kBlock = 256;  // entries whose places in a table are fetched together

// Calls `with(entries, where)` for blocks of the entries that are not negative; where[i] is the index of entry i.
template <typename With>
void ForEachBlock(std::span<const int64_t> values, With with) {
  int64_t entries[kBlock];
  size_t where[kBlock];
  size_t count = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    entries[count] = values[i];
    where[count] = i;
    count += values[i] >= 0;
    if (count == kBlock || i + 1 == values.size()) {
      CheckStop(static_cast<int64_t>(kBlock));
      with(std::span<const int64_t>(entries, count), std::span<const size_t>(where, count));
      count = 0;
    }
  }
}

// Adds a block to a table.
void Insert(NodeTable& table, std::span<const int64_t> entries, int32_t* locals) {
  const TableLines lines = table.lines();
  for (const int64_t entry : entries) lines.Prefetch(entry);
  table.InsertAll(entries, locals);
}

}  // namespace

std::vector<int64_t> Relabel(std::span<const int64_t> first, std::span<const int64_t> values, std::span<int32_t> places) {
  NodeTable table(true);
  int32_t locals[kBlock];
  ForEachBlock(first, [&](auto entries, auto) { Insert(table, entries, locals); });
  std::fill(places.begin(), places.end(), -1);
  ForEachBlock(values, [&](auto entries, auto where) {
    Insert(table, entries, locals);
    for (size_t i = 0; i < entries.size(); ++i) places[where[i]] = locals[i];
  });
  return {table.nodes().begin(), table.nodes().end()};
}

std::vector<Visited> MostVisited(std::span<const int32_t> owners, int32_t num_owners, std::span<const int64_t> visits,
                                 const int64_t* ids, int64_t most) {
  const size_t width = owners.empty() ? 0 : visits.size() / owners.size();
  std::vector<size_t> ends(static_cast<size_t>(num_owners) + 1);  // of the walks of each owner, once they are placed
  for (const int32_t owner : owners) ++ends[static_cast<size_t>(owner) + 1];
  for (size_t i = 1; i < ends.size(); ++i) ends[i] += ends[i - 1];
  std::vector<size_t> walks(owners.size());
  ForEachUnlessStopped(static_cast<int64_t>(owners.size()), [&](int64_t walk) { walks[ends[owners[walk]]++] = walk; });

  NodeTable table(true);
  std::vector<int64_t> counts;
  std::vector<int32_t> order;
  std::vector<Visited> found;
  int32_t locals[kBlock];
  size_t at = 0;
  for (int32_t owner = 0; owner < num_owners; ++owner) {
    table.Clear();
    counts.clear();
    int64_t total = 0;
    for (; at < ends[owner]; ++at) {
      ForEachBlock(visits.subspan(walks[at] * width, width), [&](auto entries, auto) {
        Insert(table, entries, locals);
        counts.resize(table.nodes().size());
        for (size_t i = 0; i < entries.size(); ++i) ++counts[locals[i]];
        total += static_cast<int64_t>(entries.size());
      });
    }
    const std::span<const int64_t> nodes = table.nodes();
    order.resize(nodes.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    const auto before = [&](int32_t a, int32_t b) {
      if (counts[a] != counts[b]) return counts[a] > counts[b];
      return ids == nullptr ? nodes[a] < nodes[b] : ids[nodes[a]] < ids[nodes[b]];
    };
    const auto end = order.begin() + std::min<int64_t>(most, static_cast<int64_t>(order.size()));
    SortUnlessStopped(static_cast<int64_t>(order.size()), before,
                      [&](auto less) { std::partial_sort(order.begin(), end, order.end(), less); });
    for (auto each = order.begin(); each != end; ++each) {
      const double share = static_cast<double>(counts[*each]) / static_cast<double>(total);
      found.push_back({owner, static_cast<float>(share), nodes[*each]});
    }
  }
  return found;
}

void SortLists(std::span<const int64_t> counts, const int64_t* ids, std::span<int64_t> positions) {
  auto begin = positions.begin();
  for (const int64_t count : counts) {
    if (ids == nullptr) {
      SortUnlessStopped(begin, begin + count, std::less<int64_t>());
    } else {
      SortUnlessStopped(begin, begin + count, [ids](int64_t a, int64_t b) { return ids[a] < ids[b]; });
    }
    begin += count;
  }
}

}  // namespace gigl
