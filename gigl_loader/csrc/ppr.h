// Personalised PageRank of a seed by forward push: the arithmetic, wherever the adjacency lists lie.
//
// Forward push after Andersen, Chung, Lang: "Local graph partitioning using PageRank vectors" (FOCS 2006).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "batch.h"
#include "buffer.h"
#include "stop.h"

namespace gigl {

// The nodes of one type as the pushes of a channel see them at one step: each state has edges of its own.
struct PprState {
  int node_type;
  bool kept;  // its nodes are neighbours; else they are passed on the way
};

// The edges of one type that lead from the nodes of a state to those of another.
struct PprEdges {
  int state;
  int next_state;
  int edge_type;  // its number
};

// How far pushes go, along which edges, and what is kept of them. A channel has states and edges of its own, and a push
// for each seed.
struct PprRule {
  double alpha;         // probability of a return to the seed
  double eps;           // a residual is pushed where it exceeds alpha * eps * degree
  int64_t max_nodes;    // kept of a seed and node type
  bool top_up;          // fill free places with the nodes of the largest residuals
  int32_t max_neighbors;  // taken of a list
  int64_t max_rounds;
  bool weighted;  // neighbours are passed shares in proportion to their weights
  std::vector<PprState> states;
  std::vector<PprEdges> edges;           // those of a state in the order of a node's neighbours
  std::vector<std::vector<int>> starts;  // by channel and node type: the state of a seed; -1 where no seed has the type
  std::vector<int64_t> shares;           // by channel: of max_nodes

  int num_channels() const { return static_cast<int>(starts.size()); }
};

// All nodes of the states, numbered through: node `position` of state s has the key first(s) + position.
class PprNodes {
 public:
  explicit PprNodes(std::vector<NodeTypePlan> states);

  int64_t first(int state) const { return firsts_[state]; }
  int64_t count(int state) const { return states_[state].count; }
  int StateOf(int64_t key) const {
    int state = 0;
    while (key >= firsts_[state + 1]) ++state;
    return state;
  }
  int64_t IdOf(int state, int64_t position) const {
    const int64_t* const ids = states_[state].ids;
    return ids == nullptr ? position : ids[position];
  }

 private:
  std::vector<NodeTypePlan> states_;
  std::vector<int64_t> firsts_;  // and the number of all nodes
};

// What is known of the lists of a node: how many neighbours are taken of them.
struct PprDegree {
  int64_t count;
  bool whole;  // else there are at least so many
};

// A node whose residual is pushed, or may be.
struct PprNode {
  int32_t entry;
  int32_t state;
  int64_t position;
  int64_t id;
  int64_t degree;
};

// A node that is kept of a seed.
struct PprNeighbor {
  int64_t position;
  int64_t id;
  float score;
  int32_t hop;
};

// By descending score, ties by ascending node id.
inline bool IsBefore(const PprNeighbor& a, const PprNeighbor& b) { return a.score != b.score ? a.score > b.score : a.id < b.id; }

// The push of one seed, round after round. Memory is kept from seed to seed: an open-addressing table from keys
// to entries, which is emptied by counting on.
//
// `Lists` answers for the adjacency lists of nodes, given by state and position:
//   void FetchDegree(state, position), void FetchLists(state, position): prefetch
//   PprDegree Degree(state, position)
//   void Want(state, position, int32_t fanout): so many neighbours of each list are to be known, and are not
//   void Visit(state, position, id, degree, double passed, found): calls found(key, share) for every neighbour that
//     is taken, but for edges that are excluded: what they would carry is lost
class ForwardPush {
 public:
  // Starts with all of the residual at a node.
  void Begin(int64_t key, const PprRule& rule);

  // Goes on until the push ends (true) or lists are wanted (false): then Run again when they are there. What is
  // taken from the room, before memory is: an edge for each that is passed, one at least for each push, and
  // kEdgesPerNode for each node that is reached.
  template <typename Lists>
  bool Run(const PprNodes& nodes, const PprRule& rule, Lists& lists, BatchRoom& room) {
    while (round_ < rule.max_rounds) {
      if (!Choose(nodes, rule, lists)) return false;
      if (due_.size() == 0) return true;
      PushDue(rule, lists, room);
    }
    return true;
  }

  // The nodes that are kept, by node type, each in their order. `twin`: the key under which the seed is found again in
  // another state that is kept, else -1; it is one node with the seed.
  void Select(const PprNodes& nodes, const PprRule& rule, int64_t twin, std::vector<Buffer<PprNeighbor>>& kept);

  size_t nbytes() const {
    return slots_.capacity() * sizeof(Slot) + entries_.nbytes() + changed_.nbytes() + due_.nbytes();
  }

 private:
  struct Entry {
    int64_t key;
    double residual;
    double score;
    int32_t hop;
    int32_t changed;  // latest round in which it got residual
  };
  struct Slot {
    uint32_t tag;
    uint32_t number;  // of the entry, from base_ on; below it the slot is empty
  };
  static constexpr size_t kMinSlots = 32;
  static constexpr int64_t kEdgesPerNode = 2;  // 146 bytes at most, where an edge of a batch stands for 64
  static constexpr int64_t kDegreesAhead = 24;  // a miss of the caches takes as long as so many nodes
  static constexpr int64_t kListsAhead = 4;

