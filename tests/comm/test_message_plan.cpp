// The programs of messages of all ranks as one plan, which the checker proves: no two ops touch the same bytes at the
// same time, whatever the links hold back, and no ranks wait in a circle, even if links hold nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include "comm/link/link.hpp"
#include "proof.hpp"
#include "support/share.hpp"

namespace slip {
namespace {

using Kind = Primitive::Kind;
using test::proof_of;

constexpr std::uint64_t kChunk = 1024;  // small, so that plans are

// A ring that is not in the order of the ranks: even ones are of one host, odd ones of another.
Formation formation_of(int nranks) {
  std::vector<int> order, hosts;
  for (int rank = 0; rank < nranks; ++rank) hosts.push_back(rank % 2);
  for (int rank = 0; rank < nranks; rank += 2) order.push_back(rank);
  for (int rank = 1; rank < nranks; rank += 2) order.push_back(rank);
  Formation formation = Formation::of(order);
  formation.relays = Relays(hosts);
  return formation;
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

// Proofs are of one thread and take long: the sanitizers see the smallest.
std::vector<int> rank_counts(std::vector<int> all) {
  if (test::kShare > 1) all.resize(1);
  return all;
}

// Twice, so that scratch memory is met by the next call.
TEST_P(MessagePlans, AreProven) {
  for (const int nranks : rank_counts({2, 3, 4, 5, 8})) {
    const Formation formation = formation_of(nranks);
    each_variant(GetParam(), nranks, [&](int root, bool in_place, bool scales) {
      for (const std::uint64_t bytes : {1U, 100U, 1024U, 2 * 1024U + 7, 5 * 1024U + 300}) {  // 0 is a barrier
        SCOPED_TRACE(testing::Message() << bytes << " bytes");
        expect_proven(
            std::vector<Scene>(2, scene_of(practice_of(GetParam(), bytes, root, in_place, scales), formation)));
      }
    });
  }
}

// Large enough that slices of a ring go in parts.
TEST_P(MessagePlans, OfSeveralPartsAreProven) {
  for (const int nranks : rank_counts({2, 3, 5})) {
    const Formation formation = formation_of(nranks);
    each_variant(GetParam(), nranks, [&](int root, bool in_place, bool scales) {
      const Practice practice = practice_of(GetParam(), 700'000, root, in_place, scales, 128 << 10);
      expect_proven(std::vector<Scene>(2, scene_of(practice, formation)));
    });
  }
}

// Programs begin messages without asking how many a link holds; they wait for room then, and must not do so in a
// circle.
TEST_P(MessagePlans, OfMoreChunksThanALinkHoldsAreProven) {
  for (const int nranks : rank_counts({2, 3, 5})) {
    const Formation formation = formation_of(nranks);
    const Practice practice = practice_of(GetParam(), 3 * LinkEnd::kDepth * 64 * 2, 0, true, false, 64);
    expect_proven(std::vector<Scene>(2, scene_of(practice, formation)));
  }
}

INSTANTIATE_TEST_SUITE_P(Every, MessagePlans, testing::ValuesIn(recipes()),
                         [](const auto& of) { return recipe_name(of.param); });

// Side by side in the same memory, each with its share; the last one often has none.
TEST_P(MessagePlans, OfSeveralChannelsAreProven) {
  if (!GetParam().by_channels) GTEST_SKIP() << "has one channel";
  for (const int nranks : rank_counts({2, 4, 5})) {
    std::vector<Formation> formations(3, formation_of(nranks));
    std::vector<int> other = formations[0].order;
    std::reverse(other.begin(), other.end());
    formations[1] = Formation::of(other);
    std::rotate(other.begin(), other.begin() + 1, other.end());
    formations[2] = Formation::of(other);
    each_variant(GetParam(), nranks, [&](int root, bool in_place, bool scales) {
      for (const std::uint64_t bytes : {1U, 100U, 5 * 1024U + 300}) {
        SCOPED_TRACE(testing::Message() << bytes << " bytes");
        const Practice practice = practice_of(GetParam(), bytes, root, in_place, scales);
        // Behind a call of one channel, whose memory all of them may use.
        expect_proven(std::vector<Scene>{scene_of(practice, formations[0]), scene_of(practice, formations),
                                         scene_of(practice, formations)});
      }
    });
  }
}

// Shares of channels that overlap would be a race: the proof is of something.
TEST(MessagePlanOf, ChannelsThatShareBytesAreFound) {
  const Recipe& recipe = *find_recipe(Algorithm::kRing, Collective::kAllGather);
  const Formation formation = formation_of(3);
  const Practice practice = practice_of(recipe, 1000, 0, false, false);
  Scene scene = scene_of(practice, formation);
  scene.channels = 2;  // both move all of it
  const std::vector<Program> again = scene.programs;
  scene.programs.insert(scene.programs.end(), again.begin(), again.end());
  EXPECT_TRUE(proof_of({&scene, 1}, Wires::kBuffered).starts_with("race"));
}

TEST(MessagePlanOf, SharesOfChannelsAreLinesAndAllOfIt) {
  for (const std::uint64_t bytes : {0U, 1U, 64U, 65U, 1000U, 123'457U}) {
    for (const int channels : {1, 2, 3, 32}) {
      std::uint64_t end = 0;
      for (int channel = 0; channel < channels; ++channel) {
        Task task{.call = {.kind = Collective::kAllReduce, .type = DataType::kU8, .elements = bytes}};
        task.channel = channel;
        task.channels = channels;
        const Task::Span share = task.share();
        EXPECT_EQ(share.begin, end);
        EXPECT_TRUE(share.bytes == 0 || share.begin % 64 == 0) << share.begin;
        end = share.end();
      }
      EXPECT_EQ(end, bytes) << channels << " channels";
    }
  }
}

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

// How many messages of its link each wait of a program waits for; of other steps 0.
std::vector<std::uint64_t> awaited(const Program& program) {
  std::vector<std::uint64_t> result;
  std::map<std::pair<bool, std::uint64_t>, std::uint64_t> begun;
  for (const Primitive& step : program.steps) {
    const bool out = step.kind == Kind::kSend || step.kind == Kind::kSent;
    std::uint64_t& count = begun[{out, step.whom}];
    if (step.kind == Kind::kSend || step.kind == Kind::kReceive) ++count;
    const bool waits = step.kind == Kind::kSent || step.kind == Kind::kReceived;
    result.push_back(waits && count > step.value ? count - step.value : 0);
  }
  return result;
}

bool same_link(const Primitive& a, const Primitive& b) { return a.kind == b.kind && a.whom == b.whom; }

// Takes out waits for what was waited for before: they do nothing.
void drop_repeated(Program& program) {
  std::vector<Primitive> kept;
  std::map<std::pair<Kind, std::uint64_t>, std::uint64_t> reached;
  const std::vector<std::uint64_t> counts = awaited(program);
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Primitive& step = program.steps[i];
    if (step.kind == Kind::kSent || step.kind == Kind::kReceived) {
      std::uint64_t& most = reached[{step.kind, step.whom}];
      if (counts[i] <= most) continue;
      most = counts[i];
    }
    kept.push_back(step);
  }
  program.steps = kept;
}

struct Without {
  const Recipe& recipe;
  int nranks;
  bool in_place, scales;
};

// Of the waits of a program: how many races show without one of them, and how many do not, because a later wait of the
// same link comes before the bytes are touched again. These keep ranks in step, and no more. Nothing else may be.
struct Waits {
  int needed = 0, pacing = 0;
};

Waits leave_out_each(const Without& how) {
  const Formation formation = formation_of(how.nranks);
  SCOPED_TRACE(recipe_name(how.recipe) + (how.in_place ? " in place" : "") + (how.scales ? " scaled" : ""));
  const Practice practice = practice_of(how.recipe, 3 * 1024 + 300, 0, how.in_place, how.scales);
  std::vector<Scene> whole(2, scene_of(practice, formation));
  Waits result;
  for (std::size_t rank = 0; rank < whole[0].programs.size(); ++rank) {
    drop_repeated(whole[0].programs[rank]);
    const std::vector<Primitive>& steps = whole[0].programs[rank].steps;
    const std::vector<std::uint64_t> counts = awaited(whole[0].programs[rank]);
    for (std::size_t step = 0; step < steps.size(); ++step) {
      if (counts[step] == 0) continue;
      std::vector<Scene> cut = whole;
      std::vector<Primitive>& others = cut[0].programs[rank].steps;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(step));
      const std::string proof = proof_of(cut, Wires::kBuffered);
      if (proof.starts_with("race")) {
        ++result.needed;
        continue;
      }
      bool later = false;
      for (std::size_t i = step + 1; i < steps.size(); ++i)
        later = later || (same_link(steps[i], steps[step]) && counts[i] >= counts[step]);
      EXPECT_TRUE(later) << "rank " << rank << " step " << step << " of " << steps.size() << ": "
                         << (steps[step].kind == Kind::kSent ? "sent to " : "received from ") << steps[step].whom
                         << " but " << steps[step].value << ": " << proof.substr(0, 200);
      ++result.pacing;
    }
  }
  return result;
}

TEST(MessagePlanOf, AWaitLeftOutIsFound) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.kind == Collective::kBarrier) continue;  // has no bytes
    const bool by_levels = recipe.algorithm == Algorithm::kTree || recipe.algorithm == Algorithm::kDoubling ||
                           recipe.algorithm == Algorithm::kRelay;
    for (const bool in_place : {false, true}) {
      for (const bool scales : {false, true}) {
        if (scales && !reduces(recipe.kind)) continue;
        const Waits waits = leave_out_each({recipe, by_levels ? 4 : 3, in_place, scales});
        EXPECT_GT(waits.needed, 0) << recipe_name(recipe);
        RecordProperty(recipe_name(recipe) + (in_place ? "_in_place" : "") + (scales ? "_scaled" : ""),
                       std::to_string(waits.needed) + " needed, " + std::to_string(waits.pacing) + " for pace");
      }
    }
  }
}

