// Mutations: from plans that are proven, each wait is removed in turn. verify() must find a race exactly when a slow
// reference does, and running the ops in random order must then change the result.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "slip/slip.hpp"
#include "support/kernels.hpp"

namespace slip::races {
namespace {

// out(0) becomes a mixture of itself and of everything read: whatever runs out of order changes the result.
const Kernel kBlend{"blend", [](const Args& args) {
                      std::uint32_t& out = args.out<std::uint32_t>(0)[0];
                      for (std::size_t i = 0; i < args.reads(); ++i)
                        out = test::mixed(out, args.in<std::uint32_t>(i)[0]);
                      out = test::mixed(out, args.scalar<std::uint32_t>(0));
                    }};

// A plan's shape, without a device: ops on numbered words.
struct Step {
  std::uint32_t stream = 0;
  bool load = false;  // a copy from pinned memory: word `writes` <- source `reads[0]`
  std::vector<std::uint32_t> reads;
  std::uint32_t writes = 0;
  std::vector<std::uint32_t> waits;
};
struct Shape {
  std::vector<Step> steps;
  std::uint32_t words = 0;
  std::uint32_t sources = 0;
};

// Seed 003: four weights, two slots, layers that add them up; L loads, A adds. Words: 0 and 1 the slots, 2 and 3 the
// data, which goes back and forth.
Shape two_slots() {
  Shape shape{{}, 4, 4};
  std::vector<std::uint32_t> layer;  // the op of each
  for (std::uint32_t k = 0; k < 4; ++k) {
    const auto load = static_cast<std::uint32_t>(shape.steps.size());
    std::vector<std::uint32_t> used;
    if (k >= 2) used.push_back(layer[k - 2]);
    shape.steps.push_back({1, true, {k}, k % 2, used});
    layer.push_back(load + 1);
    shape.steps.push_back({0, false, {k % 2, 2 + k % 2}, 2 + (k + 1) % 2, {load}});
  }
  return shape;
}

Shape random_shape(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](std::uint32_t limit) { return static_cast<std::uint32_t>(random() % limit); };
  Shape shape{{}, 5, 0};
  for (std::uint32_t i = 0; i < 14; ++i) {
    const std::uint32_t reads = pick(shape.words);  // never what it writes: mixed with itself a word is nothing
    shape.steps.push_back({pick(3), false, {reads}, (reads + 1 + pick(shape.words - 1)) % shape.words, {}});
  }
  return shape;
}

class Bench {
 public:
  Bench(const DeviceOptions& options, const Shape& shape) : device_(Device::open("cpu", options)) {
    words_ = device_.alloc(4 * shape.words, MemoryKind::kDevice, "words");
    if (shape.sources > 0) {
      sources_ = device_.alloc(4 * shape.sources, MemoryKind::kPinned, "sources");
      std::iota(static_cast<std::uint32_t*>(sources_.native()),
                static_cast<std::uint32_t*>(sources_.native()) + shape.sources, 100U);
    }
  }

  Plan plan(const Shape& shape) const {
    Plan plan;
    for (std::uint32_t i = 0; i < shape.steps.size(); ++i) {
      const Step& step = shape.steps[i];
      PlanNode node{.stream = step.stream, .name = "op", .writes = {word(step.writes)}, .waits = step.waits};
      if (step.load) {
        node.kind = OpKind::kCopy;
        node.engine = Engine::kCopyIn;
        node.reads = {sources_.slice(4 * step.reads[0], 4)};
      } else {
        node.engine = Engine::kCompute;
        node.kernel = &kBlend;
        node.scalars = {i + 1};
        for (const std::uint32_t read : step.reads) node.reads.push_back(word(read));
      }
      plan.add(std::move(node));
    }
    return plan;
  }

  // Several times over: one seed gives several orders.
  std::vector<std::uint32_t> run(const Shape& shape) {
    const Stream stream = device_.stream();
    Plan planned = plan(shape);
    stream.fill(words_, 0);
    for (int i = 0; i < 3; ++i) stream.launch(planned);
    return test::words_of(device_, words_);
  }

