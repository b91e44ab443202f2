#include "flow/arena.hpp"

#include <algorithm>

#include "flow/units.hpp"

namespace slip {
namespace {

struct Life {
  std::uint32_t value = 0;
  std::uint64_t bytes = 0;
  std::uint32_t first = 0, last = 0;  // ops
  std::uint64_t offset = 0;
  bool meets(const Life& other) const { return first <= other.last && other.first <= last; }
};

std::vector<Life> lives_of(const Graph& graph) {
  const auto ops = static_cast<std::uint32_t>(graph.ops().size());
  std::vector<Life> lives;
  for (std::uint32_t value = 0; value < graph.values().size(); ++value)
    lives.push_back({value, aligned(graph.values()[value].bytes), ops, 0, 0});
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

// The lowest place that none of the lives placed so far, sorted by offset, takes at the same time.
std::uint64_t lowest_place(const Life& life, const std::vector<const Life*>& placed) {
  std::uint64_t at = 0;
  for (const Life* other : placed) {
    if (!life.meets(*other)) continue;
    if (other->offset >= at + life.bytes) break;
    at = std::max(at, other->offset + other->bytes);
  }
  return at;
}

}  // namespace

Arena lay_arena(const Graph& graph) {
  Arena arena{std::vector<std::uint64_t>(graph.values().size(), 0), 0, 0, 0};
  std::vector<Life> lives = lives_of(graph);
  std::vector<std::uint64_t> there(graph.ops().size() + 1, 0);
  for (const Life& life : lives) {
    for (std::uint32_t op = life.first; op <= life.last; ++op) there[op] += life.bytes;
  }
  const auto fullest = std::ranges::max_element(there);
  arena.bound = *fullest;
  arena.fullest = static_cast<std::uint32_t>(fullest - there.begin());
  std::ranges::stable_sort(lives, [](const Life& a, const Life& b) { return a.bytes > b.bytes; });
  std::vector<const Life*> placed;
  for (Life& life : lives) {
    life.offset = lowest_place(life, placed);
    arena.offsets[life.value] = life.offset;
    arena.bytes = std::max(arena.bytes, life.offset + life.bytes);
    placed.insert(std::ranges::upper_bound(placed, life.offset, {}, [](const Life* one) { return one->offset; }),
                  &life);
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
  std::ranges::sort(lives, {}, &Life::offset);
  for (std::size_t i = 0; i < lives.size(); ++i) {
    for (std::size_t k = i + 1; k < lives.size() && lives[k].offset < lives[i].offset + lives[i].bytes; ++k) {
      if (lives[i].meets(lives[k])) return std::pair(Value{lives[i].value}, Value{lives[k].value});
    }
  }
  return std::nullopt;
}

}  // namespace slip
