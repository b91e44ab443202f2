// The programs of messages of all ranks as one plan, which the checker proves: no two ops touch the same bytes at the
// same time, whatever the links hold back, and no ranks wait in a circle, even if links hold nothing.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>

#include "comm/link.hpp"
#include "proof.hpp"

namespace slip {
namespace {

using Kind = Primitive::Kind;
using test::proof_of;

constexpr std::uint64_t kChunk = 1024;  // small, so that plans are

// A ring that is not in the order of the ranks.
Formation formation_of(int nranks) {
  std::vector<int> order;
  for (int rank = 0; rank < nranks; rank += 2) order.push_back(rank);
  for (int rank = 1; rank < nranks; rank += 2) order.push_back(rank);
  return Formation::of(order);
}

void expect_proven(std::span<const Scene> scenes) {
  EXPECT_EQ(proof_of(scenes, Wires::kRendezvous), "proven") << "rendezvous";
  EXPECT_EQ(proof_of(scenes, Wires::kBuffered), "proven") << "buffered";
}

std::string recipe_name(const Recipe& recipe) {
  return std::string(algorithm_name(recipe.algorithm)) + "_" + collective_name(recipe.kind);
}

Practice practice_of(const Recipe& recipe, std::uint64_t bytes, int root, bool in_place, bool scales,
                     std::uint64_t chunk = kChunk) {
  return {&recipe,
          {.kind = recipe.kind,
           .type = DataType::kU8,
           .op = scales ? ReduceOp::kPreMulSum : ReduceOp::kSum,
           .root = root,
           .elements = recipe.kind == Collective::kBarrier ? 0 : bytes},
          in_place,
          chunk};
}

class MessagePlans : public testing::TestWithParam<Recipe> {};

void each_variant(const Recipe& recipe, int nranks, const std::function<void(int, bool, bool)>& body) {
  for (const int root : {0, nranks - 1}) {
    if (root > 0 && !has_root(recipe.kind)) continue;
    for (const bool in_place : {false, true}) {
      if (in_place && recipe.kind == Collective::kBarrier) continue;
      for (const bool scales : {false, true}) {
        if (scales && !reduces(recipe.kind)) continue;
        SCOPED_TRACE(testing::Message() << nranks << " ranks, root " << root << (in_place ? ", in place" : "")
                                        << (scales ? ", scaled" : ""));
        body(root, in_place, scales);
      }
    }
  }
}

// Twice, so that scratch memory is met by the next call.
TEST_P(MessagePlans, AreProven) {
  for (const int nranks : {2, 3, 4, 5, 8}) {
    const Formation formation = formation_of(nranks);
    each_variant(GetParam(), nranks, [&](int root, bool in_place, bool scales) {
      for (const std::uint64_t bytes : {0U, 1U, 100U, 1024U, 2 * 1024U + 7, 5 * 1024U + 300}) {
        if (bytes == 0 && GetParam().kind != Collective::kBarrier) continue;  // is a barrier then
        SCOPED_TRACE(testing::Message() << bytes << " bytes");
        expect_proven(std::vector<Scene>(
            2, scene_of(practice_of(GetParam(), bytes, root, in_place, scales), formation)));
      }
    });
  }
}

// Large enough that slices of a ring go in parts.
TEST_P(MessagePlans, OfSeveralPartsAreProven) {
  for (const int nranks : {2, 3, 5}) {
    const Formation formation = formation_of(nranks);
    each_variant(GetParam(), nranks, [&](int root, bool in_place, bool scales) {
      const Practice practice = practice_of(GetParam(), 700'000, root, in_place, scales, 128 << 10);
      expect_proven(std::vector<Scene>(2, scene_of(practice, formation)));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Every, MessagePlans, testing::ValuesIn(recipes()),
                         [](const auto& of) { return recipe_name(of.param); });

TEST(MessagePlanOf, CallsOfAllKindsOneAfterTheOther) {
  const Formation formation = formation_of(4);
  std::vector<Scene> scenes;
  for (const std::uint64_t bytes : {40U, 3000U}) {
    for (const Recipe& recipe : recipes())
      scenes.push_back(scene_of(practice_of(recipe, bytes, 1, bytes > 40, reduces(recipe.kind)), formation));
  }
  std::shuffle(scenes.begin(), scenes.end(), std::mt19937(7));
  expect_proven(scenes);
}

// Without any one of its waits a program races.
struct Without {
  Algorithm algorithm;
  Collective kind;
  int nranks;
  bool in_place, scales;
};

void expect_needed(const Without& how) {
  const Formation formation = formation_of(how.nranks);
  const Recipe& recipe = *find_recipe(how.algorithm, how.kind);
  SCOPED_TRACE(recipe_name(recipe) + (how.in_place ? " in place" : "") + (how.scales ? " scaled" : ""));
  const std::vector<Scene> whole(
      2, scene_of(practice_of(recipe, 5 * 1024 + 300, 0, how.in_place, how.scales), formation));
  for (std::size_t rank = 0; rank < whole[0].programs.size(); ++rank) {
    const std::vector<Primitive>& steps = whole[0].programs[rank].steps;
    for (std::size_t step = 0; step < steps.size(); ++step) {
      if (steps[step].kind != Kind::kSent && steps[step].kind != Kind::kReceived) continue;
      std::vector<Scene> cut = whole;
      std::vector<Primitive>& others = cut[0].programs[rank].steps;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(step));
      const std::string proof = proof_of(cut, Wires::kBuffered);
      EXPECT_TRUE(proof.starts_with("race"))
          << "rank " << rank << " step " << step << " of " << steps.size() << ": "
          << (steps[step].kind == Kind::kSent ? "sent to " : "received from ") << steps[step].value << " but "
          << steps[step].left << ": " << proof.substr(0, 200);
    }
  }
}

TEST(MessagePlanOf, AWaitLeftOutIsFound) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.kind == Collective::kBarrier) continue;
    for (const bool in_place : {false, true}) {
      for (const bool scales : {false, true}) {
        if (scales && !reduces(recipe.kind)) continue;
        expect_needed({recipe.algorithm, recipe.kind, 4, in_place, scales});
      }
    }
  }
}

}  // namespace
}  // namespace slip