// A group of each rank: messages between two ranks in the same order on both sides, else any.
std::vector<std::vector<UserMessage>> random_groups(int nranks, int messages, std::uint64_t max_bytes,
                                                    std::mt19937& random) {
  std::vector<std::vector<UserMessage>> groups(static_cast<std::size_t>(nranks));
  std::vector<std::uint64_t> used(groups.size(), 0);
  const auto add = [&](std::size_t rank, bool out, std::size_t other, std::uint64_t bytes) {
    groups[rank].push_back({out, static_cast<int>(other), reinterpret_cast<std::byte*>(used[rank]), bytes});
    used[rank] += bytes;
  };
  for (int i = 0; i < messages; ++i) {
    const std::size_t from = random() % groups.size();
    const std::size_t to = (from + 1 + random() % (groups.size() - 1)) % groups.size();
    const std::uint64_t bytes = random() % 4 == 0 ? 0 : random() % max_bytes;
    add(from, true, to, bytes);
    add(to, false, from, bytes);
  }
  for (std::vector<UserMessage>& group : groups) {
    std::vector<UserMessage> mixed = group;
    std::shuffle(mixed.begin(), mixed.end(), random);
    std::map<std::pair<bool, int>, std::vector<UserMessage>> in_order;
    for (auto message = group.rbegin(); message != group.rend(); ++message)
      in_order[{message->out, message->rank}].push_back(*message);
    for (UserMessage& message : mixed) {
      std::vector<UserMessage>& left = in_order[{message.out, message.rank}];
      message = left.back();
      left.pop_back();
    }
    group = mixed;
  }
  return groups;
}

