// The programs of all ranks as one plan: each rank is a stream, what they share are buffers, posts and phases are
// words. The checker proves that no two ranks touch the same bytes at the same time, and that they do not wait in a
// circle.
#include <gtest/gtest.h>

#include <functional>

#include "comm/host_plan.hpp"
#include "slip/device.hpp"
#include "slip/kernel.hpp"
#include "slip/plan.hpp"
#include "slip/verify.hpp"

namespace slip {
namespace {

using Layout = SharedLayout;

const Kernel kReduce{"reduce", [](const Args&) {}};
const Kernel kUse{"use", [](const Args&) {}};

// Which ranks let others at their buffers, and whether input and output are one.
struct Setting {
  std::function<bool(int rank)> offers = [](int) { return false; };
  bool in_place = false;
};
const std::function<bool(int)> kAllOffer = [](int) { return true; };

// Waits that are left out on purpose.
struct LeftOut {
  int rank = -1;
  int wait = -1;      // of that rank, counted over all calls, but not those for room
  bool room = false;  // all waits for room
};

class Rehearsal {
 public:
  explicit Rehearsal(int nranks) : nranks_(nranks) {
    for (int rank = 0; rank < nranks; ++rank) {
      streams_.push_back(device_.stream(StreamFlags::kNonBlocking));
      shared_.push_back(device_.alloc(Layout::kRankBytes));
      words_.push_back(device_.alloc((Layout::kTurns + 1) * 4));
    }
    waits_.assign(static_cast<std::size_t>(nranks), 0);
  }

  // Each rank uses its buffers before each call and after it, and in all calls the same.
  Plan plan(const std::vector<Call>& calls, LeftOut left_out, const Setting& setting = {}) {
    for (int rank = 0; rank < nranks_; ++rank) {
      std::uint64_t bytes = 1;
      for (const Call& call : calls) {
        const Blocks blocks = blocks_of(call, rank, nranks_);
        bytes = std::max(bytes, std::max(blocks.in, blocks.out) * call.block_bytes());
      }
      inputs_.push_back(device_.alloc(bytes));
      outputs_.push_back(device_.alloc(setting.in_place ? 1 : bytes));
    }
    const Stream origin = device_.stream(StreamFlags::kNonBlocking);
    origin.begin_capture();
    const Event begun = origin.record();
    for (const Stream& stream : streams_) stream.wait(begun);
    std::uint64_t number = 0, chunks = 0, phase = 0;
    for (const Call& call : calls) {
      ++number;
      std::vector<Stance> stances;
      bool any_private = false, any_offered = false;
      for (int rank = 0; rank < nranks_; ++rank) {
        place(call, rank, setting.in_place);
        stances.push_back(stance(call, rank, setting));
        if (!DirectPlan::depends_on(call, rank)) continue;
        any_private = any_private || stances.back() == Stance::kPrivate;
        any_offered = any_offered || stances.back() == Stance::kOffered;
      }
      std::uint64_t here = 0, phases = 0;
      for (int rank = 0; rank < nranks_; ++rank) {
        HostPlan plan(call, number, chunks, rank, nranks_);
        plan.take(stances[static_cast<std::size_t>(rank)]);
        Program program;
        plan.write(0, program);
        if (plan.asks()) plan.choose(any_private, any_offered);
        for (std::uint64_t piece = 1; piece < plan.pieces(); ++piece) plan.write(piece, program);
        use(rank);
        issue(program, rank, number, phase, left_out);
        use(rank);
        paths_.push_back(plan.path());
        here = plan.chunks();
        phases = plan.phases();
      }
      chunks += here;
      phase += phases;
    }
    for (const Stream& stream : streams_) origin.wait(stream.record());
    return origin.end_capture();
  }
  int waits(int rank) const { return waits_[static_cast<std::size_t>(rank)]; }
  Path path() const { return paths_.back(); }  // of the last call

