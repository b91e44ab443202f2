// verify(plan): what is proven, what is not, and what would mend it.
#include <gtest/gtest.h>

#include <random>

#include "slip/slip.hpp"
#include "support/kernels.hpp"
#include "support/share.hpp"

namespace slip::test::test_verify {
namespace {

class Verify : public testing::Test {
 protected:
  std::uint32_t add(std::uint32_t stream, std::vector<Range> reads, std::vector<Range> writes,
                    std::vector<std::uint32_t> waits = {}) {
    return plan.add({.stream = stream,
                     .kernel = &idle_kernel(),
                     .name = "op",
                     .here = Here::at(),
                     .reads = std::move(reads),
                     .writes = std::move(writes),
                     .waits = std::move(waits)});
  }
  std::uint32_t flag_op(OpKind kind, std::uint32_t stream, std::uint32_t value, std::vector<std::uint32_t> waits = {}) {
    PlanNode node{.stream = stream, .kind = kind, .value = value, .name = "flag", .waits = std::move(waits)};
    (kind == OpKind::kWaitValue ? node.reads : node.writes).push_back(flag);
    return plan.add(std::move(node));
  }
  Device device = Device::open("cpu");
  Buffer x = device.alloc(1024, MemoryKind::kDevice, "x");
  Buffer y = device.alloc(1024, MemoryKind::kDevice, "y");
  Buffer flag = device.alloc(4, MemoryKind::kDevice, "flag");
  Plan plan;
};

TEST_F(Verify, AnEmptyPlanIsProven) { EXPECT_TRUE(verify(plan).proven()); }

TEST_F(Verify, OrderByStreamAndByWaitsIsProven) {
  const auto a = add(0, {}, {x});
  add(0, {x}, {y});
  add(1, {x}, {}, {a});
  const Verification found = verify(plan);
  EXPECT_TRUE(found.proven()) << found.text(plan);
  EXPECT_TRUE(found.superfluous.empty()) << found.text(plan);
}

TEST_F(Verify, ARaceNamesBothOpsAndTheBytes) {
  add(0, {}, {x.slice(0, 600)});
  add(1, {x.slice(500, 300)}, {y});
  const Verification found = verify(plan);
  ASSERT_EQ(found.verdict, Verdict::kRace);
  ASSERT_EQ(found.races.size(), 1U);
  EXPECT_EQ(found.races[0].first, 0U);
  EXPECT_EQ(found.races[0].second, 1U);
  EXPECT_EQ(found.races[0].buffer, "x");
  EXPECT_EQ(found.races[0].offset, 500U);
  EXPECT_EQ(found.races[0].bytes, 100U);
  EXPECT_EQ(found.missing, (std::vector<Verification::Wait>{{1, 0}}));
  EXPECT_NE(found.text(plan).find("race: bytes 500 to 600 of buffer 'x'"), std::string::npos) << found.text(plan);
}

// One wait orders both readers; the third stream is reached through the second.
TEST_F(Verify, TheFixHasNoMoreWaitsThanNeeded) {
  add(0, {}, {x});
  add(1, {x}, {});
  add(1, {x}, {y});
  add(2, {x, y}, {});
  const Verification found = verify(plan);
  EXPECT_EQ(found.races.size(), 4U) << found.text(plan);
  EXPECT_EQ(found.missing, (std::vector<Verification::Wait>{{1, 0}, {3, 2}}));
}

// The streams of a captured plan keep their names, also when it is launched.
TEST_F(Verify, TextsNameStreamsByTheirNumbersAndNames) {
  const Stream origin = device.stream(), loads = device.stream({.name = "loads"});
  origin.begin_capture();
  loads.wait(origin.record());
  loads.launch(idle_kernel(), {.writes = {x}, .name = "load"});
  origin.launch(idle_kernel(), {.reads = {x}, .name = "use"});
  origin.wait(loads.record());
  Plan captured = origin.end_capture();
  EXPECT_EQ(captured.stream_name(0), Name());
  EXPECT_EQ(captured.stream_name(1), Name("loads"));
  EXPECT_EQ(captured.stream_name(2), Name());
  const std::string text = verify(captured).text(captured);
  for (const char* part : {"  written by op 0 'load' (stream 1 'loads', ", "  read by op 1 'use' (stream 0, ",
                           "fix: op 1 'use' (stream 0, ", "must wait for op 0 'load' (stream 1 'loads', "})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  EXPECT_NE(captured.describe().find("stream 1 'loads'  compute"), std::string::npos) << captured.describe();
  EXPECT_NE(captured.describe().find("stream 0          compute"), std::string::npos) << captured.describe();
  Trace trace;
  origin.launch(captured);
  device.sync();
  trace.stop();
  const TraceData data = trace.data();
  const RaceReport report = check_races(data);
  ASSERT_EQ(report.races.size(), 1U) << report.text();
  EXPECT_EQ(report.races[0].first.stream_name, "loads");
  EXPECT_EQ(report.races[0].second.stream_name, "");
}

TEST_F(Verify, WaitsThatNobodyNeedsAreNamed) {
  const auto a = add(0, {}, {x});
  const auto b = add(1, {x}, {}, {a});
  const auto c = add(1, {}, {y}, {a});  // b waited for a already
  add(2, {y}, {}, {b, c});              // b comes before c
  add(3, {}, {flag}, {c});              // no bytes in common
  const Verification found = verify(plan);
  EXPECT_TRUE(found.proven());
  EXPECT_EQ(found.superfluous, (std::vector<Verification::Wait>{{2, 0}, {3, 1}, {4, 2}})) << found.text(plan);
}

TEST_F(Verify, AnOpaqueOpIsUnknownAndItsWaitsAreKept) {
  const auto a = add(0, {}, {x});
  plan.add({.stream = 1, .kind = OpKind::kHost, .opaque = true, .name = "callback", .host = [] {}, .waits = {a}});
  const Verification found = verify(plan);
  EXPECT_EQ(found.verdict, Verdict::kUnknown);
  EXPECT_EQ(found.unknown, (std::vector<std::uint32_t>{1}));
  EXPECT_TRUE(found.superfluous.empty());
  EXPECT_NE(found.text(plan).find("'callback'"), std::string::npos);
}

TEST_F(Verify, AFlagOrdersOpsInAnyOrderOfIssue) {
  flag_op(OpKind::kWaitValue, 1, 1);
  add(1, {x}, {});
  add(0, {}, {x});
  flag_op(OpKind::kWriteValue, 0, 1);
  const Verification found = verify(plan);
  EXPECT_TRUE(found.proven()) << found.text(plan);
}

// Two streams in turns, each counting its own flag up: what lets the first wait go is the first write, and the last one
// comes long after it.
TEST_F(Verify, FlagsThatCountUpAlternateTwoStreams) {
  const Buffer answer = device.alloc(4, MemoryKind::kDevice, "answer");
  const auto turns = [&](std::uint32_t stream, const Buffer& mine, const Buffer& other, std::uint32_t left_out) {
    for (std::uint32_t turn = 1; turn <= 3; ++turn) {
      PlanNode wait{.stream = stream, .kind = OpKind::kWaitValue, .value = turn - (stream == 0), .name = "wait"};
      wait.reads.push_back(other);
      if (wait.value > 0 && !(stream == 0 && turn == left_out)) plan.add(std::move(wait));
      add(stream, {}, {x});
      PlanNode write{.stream = stream, .kind = OpKind::kWriteValue, .value = turn, .name = "write"};
      write.writes.push_back(mine);
      plan.add(std::move(write));
    }
  };
  turns(0, flag, answer, 0);
  turns(1, answer, flag, 0);
  EXPECT_TRUE(verify(plan).proven()) << verify(plan).text(plan);
  for (const std::uint32_t left_out : {2U, 3U}) {
    plan = Plan();
    turns(0, flag, answer, left_out);
    turns(1, answer, flag, left_out);
    EXPECT_EQ(verify(plan).verdict, Verdict::kRace) << left_out;
  }
}

// Stream 2 also writes a value that would end the wait of stream 1. If it writes only after the read that follows the
// wait, then stream 0 ended the wait. Otherwise stream 2 may have ended it before stream 0 wrote x.
TEST_F(Verify, AWriterThatComesAfterTheWaitDoesNotEndIt) {
  for (const bool waits : {true, false}) {
    plan = Plan();
    add(0, {}, {x});
    flag_op(OpKind::kWriteValue, 0, 1);
    flag_op(OpKind::kWaitValue, 1, 1);
    const auto read = add(1, {x}, {});
    flag_op(OpKind::kWriteValue, 2, 2, waits ? std::vector{read} : std::vector<std::uint32_t>());
    const Verification found = verify(plan);
    EXPECT_EQ(found.verdict, waits ? Verdict::kProven : Verdict::kRace) << found.text(plan);
  }
}

// The same, but another flag makes stream 2 write after the read. It does not if stream 3 may set that flag, too.
TEST_F(Verify, AWriterThatAnotherFlagHoldsBackDoesNotEndTheWait) {
  const Buffer other = device.alloc(4, MemoryKind::kDevice, "other");
  const auto other_op = [&](OpKind kind, std::uint32_t stream) {
    PlanNode node{.stream = stream, .kind = kind, .value = 1, .name = "other"};
    (kind == OpKind::kWaitValue ? node.reads : node.writes).push_back(other);
    plan.add(std::move(node));
  };
  for (const bool has_stream_3 : {false, true}) {
    plan = Plan();
    add(0, {}, {x});
    flag_op(OpKind::kWriteValue, 0, 1);
    flag_op(OpKind::kWaitValue, 1, 1);
    add(1, {x}, {});
    other_op(OpKind::kWriteValue, 1);
    other_op(OpKind::kWaitValue, 2);
    flag_op(OpKind::kWriteValue, 2, 2);
    if (has_stream_3) other_op(OpKind::kWriteValue, 3);
    const Verification found = verify(plan);
    EXPECT_EQ(found.verdict, has_stream_3 ? Verdict::kRace : Verdict::kProven) << found.text(plan);
  }
}

TEST_F(Verify, AFlagThatNoOpWritesIsUnknown) {
  flag_op(OpKind::kWaitValue, 0, 2);
  flag_op(OpKind::kWriteValue, 1, 1);
  EXPECT_EQ(verify(plan).verdict, Verdict::kUnknown);
}

TEST_F(Verify, ACircleIsADeadlock) {
  flag_op(OpKind::kWaitValue, 0, 1);
  const auto b = add(0, {}, {x});
  const auto c = add(1, {x}, {}, {b});
  const auto d = flag_op(OpKind::kWriteValue, 1, 1);
  const Verification found = verify(plan);
  EXPECT_EQ(found.verdict, Verdict::kDeadlock);
  EXPECT_EQ(found.cycle, (std::vector<std::uint32_t>{0, d, c, b}));
  EXPECT_NE(found.text(plan).find("deadlock: op 0 'flag'"), std::string::npos) << found.text(plan);
}

// The plan with other waits: `change` gets each op's.
template <class Change>
Plan with_waits(const Plan& plan, const Change& change) {
  Plan result;
  for (std::uint32_t op = 0; op < plan.nodes().size(); ++op) {
    PlanNode node = plan.nodes()[op];
    change(op, node.waits);
    result.add(std::move(node));
  }
  return result;
}

Plan with(const Plan& plan, const std::vector<Verification::Wait>& waits) {
  return with_waits(plan, [&](std::uint32_t op, std::vector<std::uint32_t>& list) {
    for (const Verification::Wait& wait : waits) {
      if (wait.op == op) list.push_back(wait.other);
    }
  });
}

Plan without(const Plan& plan, const std::vector<Verification::Wait>& waits) {
  return with_waits(plan, [&](std::uint32_t op, std::vector<std::uint32_t>& list) {
    for (const Verification::Wait& wait : waits) {
      const auto found = wait.op == op ? std::find(list.begin(), list.end(), wait.other) : list.end();
      if (found != list.end()) list.erase(found);
    }
  });
}

// Random plans: what is missing mends them, and nothing of it can be left out; what is superfluous can go, all at once,
// and what is left is needed.
TEST_F(Verify, RandomPlansAreMendedWithNoWaitTooMuch) {
  std::size_t missing = 0, superfluous = 0;
  for (std::uint32_t seed = 1; seed <= 300 / test::kShare; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    plan = Plan();
    const auto pick = [&](std::uint32_t limit) { return static_cast<std::uint32_t>(random() % limit); };
    for (std::uint32_t i = 0; i < 24; ++i) {
      std::vector<Range> reads, writes;
      (pick(2) ? reads : writes).push_back(x.slice(64 * pick(8), 64 * (1 + pick(4))));
      std::vector<std::uint32_t> waits;
      for (std::uint32_t tries = pick(4); i > 0 && tries > 0; --tries) waits.push_back(pick(i));
      add(pick(4), reads, writes, waits);
    }
    const std::vector<Verification::Wait> fixes = verify(plan).missing;
    missing += fixes.size();
    for (std::size_t k = 0; k < fixes.size(); ++k) {
      std::vector<Verification::Wait> fewer = fixes;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(k));
      ASSERT_EQ(verify(with(plan, fewer)).verdict, Verdict::kRace) << "fix " << k;
    }
    const Plan mended = with(plan, fixes);
    const Verification proof = verify(mended);
    ASSERT_TRUE(proof.proven()) << proof.text(mended);
    const Plan slim = without(mended, proof.superfluous);
    superfluous += proof.superfluous.size();
    ASSERT_TRUE(verify(slim).proven()) << verify(slim).text(slim);
    for (std::uint32_t op = 0; op < slim.nodes().size(); ++op) {
      for (const std::uint32_t other : slim.nodes()[op].waits)
        ASSERT_EQ(verify(without(slim, {{op, other}})).verdict, Verdict::kRace) << op << " waits for " << other;
    }
  }
  EXPECT_GT(missing, 300U / test::kShare);
  EXPECT_GT(superfluous, 300U / test::kShare);
}

}  // namespace
}  // namespace slip::test::test_verify
