// The rules of collectives, N1 to N10 of docs/semantics.md, on cpu and in virtual time.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "slip/plan.hpp"
#include "support/errors.hpp"
#include "support/gate.hpp"
#include "world_ranks.hpp"

namespace slip::test_rules {
namespace {

using test::expect_no_errors;
using test::fails;
using test::Gate;
using test::sim_world;
using test::WorldRanks;

constexpr std::chrono::milliseconds kMoment{5};  // in which nothing must happen

class CollectiveRules : public testing::TestWithParam<const char*> {
 protected:
  static std::string device() { return std::string(GetParam()) == "sim" ? sim_world() : GetParam(); }
  static CommunicatorOptions within(std::chrono::milliseconds timeout) {
    CommunicatorOptions options;
    options.timeout = timeout;
    return options;
  }
  static WorldRanks make(std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    return WorldRanks(device(), 2, within(timeout));
  }
  static Buffer numbers(const Device& on, std::uint32_t value, std::size_t count = 1000) {
    Buffer data = on.alloc(count * 4, MemoryKind::kPinned);
    std::ranges::fill(data.host_write<std::uint32_t>().span(), value);
    return data;
  }
  static std::uint32_t last(const Buffer& data) {
    const HostView<const std::uint32_t> view = data.host_read<std::uint32_t>();
    return view[view.span().size() - 1];
  }
  // Without the care of host_read for what is under way.
  static std::uint32_t peek(const std::uint32_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
  static std::string error_of(const Stream& stream) {
    try {
      stream.sync();
    } catch (const Error& error) {
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }
  static void add(Communicator& comm, Range data, StreamRef stream) {
    comm.all_reduce(data, data, DataType::kU32, ReduceOp::kSum, stream);
  }
};
INSTANTIATE_TEST_SUITE_P(On, CollectiveRules, testing::Values("cpu", "sim"),
                         [](const auto& one) { return std::string(one.param); });

const Kernel kIncrement{"increment", [](const Args& args) {
                          for (std::uint32_t& one : args.out<std::uint32_t>(0)) ++one;
                        }};

TEST_P(CollectiveRules, N1_ACallReturnsWhenItIsEnqueued) {
  WorldRanks ranks = make();
  const Buffer data[] = {numbers(ranks.devices[0], 1), numbers(ranks.devices[1], 2)};
  Gate gate(ranks.devices[0]);
  gate.hold(ranks.streams[0]);
  for (int i = 0; i < 3; ++i) add(ranks.comms[0], data[0], ranks.streams[0]);  // returns without the others
  EXPECT_FALSE(ranks.streams[0].query());
  for (int i = 0; i < 3; ++i) add(ranks.comms[1], data[1], ranks.streams[1]);
  EXPECT_FALSE(ranks.streams[1].sync_for(kMoment));
  gate.open();
  const Event end = ranks.streams[0].record();
  end.sync();
  ranks.sync();
  EXPECT_EQ(last(data[0]), 12U);
  EXPECT_EQ(last(data[1]), 12U);
}

TEST_P(CollectiveRules, N2_ACallStandsInItsStream) {
  WorldRanks ranks = make();
  const Buffer data[] = {numbers(ranks.devices[0], 0), numbers(ranks.devices[1], 1)};
  Gate gate(ranks.devices[0]);
  gate.hold(ranks.streams[0]);
  ranks.streams[0].launch(kIncrement, {.reads = {data[0]}, .writes = {data[0]}});
  for (std::size_t i = 0; i < 2; ++i) add(ranks.comms[i], data[i], ranks.streams[i]);
  ranks.streams[0].launch(kIncrement, {.reads = {data[0]}, .writes = {data[0]}});
  EXPECT_FALSE(ranks.streams[1].sync_for(kMoment));
  gate.open();
  ranks.sync();
  EXPECT_EQ(last(data[0]), 3U);
  EXPECT_EQ(last(data[1]), 2U);
}

TEST_P(CollectiveRules, N3_NothingArrivesBeforeAllHaveCome) {
  WorldRanks ranks(device(), 3, within(std::chrono::seconds(60)));
  std::vector<Buffer> data;
  for (std::size_t i = 0; i < 3; ++i) data.push_back(numbers(ranks.devices[i], static_cast<std::uint32_t>(i) + 1));
  const std::uint32_t* const words[] = {data[0].host_read<std::uint32_t>().begin(),
                                        data[1].host_read<std::uint32_t>().begin()};
  for (std::size_t i = 0; i < 2; ++i) add(ranks.comms[i], data[i], ranks.streams[i]);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(ranks.streams[i].sync_for(kMoment));
    EXPECT_EQ(peek(words[i]), i + 1);
  }
  add(ranks.comms[2], data[2], ranks.streams[2]);
  ranks.sync();
  for (const Buffer& one : data) EXPECT_EQ(last(one), 6U);
}

// A waiting call keeps its slot in a hardware queue.
TEST_P(CollectiveRules, N3_ACallThatWaitsHoldsItsQueue) {
  for (const int queues : {1, 8}) {
    WorldRanks ranks(Device::open_all(device(), 2, {.max_connections = queues}));
    const Buffer data = numbers(ranks.devices[0], 0);
    const Stream behind = ranks.devices[0].stream(StreamFlags::kNonBlocking);
    ranks.comms[0].barrier(ranks.streams[0]);
    behind.launch(kIncrement, {.reads = {data}, .writes = {data}});
    if (queues == 1) EXPECT_FALSE(behind.sync_for(kMoment));
    else behind.sync();
    ranks.comms[1].barrier(ranks.streams[1]);
    ranks.sync();
    behind.sync();
    EXPECT_EQ(last(data), 1U);
  }
}

TEST_P(CollectiveRules, N4_OneThreadMayServeAllRanks) {
  WorldRanks ranks(device(), 4, within(std::chrono::seconds(60)));
  std::vector<Buffer> data;
  for (const Device& each : ranks.devices) data.push_back(numbers(each, 1, 50'000));
  for (int i = 0; i < 3; ++i) {
    for (std::size_t rank = 0; rank < 4; ++rank) add(ranks.comms[rank], data[rank], ranks.streams[rank]);
  }
  ranks.sync();
  for (const Buffer& one : data) EXPECT_EQ(last(one), 64U);
}

TEST_P(CollectiveRules, N4_MessagesOfAGroupAreEnqueuedAtItsEnd) {
  WorldRanks ranks = make();
  const Buffer from = numbers(ranks.devices[0], 7), to = numbers(ranks.devices[1], 0);
  Group group;
  ranks.comms[0].send(from, 1, ranks.streams[0]);
  ranks.comms[1].recv(to, 0, ranks.streams[1]);
  ranks.sync();  // there is nothing to wait for
  EXPECT_EQ(last(to), 0U);
  group.end();
  ranks.sync();
  EXPECT_EQ(last(to), 7U);
}

TEST_P(CollectiveRules, N5_AGroupIsOnePointInAllItsStreams) {
  WorldRanks ranks = make();
  const Buffer sent = numbers(ranks.devices[0], 1), came = numbers(ranks.devices[0], 0),
               there = numbers(ranks.devices[1], 0), back = numbers(ranks.devices[1], 5);
  const Stream other = ranks.devices[0].stream(StreamFlags::kNonBlocking);
  Gate gate(ranks.devices[0]);
  gate.hold(other);
  other.launch(kIncrement, {.reads = {sent}, .writes = {sent}});  // before the group, in another stream than the send's
  Group group;
  ranks.comms[0].send(sent, 1, ranks.streams[0]);
  ranks.comms[0].recv(came, 1, other);
  ranks.comms[1].recv(there, 0, ranks.streams[1]);
  ranks.comms[1].send(back, 0, ranks.streams[1]);
  group.end();
  ranks.streams[0].launch(kIncrement, {.reads = {came}, .writes = {came}});  // and after it
  EXPECT_FALSE(ranks.streams[0].sync_for(kMoment));
  gate.open();
  ranks.sync();
  other.sync();
  EXPECT_EQ(last(there), 2U);
  EXPECT_EQ(last(came), 6U);
}

TEST_P(CollectiveRules, N6_AnotherOrderIsAnErrorOnAllRanks) {
  WorldRanks ranks = make();
  const Buffer data[] = {numbers(ranks.devices[0], 1), numbers(ranks.devices[1], 1)};
  Gate gate(ranks.devices[0]);  // once it is met every call throws
  gate.hold(ranks.streams[0]);
  add(ranks.comms[0], data[0], ranks.streams[0]);
  ranks.comms[0].broadcast(data[0], data[0], 0, ranks.streams[0]);
  ranks.comms[1].broadcast(data[1], data[1], 0, ranks.streams[1]);
  add(ranks.comms[1], data[1], ranks.streams[1]);
  gate.open();
  for (const Stream& stream : ranks.streams)
    EXPECT_TRUE(
        fails([&] { stream.sync(); }, ErrorCode::kMismatch, {"all_reduce of 1000 U32", "broadcast of 4000 U8"}));
}

TEST_P(CollectiveRules, N6_AnotherOrderOfTwoCommunicatorsEndsAtTheDeadline) {
  for (const bool own_streams : {true, false}) {
    // Long enough for calls that do not wait in a cycle.
    const auto timeout = own_streams ? std::chrono::milliseconds(60'000) : std::chrono::milliseconds(200);
    WorldRanks ranks = make(timeout);
    std::vector<Communicator> others = Communicator::init_all(ranks.devices, within(timeout));
    std::vector<Buffer> data;
    std::vector<Stream> sides;
    for (std::size_t i = 0; i < 4; ++i) data.push_back(numbers(ranks.devices[i / 2], 1));
    for (const Device& each : ranks.devices) sides.push_back(each.stream(StreamFlags::kNonBlocking));
    const auto stream = [&](std::size_t rank) -> const Stream& {
      return own_streams ? sides[rank] : ranks.streams[rank];
    };
    add(ranks.comms[0], data[0], ranks.streams[0]);
    add(others[0], data[1], stream(0));
    add(others[1], data[3], stream(1));
    add(ranks.comms[1], data[2], ranks.streams[1]);
    if (own_streams) {
      ranks.sync();
      for (const Stream& side : sides) side.sync();
      for (const Buffer& one : data) EXPECT_EQ(last(one), 2U);
    } else {
      // One of them reaches its deadline first and notifies the other.
      const std::string errors = error_of(ranks.streams[0]) + error_of(ranks.streams[1]);
      for (const char* words : {"timeout: rank ", "all_reduce of 1000 U32", "deadlock: rank "})
        EXPECT_NE(errors.find(words), std::string::npos) << errors;
    }
  }
}

// Not an error here: one call comes before the other, on each rank as it happens.
TEST_P(CollectiveRules, N7_TwoThreadsMayCallAtOnce) {
  constexpr int kCalls = 40;
  WorldRanks ranks = make();
  expect_no_errors(test::as_ranks(4, [&](int index) {
    const auto rank = static_cast<std::size_t>(index / 2);
    const Buffer from = numbers(ranks.devices[rank], 1), to = numbers(ranks.devices[rank], 0);
    const Stream stream = ranks.devices[rank].stream(StreamFlags::kNonBlocking);
    for (int i = 0; i < kCalls; ++i) ranks.comms[rank].all_reduce(to, from, DataType::kU32, ReduceOp::kSum, stream);
    stream.sync();
    EXPECT_EQ(last(to), 2U);
  }));
}

TEST_P(CollectiveRules, N8_ARankThatWaitsElsewhereIsNamed) {
  WorldRanks ranks = make(std::chrono::milliseconds(500));
  for (std::size_t i = 0; i < 2; ++i) ranks.comms[i].barrier(ranks.streams[i]);
  ranks.sync();
  ranks.comms[0].barrier(ranks.streams[0]);  // rank 1 is in another library, say
  EXPECT_TRUE(fails([&] { ranks.streams[0].sync(); }, ErrorCode::kTimeout,
                    {"barrier, call 2", "rank 1 (it ended barrier, call 1, ", "outside Slipstream since"}));
}

TEST_P(CollectiveRules, N9_ALaunchMatchesACall) {
  WorldRanks ranks = make();
  const Buffer data[] = {numbers(ranks.devices[0], 1), numbers(ranks.devices[1], 1)};
  ranks.streams[0].begin_capture();
  add(ranks.comms[0], data[0], ranks.streams[0]);
  Plan plan = ranks.streams[0].end_capture();
  ranks.streams[0].sync();
  EXPECT_EQ(last(data[0]), 1U);  // captured, it is nothing to anybody
  for (int i = 0; i < 2; ++i) ranks.streams[0].launch(plan);
  add(ranks.comms[0], data[0], ranks.streams[0]);
  for (int i = 0; i < 3; ++i) add(ranks.comms[1], data[1], ranks.streams[1]);
  ranks.sync();
  for (const Buffer& one : data) EXPECT_EQ(last(one), 8U);
}

TEST_P(CollectiveRules, N10_InANonBlockingStreamTheLegacyStreamDoesNotCount) {
  WorldRanks ranks = make();
  std::vector<Buffer> data;
  std::vector<Stream> blocking;
  for (const Device& each : ranks.devices) {
    data.push_back(numbers(each, 1));
    blocking.push_back(each.stream());
  }
  Gate gate(ranks.devices[0]);
  gate.hold(ranks.devices[0].legacy_stream());
  for (std::size_t i = 0; i < 2; ++i) add(ranks.comms[i], data[i], ranks.streams[i]);
  ranks.sync();
  for (const Buffer& one : data) EXPECT_EQ(last(one), 2U);
  for (std::size_t i = 0; i < 2; ++i) add(ranks.comms[i], data[i], blocking[i]);
  EXPECT_FALSE(blocking[1].sync_for(kMoment));  // it waits for rank 0, whose stream waits for the legacy one
  gate.open();
  for (const Stream& stream : blocking) stream.sync();
  for (const Buffer& one : data) EXPECT_EQ(last(one), 4U);
}

// docs/semantics.md names every rule and every test of this suite, and none that does not exist.
TEST(CollectiveRulesAreDocumented, EveryOneWithItsTests) {
  std::stringstream text;
  text << std::ifstream(SLIP_SOURCE_DIR "/docs/semantics.md").rdbuf();
  const std::string document = text.str();
  for (int rule = 1; rule <= 10; ++rule)
    EXPECT_NE(document.find(fmt::format("\n| N{} |", rule)), std::string::npos) << "rule N" << rule;
  std::set<std::string> named, exist;
  for (std::size_t at = document.find("`N"); at != std::string::npos; at = document.find("`N", at + 1)) {
    const std::string name = document.substr(at + 1, document.find('`', at + 1) - at - 1);
    if (name.find('_') != std::string::npos) named.insert(name);
  }
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    if (std::string_view(suite.name()).find("CollectiveRules") == std::string_view::npos) continue;
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const std::string name = suite.GetTestInfo(t)->name();
      if (name.starts_with("N")) exist.insert(name.substr(0, name.find('/')));
    }
  }
  EXPECT_EQ(named, exist);
}

}  // namespace
}  // namespace slip::test_rules