 private:
  static Stance stance(const Call& call, int rank, const Setting& setting) {
    const DirectPlan::Needs needs = DirectPlan::needs(call, rank);
    if (!needs.input && !needs.output) return Stance::kNothing;
    const bool one_way = setting.in_place && call.kind == Collective::kAllToAll;
    return setting.offers(rank) && !one_way ? Stance::kOffered : Stance::kPrivate;
  }
  // In place: the smaller of input and output is its part of the larger.
  void place(const Call& call, int rank, bool in_place) {
    const auto index = static_cast<std::size_t>(rank);
    const Blocks blocks = blocks_of(call, rank, nranks_);
    const std::uint64_t block = call.block_bytes(), own = static_cast<std::uint64_t>(rank) * block;
    if (places_.size() <= index) places_.resize(index + 1);
    const auto part = [&](std::uint64_t count, std::uint64_t other) { return in_place && count < other ? own : 0; };
    const Buffer& output = in_place ? inputs_[index] : outputs_[index];
    places_[index] = {inputs_[index].slice(blocks.in > 0 ? part(blocks.in, blocks.out) : 0, blocks.in * block),
                      output.slice(blocks.out > 0 ? part(blocks.out, blocks.in) : 0, blocks.out * block)};
  }
  void use(int rank) {
    const Placed& placed = places_[static_cast<std::size_t>(rank)];
    std::vector<Range> writes;
    if (placed.input.bytes > 0) writes.push_back(placed.input);
    if (placed.output.bytes > 0) writes.push_back(placed.output);
    if (!writes.empty()) streams_[static_cast<std::size_t>(rank)].launch(kUse, {.writes = writes});
  }
  Range range(const Place& place, int rank, std::uint64_t bytes) const {
    const Placed &own = places_[static_cast<std::size_t>(rank)], &peer = places_[place.rank];
    switch (place.space) {
      case Space::kInput: return own.input.slice(place.offset, bytes);
      case Space::kOutput: return own.output.slice(place.offset, bytes);
      case Space::kStaging: return shared_[place.rank].slice(place.offset, bytes);
      case Space::kPeerInput: return peer.input.slice(place.offset, bytes);
      case Space::kPeerOutput: return peer.output.slice(place.offset, bytes);
      case Space::kScratch:
      case Space::kAddress: break;  // of programs by messages
    }
    return {};
  }
  Range word(int rank, std::uint64_t index) const { return words_[static_cast<std::size_t>(rank)].slice(index * 4, 4); }

  // Words count from 1: phase 0 of the first call is reached before anybody says so.
  void await(int rank, int other, std::uint64_t index, std::uint64_t value, LeftOut left_out) {
    if (value == 0) return;
    const int wait = waits_[static_cast<std::size_t>(rank)]++;
    if (left_out.rank == rank && left_out.wait == wait) return;
    streams_[static_cast<std::size_t>(rank)].wait_value(word(other, index), static_cast<std::uint32_t>(value));
  }

  void issue(const Program& program, int rank, std::uint64_t number, std::uint64_t phase, LeftOut left_out) {
    const Stream& stream = streams_[static_cast<std::size_t>(rank)];
    const auto others = [&](const std::function<void(int)>& body) {
      for (int other = 0; other < nranks_; ++other) {
        if (other != rank) body(other);
      }
    };
    for (const Primitive& step : program.steps) {
      const Place* const places = program.places.data() + step.first;
      switch (step.kind) {
        case Primitive::Kind::kCopy: {
          const Range to = range(places[0], rank, step.bytes), from = range(places[1], rank, step.bytes);
          if (to.block != from.block || to.offset != from.offset) stream.copy(to, from);
          break;
        }
        case Primitive::Kind::kReduce: {
          std::vector<Range> reads, writes;
          for (int i = 0; i < step.targets; ++i) writes.push_back(range(places[i], rank, step.bytes));
          for (int i = 0; i < step.sources; ++i) reads.push_back(range(places[step.targets + i], rank, step.bytes));
          stream.launch(kReduce, {.reads = reads, .writes = writes});
          break;
        }
        case Primitive::Kind::kRoom: {
          const std::uint64_t needed = number < step.value ? 0 : number - step.value;
          if (needed == 0 || left_out.room) break;
          others([&](int other) {
            stream.wait_value(word(other, needed % Layout::kTurns), static_cast<std::uint32_t>(needed));
          });
          break;
        }
        case Primitive::Kind::kPost:
          stream.write_value(word(rank, number % Layout::kTurns), static_cast<std::uint32_t>(number));
          break;
        case Primitive::Kind::kMeet:
          others([&](int other) {
            if (step.whom == kEverybody || step.whom == static_cast<std::uint64_t>(other))
              await(rank, other, number % Layout::kTurns, number, left_out);
          });
          break;
        case Primitive::Kind::kEnter:
        case Primitive::Kind::kSignal:
          stream.write_value(word(rank, Layout::kTurns), static_cast<std::uint32_t>(phase + step.value));
          break;
        case Primitive::Kind::kWait:
          others([&](int other) {
            if (step.whom == kEverybody || step.whom == static_cast<std::uint64_t>(other))
              await(rank, other, Layout::kTurns, phase + step.value, left_out);
          });
          break;
        case Primitive::Kind::kSend:
        case Primitive::Kind::kReceive:
        case Primitive::Kind::kSent:
        case Primitive::Kind::kReceived: FAIL() << "no messages here";
      }
    }
  }

