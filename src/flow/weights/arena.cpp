#include "flow/weights/arena.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <numeric>

#include "flow/weights/weight_groups.hpp"

namespace slip::flow {
namespace {

struct Life : Placed {
  std::uint32_t value = 0;
};

std::vector<Life> lives_of(const Graph& graph) {
  const auto ops = static_cast<std::uint32_t>(graph.ops().size());
  std::vector<Life> lives;
  for (std::uint32_t value = 0; value < graph.values().size(); ++value)
    lives.push_back({{ops, 0, 0, aligned(graph.values()[value].bytes)}, value});
  for (std::uint32_t op = 0; op < ops; ++op) {
    const auto touch = [&](const ValueBytes& bytes) {
      Life& life = lives[bytes.value.index];
      life.first = std::min(life.first, op);
      life.last = op;
    };
    std::ranges::for_each(graph.ops()[op].reads, touch);
    std::ranges::for_each(graph.ops()[op].writes, touch);
  }
  std::erase_if(lives, [&](const Life& life) { return graph.values()[life.value].role == ValueRole::kWeight; });
  for (Life& life : lives) {
    const GraphValue& value = graph.values()[life.value];
    if (value.role != ValueRole::kActivation || value.output) life.first = 0, life.last = ops > 0 ? ops - 1 : 0;
  }
  std::erase_if(lives, [&](const Life& life) { return life.first > life.last; });  // declared, never used
  return lives;
}

// Byte ranges that are taken: disjoint, in ascending order, and merged if they touch.
class TakenRanges {
 public:
  void add(std::uint64_t begin, std::uint64_t end) {
    const auto first = std::ranges::lower_bound(ranges_, begin, {}, &Range::end);
    auto last = first;
    for (; last != ranges_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    if (first == last) {
      ranges_.insert(first, {begin, end});
    } else {
      *first = {begin, end};
      ranges_.erase(first + 1, last);
    }
  }
  // The lowest offset, not below `at`, where `bytes` bytes are free.
  std::uint64_t lowest_free(std::uint64_t at, std::uint64_t bytes) const {
    auto range = std::ranges::upper_bound(ranges_, at, {}, &Range::end);
    for (; range != ranges_.end() && range->begin < at + bytes; ++range) at = range->end;
    return at;
  }
  bool empty() const { return ranges_.empty(); }

 private:
  struct Range {
    std::uint64_t begin, end;
  };
  std::vector<Range> ranges_;
};

// The bytes that are taken at each op, as a segment tree over the ops. A query for an interval of ops looks at O(log
// ops) nodes with merged ranges, instead of at every value placed so far.
class Placements {
 public:
  explicit Placements(std::size_t ops) : last_(static_cast<std::uint32_t>(std::max<std::size_t>(ops, 1) - 1)) {
    nodes_.resize(2 * std::bit_ceil(std::max<std::size_t>(ops, 1)));
  }

  // The lowest offset whose bytes no placed value takes while this one is live.
  std::uint64_t lowest_free(const Life& life) {
    found_.clear();
    find({1, 0, last_}, life);
    std::uint64_t at = 0;
    for (std::size_t agreed = 0, i = 0; agreed < found_.size(); i = (i + 1) % found_.size()) {
      const std::uint64_t next = found_[i]->lowest_free(at, life.bytes);
      agreed = next == at ? agreed + 1 : 1;  // a higher offset must be free in all other nodes, too
      at = next;
    }
    return at;
  }
  void add(const Life& life) {
    if (life.bytes > 0) add({1, 0, last_}, life);
  }

 private:
  struct Node {
    TakenRanges whole;  // by values that are live at all ops of this node, but not at all of its parent's
    TakenRanges any;    // by values that are live at some op of this node, but not at all of its parent's
  };
  struct Segment {
    std::size_t node;
    std::uint32_t first, last;
    bool meets(const Life& life) const { return first <= life.last && life.first <= last; }
    bool within(const Life& life) const { return life.first <= first && last <= life.last; }
    Segment left() const { return {2 * node, first, first + (last - first) / 2}; }
    Segment right() const { return {2 * node + 1, first + (last - first) / 2 + 1, last}; }
  };