 private:
  Range word(std::uint32_t i) const { return words_.slice(4 * i, 4); }
  Device device_;
  Buffer words_, sources_;
};

// The reference: whether every two ops that conflict are ordered, by trying every path between them.
bool is_ordered(const Shape& shape) {
  const auto count = static_cast<std::uint32_t>(shape.steps.size());
  std::vector<std::vector<bool>> before(count, std::vector<bool>(count));
  for (std::uint32_t i = 0; i < count; ++i) {
    std::vector<std::uint32_t> direct = shape.steps[i].waits;
    for (std::uint32_t j = 0; j < i; ++j) {
      if (shape.steps[j].stream == shape.steps[i].stream) direct.push_back(j);
    }
    for (const std::uint32_t j : direct) {
      before[j][i] = true;
      for (std::uint32_t k = 0; k < j; ++k) before[k][i] = before[k][i] || before[k][j];
    }
  }
  const auto touches = [](const Step& step, std::uint32_t word) {
    return step.writes == word || (!step.load && std::count(step.reads.begin(), step.reads.end(), word) > 0);
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t j = 0; j < i; ++j) {
      const bool meet =
          touches(shape.steps[j], shape.steps[i].writes) || touches(shape.steps[i], shape.steps[j].writes);
      if (meet && !before[j][i]) return false;
    }
  }
  return true;
}

// Adds what verify() says is missing.
Shape mended(const Shape& shape) {
  const Bench bench({}, shape);
  Shape result = shape;
  for (const Verification::Wait& wait : verify(bench.plan(shape)).missing)
    result.steps[wait.op].waits.push_back(wait.other);
  return result;
}

struct Mutant {
  Shape shape;
  std::string name;
};

std::vector<Mutant> mutants(const Shape& shape) {
  std::vector<Mutant> result;
  for (std::uint32_t i = 0; i < shape.steps.size(); ++i) {
    for (std::size_t k = 0; k < shape.steps[i].waits.size(); ++k) {
      const std::string name = std::to_string(i) + " no longer waits for " + std::to_string(shape.steps[i].waits[k]);
      result.push_back({shape, name});
      std::vector<std::uint32_t>& waits = result.back().shape.steps[i].waits;
      waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(k));
    }
  }
  return result;
}

// Whether some order that the random policy takes gives another result than the order in which the ops were issued.
bool goes_wrong(const Shape& shape, std::uint64_t seeds) {
  const auto right = Bench({.policy = CpuPolicy::kSingle}, shape).run(shape);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    if (Bench({.policy = CpuPolicy::kRandom, .seed = seed}, shape).run(shape) != right) return true;
  }
  return false;
}

TEST(Mutations, EachEdgeOfTheTwoSlotPlanIsNeeded) {
  const Shape shape = two_slots();
  const Bench bench({}, shape);
  const Plan plan = bench.plan(shape);
  const Verification proof = verify(plan);
  ASSERT_TRUE(proof.proven()) << proof.text(plan);
  EXPECT_TRUE(proof.superfluous.empty()) << proof.text(plan);
  EXPECT_FALSE(goes_wrong(shape, 50)) << "it is right in every order";
  const std::vector<Mutant> all = mutants(shape);
  EXPECT_EQ(all.size(), 6U);
  for (const Mutant& mutant : all) {
    SCOPED_TRACE(mutant.name);
    EXPECT_FALSE(is_ordered(mutant.shape));
    EXPECT_EQ(verify(bench.plan(mutant.shape)).verdict, Verdict::kRace);
    EXPECT_TRUE(goes_wrong(mutant.shape, 200)) << "no seed shows it";
  }
}

TEST(Mutations, RandomPlans) {
  int racy = 0, harmless = 0, wrong = 0;
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    Shape shape = mended(random_shape(seed));
    shape.steps.back().waits.push_back(0);  // one wait more, which may protect nothing
    const Bench bench({}, shape);
    ASSERT_TRUE(is_ordered(shape)) << "seed " << seed;
    ASSERT_TRUE(verify(bench.plan(shape)).proven()) << "seed " << seed;
    int sample = 0;
    for (const Mutant& mutant : mutants(shape)) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ": " + mutant.name);
      const bool ordered = is_ordered(mutant.shape);
      ASSERT_EQ(verify(bench.plan(mutant.shape)).verdict, ordered ? Verdict::kProven : Verdict::kRace);
      ++(ordered ? harmless : racy);
      if (ordered || sample++ >= 2) continue;
      const bool seen = goes_wrong(mutant.shape, 2000);
      EXPECT_TRUE(seen) << "no seed shows it";
      wrong += seen;
    }
  }
  EXPECT_GT(racy, 200);
  EXPECT_GT(harmless, 20);
  EXPECT_GT(wrong, 60);
}

}  // namespace
}  // namespace slip::races