  // Finds the nodes whose residual is due. False where that is not known of all yet.
  template <typename Lists>
  bool Choose(const PprNodes& nodes, const PprRule& rule, Lists& lists) {
    const double limit = rule.alpha * rule.eps;
    due_.Clear();
    ForEachUnlessStopped(static_cast<int64_t>(changed_.size()), [&](int64_t i) {
      const int32_t entry = changed_[i];
      const Entry& at = entries_.data()[entry];
      if (round_ > 0 && !(at.residual > limit)) return;
      const int state = nodes.StateOf(at.key);
      due_.Push({entry, state, at.key - nodes.first(state), 0, 0});
    });
    bool known = true;
    WorkCounter work;
    PprNode* const due = due_.data();
    const int64_t count = static_cast<int64_t>(due_.size());
    PprNode* end = due;
    for (int64_t i = 0; i < std::min(kDegreesAhead, count); ++i) lists.FetchDegree(due[i].state, due[i].position);
    for (int64_t i = 0; i < count; ++i) {
      if (i + kDegreesAhead < count) lists.FetchDegree(due[i + kDegreesAhead].state, due[i + kDegreesAhead].position);
      work.Add(4);
      PprNode node = due[i];
      const double residual = entries_.data()[node.entry].residual;
      const PprDegree degree = lists.Degree(node.state, node.position);
      // The seed is pushed whatever its degree.
      if (round_ > 0 && !(residual > limit * static_cast<double>(std::max<int64_t>(degree.count, 1)))) continue;
      if (!degree.whole) {
        lists.Want(node.state, node.position, round_ > 0 ? Fanout(residual, limit, rule) : rule.max_neighbors);
        known = false;
      }
      node.degree = degree.count;
      node.id = nodes.IdOf(node.state, node.position);
      *end++ = node;
    }
    due_.Truncate(end - due);
    if (!known) {  // All others are decided: no residual changes before the next round.
      changed_.Clear();
      for (const PprNode& node : due_.view()) changed_.Push(node.entry);
    }
    return known;
  }

  // A fanout that decides whether a residual is due: a list that has as many neighbours is too long for it.
  static int32_t Fanout(double residual, double limit, const PprRule& rule) {
    int64_t fanout = 4;
    while (fanout < rule.max_neighbors && residual > limit * static_cast<double>(fanout)) fanout *= 4;
    return static_cast<int32_t>(std::min<int64_t>(fanout, rule.max_neighbors));
  }

  template <typename Lists>
  void PushDue(const PprRule& rule, Lists& lists, BatchRoom& room) {
    PprNode* const due = due_.data();
    const int64_t count = static_cast<int64_t>(due_.size());
    SortUnlessStopped(due, due + count, [](const PprNode& a, const PprNode& b) {
      return a.state != b.state ? a.state < b.state : a.id < b.id;
    });
    ++round_;
    changed_.Clear();
    for (int64_t i = 0; i < std::min(kListsAhead, count); ++i) lists.FetchLists(due[i].state, due[i].position);
    for (int64_t i = 0; i < count; ++i) {
      if (i + kListsAhead < count) lists.FetchLists(due[i + kListsAhead].state, due[i + kListsAhead].position);
      const PprNode& node = due[i];
      const int64_t most = (1 + kEdgesPerNode) * node.degree;  // if all of them are new
      if (most > room.left()) room.Take(most, 0);
      const size_t reached = entries_.size();
      Reserve(node.degree);
      Entry& at = entries_.data()[node.entry];
      const double residual = at.residual;
      at.residual = 0;
      at.score += residual;
      if (node.degree > 0) {
        const double passed = (1 - rule.alpha) * residual;
        lists.Visit(node.state, node.position, node.id, node.degree, passed,
                    [&](int64_t key, double share) { Add(key, share); });
      }
      const int64_t added = static_cast<int64_t>(entries_.size() - reached);
      room.Take(std::max<int64_t>(node.degree, 1) + kEdgesPerNode * added, 0);
    }
  }

  // There is room for the key.
  void Add(int64_t key, double share) {
    Slot* const slots = slots_.data();
    const uint32_t tag = static_cast<uint32_t>(key);
    size_t place = Bucket(key);
    while (slots[place].number >= base_ &&
           (slots[place].tag != tag || entries_.data()[slots[place].number - base_].key != key)) {
      place = (place + 1) & (slots_.size() - 1);
    }
    if (slots[place].number < base_) {
      slots[place] = {tag, base_ + static_cast<uint32_t>(entries_.size())};
      entries_.Push({key, 0, 0, static_cast<int32_t>(round_), -1});
    }
    const uint32_t entry = slots[place].number - base_;
    Entry& at = entries_.data()[entry];
    at.residual += share;
    if (at.changed != round_) {
      at.changed = static_cast<int32_t>(round_);
      changed_.Push(static_cast<int32_t>(entry));
    }
  }

  size_t Bucket(int64_t key) const {
    return static_cast<size_t>((static_cast<uint64_t>(key) * 0x9E3779B97F4A7C15u) >> shift_);
  }

  // Makes room in the table for so many more entries.
  void Reserve(int64_t count);
  void Rehash(size_t num_slots);

  std::vector<Slot> slots_;
  int shift_ = 0;
  uint32_t base_ = 1;
  int64_t round_ = 0;
  Buffer<Entry> entries_;
  Buffer<int32_t> changed_;  // entries that got residual in the latest round
  Buffer<PprNode> due_;
};

}  // namespace gigl