TEST(MessagePlanOf, GroupsOfSendsAndReceivesAreProven) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    const int nranks = 2 + static_cast<int>(random() % 4), messages = 1 + static_cast<int>(random() % 60);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << nranks << " ranks, " << messages << " messages");
    std::vector<Scene> scenes;
    for (int call = 0; call < 2; ++call)
      scenes.push_back(scene_of(random_groups(nranks, messages, seed % 4 == 0 ? 3'000'000 : 3000, random)));
    scenes.push_back(scene_of(practice_of(*find_recipe(Algorithm::kRing, Collective::kAllReduce), 5000, 0, true, false),
                              formation_of(nranks)));
    expect_proven(scenes);
  }
}

// Both ways between two ranks, more than a link holds.
TEST(MessagePlanOf, GroupsOfMoreThanALinkHoldsAreProven) {
  for (const std::uint64_t count : {LinkEnd::kDepth, LinkEnd::kDepth + 1, 3 * LinkEnd::kDepth + 5}) {
    std::vector<std::vector<UserMessage>> groups(2);
    for (std::uint64_t i = 0; i < count; ++i) {
      for (const bool out : {true, false}) {
        auto* const place = reinterpret_cast<std::byte*>((2 * i + (out ? 1 : 0)) * 100);
        groups[0].push_back({out, 1, place, 100});
        groups[1].push_back({!out, 0, place, 100});
      }
    }
    expect_proven(std::vector<Scene>{scene_of(groups), scene_of(groups)});
  }
}

// What the checker must see: ranks that each wait for the other to receive first.
TEST(MessagePlanOf, ACircleIsFound) {
  Scene scene;
  scene.call = {.kind = Collective::kMessage, .type = DataType::kU8};
  for (const int other : {1, 0}) {
    Program& program = scene.programs.emplace_back();
    program.send(other, {Space::kAddress, 0, 0}, 8);
    program.sent(other);
    program.receive(other, {Space::kAddress, 0, 8}, 8);
    program.received(other);
  }
  EXPECT_TRUE(proof_of({&scene, 1}, Wires::kRendezvous).starts_with("deadlock"));
  EXPECT_EQ(proof_of({&scene, 1}, Wires::kBuffered), "proven");  // a link that holds a message is enough
}

}  // namespace
}  // namespace slip