  const int nranks_;
  const Device device_ = Device::open("sim:h200", {.run_functions = false});
  std::vector<Stream> streams_;
  struct Placed {
    Range input, output;
  };
  std::vector<Buffer> shared_, words_, inputs_, outputs_;
  std::vector<Placed> places_;  // of the present call, by rank
  std::vector<Path> paths_;
  std::vector<int> waits_;
};

constexpr Collective kAll[] = {Collective::kAllReduce,     Collective::kReduce,   Collective::kBroadcast,
                               Collective::kAllGather,     Collective::kAllToAll, Collective::kGather,
                               Collective::kReduceScatter, Collective::kScatter,  Collective::kBarrier};

Call call_of(Collective kind, std::uint64_t bytes) {
  return {.kind = kind, .type = DataType::kU8, .root = 1, .elements = kind == Collective::kBarrier ? 0 : bytes};
}

class SharedPlans : public testing::TestWithParam<Collective> {};

// Twice, so that what one call leaves behind is met by the next; of one, two and several chunks.
TEST_P(SharedPlans, NoTwoRanksAreInEachOthersWay) {
  for (const int nranks : {2, 3, 4}) {
    for (const std::uint64_t bytes : {100U, 5000U, 300'000U, 1'100'000U, 2'700'001U}) {
      SCOPED_TRACE(testing::Message() << nranks << " ranks, " << bytes << " bytes");
      Rehearsal rehearsal(nranks);
      const Call call = call_of(GetParam(), bytes);
      const Plan plan = rehearsal.plan({call, call, call}, {});
      const Verification proof = verify(plan);
      EXPECT_TRUE(proof.proven()) << proof.text(plan).substr(0, 2000);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, SharedPlans, testing::ValuesIn(kAll),
                         [](const auto& of) { return std::string(collective_name(of.param)); });

// Slots and boxes go round: more calls than there are, of kinds in which somebody gives and waits for nobody.
TEST_P(SharedPlans, BoxesAreUsedAgainOnlyWhenEmpty) {
  for (const std::uint64_t bytes : {30U, 5000U}) {
    Rehearsal rehearsal(3);
    const Plan plan = rehearsal.plan(std::vector<Call>(3 * Layout::kTurns, call_of(GetParam(), bytes)), {});
    const Verification proof = verify(plan);
    EXPECT_TRUE(proof.proven()) << bytes << " bytes\n" << proof.text(plan).substr(0, 2000);
  }
}

TEST(SharedPlanOf, CallsOfAllKindsOneAfterTheOther) {
  std::vector<Call> calls;
  for (const std::uint64_t bytes : {40U, 700'000U, 9000U, 1'600'000U}) {
    for (const Collective kind : kAll) calls.push_back(call_of(kind, bytes));
  }
  Rehearsal rehearsal(3);
  const Plan plan = rehearsal.plan(calls, {});
  const Verification proof = verify(plan);
  EXPECT_TRUE(proof.proven()) << proof.text(plan).substr(0, 2000);
}

// Roots that change, and that do not: who gives may be ahead of who takes.
TEST(SharedPlanOf, BroadcastsFromSeveralRoots) {
  std::vector<Call> calls;
  for (const std::uint64_t bytes : {40'000U, 700'000U, 100U, 1'700'000U, 40'000U}) {
    for (const int root : {0, 0, 1, 2, 2, 0}) {
      calls.push_back(call_of(Collective::kBroadcast, bytes));
      calls.back().root = root;
    }
    calls.push_back(call_of(Collective::kAllReduce, bytes));
  }
  Rehearsal rehearsal(3);
  const Plan plan = rehearsal.plan(calls, {});
  const Verification proof = verify(plan);
  EXPECT_TRUE(proof.proven()) << proof.text(plan).substr(0, 2000);
}

// The checker sees what it should: without one of its waits a program of several chunks races.
TEST(SharedPlanOf, AWaitLeftOutIsFound) {
  const std::vector<Call> calls(2, call_of(Collective::kAllReduce, 2'100'000));
  Rehearsal whole(2);
  ASSERT_TRUE(verify(whole.plan(calls, {})).proven());
  ASSERT_GT(whole.waits(0), 8);
  for (int wait = 0; wait < whole.waits(0); ++wait) {
    Rehearsal cut(2);
    EXPECT_EQ(verify(cut.plan(calls, {0, wait})).verdict, Verdict::kRace) << "wait " << wait;
  }
}

// Where buffers lie: all offered, of some ranks only, in place and not.
TEST_P(SharedPlans, BuffersInReachAreNotInEachOthersWay) {
  const Setting settings[] = {{kAllOffer, false},
                              {kAllOffer, true},
                              {[](int rank) { return rank != 1; }, false},
                              {[](int rank) { return rank == 1; }, true}};
  for (const int nranks : {2, 3, 4}) {
    for (const std::uint64_t bytes : {100U, 30'000U, 1'100'001U}) {
      for (const Setting& setting : settings) {
        SCOPED_TRACE(testing::Message() << nranks << " ranks, " << bytes << " bytes, offered by 0: "
                                        << setting.offers(0) << ", in place " << setting.in_place);
        Rehearsal rehearsal(nranks);
        const Call call = call_of(GetParam(), bytes);
        const Plan plan = rehearsal.plan({call, call, call}, {}, setting);
        const Verification proof = verify(plan);
        EXPECT_TRUE(proof.proven()) << proof.text(plan).substr(0, 2000);
        const bool direct = setting.offers(0) && setting.offers(1) && bytes > 100 &&
                            GetParam() != Collective::kBarrier &&
                            !(setting.in_place && GetParam() == Collective::kAllToAll);
        EXPECT_EQ(rehearsal.path() == Path::kDirect,
                  direct || (DirectPlan::from_root(GetParam()) && setting.offers(1) && bytes > 100));
      }
    }
  }
}

TEST(SharedPlanOf, CallsOfBothWaysOneAfterTheOther) {
  std::vector<Call> calls;
  for (const std::uint64_t bytes : {700'000U, 40U, 1'600'000U, 9000U}) {
    for (const Collective kind : kAll) calls.push_back(call_of(kind, bytes));
  }
  for (const bool in_place : {false, true}) {
    int turn = 0;
    Rehearsal rehearsal(3);
    // Some ranks, all or none, changing from call to call.
    const Plan plan = rehearsal.plan(calls, {}, {[&](int rank) { return (turn++ / 3 * 5 + rank) % 4 != 0; }, in_place});
    const Verification proof = verify(plan);
    EXPECT_TRUE(proof.proven()) << proof.text(plan).substr(0, 2000);
  }
}

// Each wait of a call that is done where buffers lie keeps somebody's buffer from being used too early. (In gather,
// ranks that do not touch each other's wait, too, to know the same.)
TEST_P(SharedPlans, AWaitForABufferLeftOutIsFound) {
  if (GetParam() == Collective::kBarrier || GetParam() == Collective::kGather) return;
  const std::vector<Call> calls(2, call_of(GetParam(), 100'000));
  for (const int nranks : {2, 3}) {
    Rehearsal whole(nranks);
    ASSERT_TRUE(verify(whole.plan(calls, {}, {kAllOffer})).proven());
    ASSERT_EQ(whole.path(), Path::kDirect);
    for (int rank = 0; rank < nranks; ++rank) {
      ASSERT_GE(whole.waits(rank), 2);
      for (int wait = 0; wait < whole.waits(rank); ++wait) {
        Rehearsal cut(nranks);
        EXPECT_EQ(verify(cut.plan(calls, {rank, wait}, {kAllOffer})).verdict, Verdict::kRace)
            << nranks << " ranks: wait " << wait << " of rank " << rank;
      }
    }
  }
}

// A root that waits for nobody would write what others still read.
TEST(SharedPlanOf, RoomLeftOutIsFound) {
  for (const std::uint64_t bytes : {5000U, 40'000U}) {
    std::vector<Call> calls(3 * Layout::kTurns, call_of(Collective::kBroadcast, bytes));
    Rehearsal whole(3);
    EXPECT_TRUE(verify(whole.plan(calls, {})).proven());
    Rehearsal cut(3);
    EXPECT_EQ(verify(cut.plan(calls, {.room = true})).verdict, Verdict::kRace) << bytes << " bytes";
  }
}

}  // namespace
}  // namespace slip