  void find(const Segment& at, const Life& life) {
    if (!at.meets(life)) return;
    const Node& node = nodes_[at.node];
    const bool within = at.within(life);
    const TakenRanges& taken = within ? node.any : node.whole;
    if (!taken.empty()) found_.push_back(&taken);
    if (within) return;
    find(at.left(), life);
    find(at.right(), life);
  }
  void add(const Segment& at, const Life& life) {
    if (!at.meets(life)) return;
    nodes_[at.node].any.add(life.offset, life.offset + life.bytes);
    if (at.within(life)) {
      nodes_[at.node].whole.add(life.offset, life.offset + life.bytes);
      return;
    }
    add(at.left(), life);
    add(at.right(), life);
  }

  std::uint32_t last_;
  std::vector<Node> nodes_;
  std::vector<const TakenRanges*> found_;
};

std::vector<std::uint64_t> bytes_by_op(const std::vector<Life>& lives, std::size_t ops) {
  std::vector<std::uint64_t> live(ops + 1, 0), ended(ops + 1, 0);
  for (const Life& life : lives) {
    live[life.first] += life.bytes;
    ended[std::min<std::size_t>(life.last, ops)] += life.bytes;
  }
  for (std::size_t op = 1; op <= ops; ++op) live[op] += live[op - 1] - ended[op - 1];
  return live;
}

}  // namespace

Arena lay_arena(const Graph& graph) {
  Arena arena{std::vector<std::uint64_t>(graph.values().size(), 0), 0, 0, 0};
  std::vector<Life> lives = lives_of(graph);
  const std::vector<std::uint64_t> there = bytes_by_op(lives, graph.ops().size());
  const auto fullest = std::ranges::max_element(there);
  arena.bound = *fullest;
  arena.fullest = static_cast<std::uint32_t>(fullest - there.begin());
  std::ranges::stable_sort(lives, [](const Life& a, const Life& b) { return a.bytes > b.bytes; });
  Placements placements(graph.ops().size());
  for (Life& life : lives) {
    life.offset = placements.lowest_free(life);
    placements.add(life);
    arena.offsets[life.value] = life.offset;
    arena.bytes = std::max(arena.bytes, life.offset + life.bytes);
  }
  return arena;
}

std::vector<bool> placed_values(const Graph& graph) {
  std::vector<bool> placed(graph.values().size(), false);
  for (const Life& life : lives_of(graph)) placed[life.value] = true;
  return placed;
}

std::optional<std::pair<Value, Value>> arena_conflict(const Graph& graph, const std::vector<std::uint64_t>& offsets) {
  std::vector<Life> lives = lives_of(graph);
  for (Life& life : lives) life.offset = offsets[life.value];
  const auto both = find_overlap(std::vector<Placed>(lives.begin(), lives.end()));
  if (!both) return std::nullopt;
  return std::pair(Value{lives[both->first].value}, Value{lives[both->second].value});
}

std::optional<std::pair<std::size_t, std::size_t>> find_overlap(std::span<const Placed> all) {
  std::vector<std::size_t> begins(all.size());
  std::iota(begins.begin(), begins.end(), std::size_t{0});
  std::erase_if(begins, [&](std::size_t i) { return all[i].bytes == 0 || all[i].last < all[i].first; });
  std::vector<std::size_t> ends = begins;
  std::ranges::stable_sort(begins, {}, [&](std::size_t i) { return all[i].first; });
  std::ranges::sort(ends, {}, [&](std::size_t i) { return all[i].last; });
  // Visits the ranges in the order of their first op. As long as no overlap was found, the live ranges are disjoint. So
  // a new range overlaps one of its two neighbours, or none.
  std::map<std::uint64_t, std::size_t> there;  // live ranges, by offset
  auto over = ends.begin();
  for (const std::size_t i : begins) {
    const Placed& one = all[i];
    for (; over != ends.end() && all[*over].last < one.first; ++over) there.erase(all[*over].offset);
    const auto above = there.lower_bound(one.offset);
    if (above != there.end() && above->first - one.offset < one.bytes) return std::pair(above->second, i);
    if (above != there.begin()) {
      const std::size_t below = std::prev(above)->second;
      if (one.offset - all[below].offset < all[below].bytes) return std::pair(below, i);
    }
    there.emplace(one.offset, i);
  }
  return std::nullopt;
}

}  // namespace slip::flow
