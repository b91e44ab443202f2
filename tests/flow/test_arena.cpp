// The arena places values exactly as a simple algorithm that compares each value with all others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "flow/weights/arena.hpp"
#include "flow/weights/weight_groups.hpp"
#include "support/share.hpp"

namespace slip::test::test_arena {
namespace {

const Kernel kNothing{"nothing", [](const Args&) {}};

// Ops that each write a value of their own and read values of earlier ops, up to `window` back.
Graph random_ops(std::mt19937_64& random, std::uint32_t ops, std::uint32_t window) {
  Graph graph;
  std::vector<Value> values{graph.input("x", DataType::kU8, {1 + random() % 5000})};
  for (std::uint32_t op = 0; op < ops; ++op) {
    const Value y = graph.activation(fmt::format("y{}", op), DataType::kU8, {1 + random() % 5000});
    std::vector<ValueBytes> reads;
    for (std::size_t i = random() % 3; i > 0; --i) {
      const std::size_t back = std::min<std::size_t>(1 + random() % window, values.size());
      reads.push_back(graph.all_of(values[values.size() - back]));
    }
    graph.add_op({.name = fmt::format("op{}", op), .kernel = &kNothing, .reads = reads, .writes = {graph.all_of(y)}});
    if (random() % 20 == 0) graph.output(y);
    values.push_back(y);
  }
  return graph;
}

struct Life {
  std::size_t value = 0;
  std::uint64_t bytes = 0;
  std::size_t first = 0, last = 0;
  std::uint64_t offset = 0;
  bool meets(const Life& other) const { return first <= other.last && other.first <= last; }
  bool overlaps(const Life& other) const {
    return offset < other.offset + other.bytes && other.offset < offset + bytes;
  }
};

std::vector<Life> lives_of(const Graph& graph) {
  const std::vector<bool> placed = flow::placed_values(graph);
  std::vector<Life> lives;
  for (std::size_t value = 0; value < placed.size(); ++value) {
    if (!placed[value]) continue;
    const GraphValue& one = graph.values()[value];
    Life life{value, flow::aligned(one.bytes), graph.ops().size(), 0};
    for (std::size_t op = 0; op < graph.ops().size(); ++op) {
      const auto touches = [&](const ValueBytes& bytes) { return bytes.value.index == value; };
      const GraphOp& each = graph.ops()[op];
      if (!std::ranges::any_of(each.reads, touches) && !std::ranges::any_of(each.writes, touches)) continue;
      life.first = std::min(life.first, op);
      life.last = op;
    }
    if (one.role != ValueRole::kActivation || one.output) life.first = 0, life.last = graph.ops().size() - 1;
    lives.push_back(life);
  }
  return lives;
}

// The simple algorithm: largest value first, each at the lowest offset that is free while the value is live.
std::vector<Life> place_simply(const Graph& graph) {
  std::vector<Life> lives = lives_of(graph);
  std::ranges::stable_sort(lives, std::ranges::greater{}, &Life::bytes);
  for (std::size_t i = 0; i < lives.size(); ++i) {
    std::vector<Life> others;
    std::copy_if(lives.begin(), lives.begin() + static_cast<std::ptrdiff_t>(i), std::back_inserter(others),
                 [&](const Life& other) { return other.meets(lives[i]); });
    std::ranges::sort(others, {}, &Life::offset);
    for (const Life& other : others) {
      if (other.overlaps(lives[i])) lives[i].offset = other.offset + other.bytes;
    }
  }
  return lives;
}

TEST(LaidArena, IsThatOfTheSimpleAlgorithm) {
  for (std::uint64_t seed = 1; seed <= 400 / kShare; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const Graph graph = random_ops(random, 1 + static_cast<std::uint32_t>(random() % 90), 1 + random() % 40);
    const flow::Arena arena = flow::lay_arena(graph);
    std::uint64_t bytes = 0;
    std::vector<std::uint64_t> there(graph.ops().size(), 0);
    for (const Life& life : place_simply(graph)) {
      ASSERT_EQ(arena.offsets[life.value], life.offset) << graph.values()[life.value].name;
      bytes = std::max(bytes, life.offset + life.bytes);
      for (std::size_t op = life.first; op <= life.last; ++op) there[op] += life.bytes;
    }
    EXPECT_EQ(arena.bytes, bytes);
    EXPECT_EQ(arena.bound, *std::ranges::max_element(there));
    EXPECT_EQ(there[arena.fullest], arena.bound);
    EXPECT_FALSE(flow::arena_conflict(graph, arena.offsets));
  }
}

TEST(LaidArena, AConflictIsFoundIfThereIsOne) {
  int found = 0, none = 0;
  for (std::uint64_t seed = 1; seed <= 400 / kShare; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const Graph graph = random_ops(random, 1 + static_cast<std::uint32_t>(random() % 60), 1 + random() % 20);
    std::vector<std::uint64_t> offsets = flow::lay_arena(graph).offsets;
    offsets[random() % offsets.size()] = random() % 8 * flow::kAlignment;
    std::vector<Life> lives = lives_of(graph);
    for (Life& life : lives) life.offset = offsets[life.value];
    const auto conflict = [&](const Life& a, const Life& b) { return a.meets(b) && a.overlaps(b); };
    bool expected = false;
    for (const Life& a : lives) {
      for (const Life& b : lives) expected |= a.value != b.value && conflict(a, b);
    }
    const auto both = flow::arena_conflict(graph, offsets);
    ASSERT_EQ(both.has_value(), expected);
    ++(expected ? found : none);
    if (!both) continue;
    const auto life_of = [&](Value value) { return *std::ranges::find(lives, value.index, &Life::value); };
    EXPECT_NE(both->first, both->second);
    EXPECT_TRUE(conflict(life_of(both->first), life_of(both->second)));
  }
  EXPECT_GT(found, 0);
  EXPECT_GT(none, 0);
}

// Comparing each value with all others would take 2 x 10^10 comparisons and exceed the time limit of the test.
TEST(LaidArena, IsFoundForManyOps) {
  std::mt19937_64 random(1);
  const Graph graph = random_ops(random, 200'000 / kShare, 30);
  const flow::Arena arena = flow::lay_arena(graph);
  EXPECT_GE(arena.bytes, arena.bound);
  EXPECT_FALSE(flow::arena_conflict(graph, arena.offsets));
}

}  // namespace
}  // namespace slip::test::test_arena
