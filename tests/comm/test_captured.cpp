// Calls of communicators in plans: captured once; each launch of the plan is a new call.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/sync.hpp"
#include "cpu_ranks.hpp"
#include "slip/verify.hpp"
#include "support/errors.hpp"
#include "support/gate.hpp"

namespace slip::test_captured {
namespace {

using test::Bytes;
using test::expect_no_errors;
using test::fails;
using test::Gate;
using test::Met;
using test::Rank;

const Kernel kIncrement{"increment", [](const Args& args) {
                          for (std::uint32_t& one : args.out<std::uint32_t>(0)) ++one;
                        }};

const Kernel kLook{"look", [](const Args&) {}};

Buffer numbers(const Device& device, std::size_t count, std::uint32_t value, const char* name = "numbers") {
  Buffer buffer = device.alloc(count * 4, MemoryKind::kPinned, name);
  std::ranges::fill(buffer.host_write<std::uint32_t>().span(), value);
  return buffer;
}

void expect_all(const Buffer& buffer, std::uint32_t value) {
  const HostView<const std::uint32_t> view = buffer.host_read<std::uint32_t>();
  EXPECT_EQ(std::ranges::count(view.span(), value), std::ssize(view.span())) << view[0] << " instead of " << value;
}

void increment(StreamRef stream, Range data) { stream.launch(kIncrement, {.reads = {data}, .writes = {data}}); }

class Captured : public testing::TestWithParam<Transport> {
 protected:
  static std::vector<Met> with_ranks(int count, const std::function<void(Rank&)>& body) {
    CommunicatorOptions options;
    options.transport = GetParam();
    options.timeout = std::chrono::seconds(60);
    return test::with_ranks(count, body, options);
  }
};
INSTANTIATE_TEST_SUITE_P(All, Captured, testing::Values(Transport::kAuto, Transport::kNet),
                         [](const auto& one) { return one.param == Transport::kAuto ? "auto" : "net"; });

// Between two launches the ranks make a call that is not part of the plan.
TEST_P(Captured, EachLaunchIsAnotherCall) {
  expect_no_errors(with_ranks(3, [](Rank& rank) {
    for (const std::size_t count : {1U, 50'000U}) {
      const Buffer data = numbers(rank.device, count, 0);
      rank.stream.begin_capture();
      increment(rank.stream, data);
      rank.comm.all_reduce(data, data, DataType::kU32, ReduceOp::kSum, rank.stream);
      Plan plan = rank.stream.end_capture();
      ASSERT_EQ(plan.nodes().size(), 2U);
      EXPECT_EQ(plan.nodes()[1].kind, OpKind::kExchange);
      EXPECT_EQ(plan.nodes()[1].cost.bytes, 2 * count * 4);
      EXPECT_NE(plan.describe().find("all_reduce"), std::string::npos);
      rank.stream.sync();
      expect_all(data, 0);  // captured work does not run
      rank.stream.launch(plan);
      rank.comm.all_reduce(data, data, DataType::kU32, ReduceOp::kSum, rank.stream);
      rank.stream.launch(plan);
      rank.stream.launch(plan);
      rank.stream.sync();
      expect_all(data, (((0 + 1) * 3 * 3 + 1) * 3 + 1) * 3);
    }
  }));
}

// Every kind of call, with sizes that take different paths.
void capture_all(Rank& rank, Range part, Range whole, Range other) {
  const int n = rank.comm.nranks(), own = rank.comm.rank(), next = (own + 1) % n, before = (own + n - 1) % n;
  Communicator& comm = rank.comm;
  comm.all_gather(whole, part, rank.stream);
  comm.all_to_all(other, whole, rank.stream);
  comm.all_reduce_scaled(whole, other, DataType::kU32, 2, rank.stream);
  comm.reduce_scatter(part, whole, DataType::kU32, ReduceOp::kSum, rank.stream);
  comm.barrier(rank.stream);
  comm.gather(whole, part, 1, rank.stream);
  comm.scatter(part, whole, 1, rank.stream);
  comm.reduce(other.slice(0, part.bytes), part, DataType::kU32, ReduceOp::kMax, 0, rank.stream);
  comm.broadcast(part, other.slice(0, part.bytes), 0, rank.stream);
  Group group;
  comm.send(part, next, rank.stream);
  comm.recv(other.slice(0, part.bytes), before, rank.stream);
  comm.send(part, own, rank.stream);
  comm.recv(other.slice(part.bytes, part.bytes), own, rank.stream);
  comm.send(part.slice(0, 0), next, rank.stream);
  comm.recv(part.slice(0, 0), before, rank.stream);
  group.end();
}

TEST_P(Captured, DoesWhatTheCallsThemselvesDo) {
  expect_no_errors(with_ranks(3, [](Rank& rank) {
    for (const std::size_t count : {6U, 3000U, 90'000U}) {
      const auto value = static_cast<std::uint32_t>(rank.comm.rank() + 1);
      Buffer part = numbers(rank.device, count, value), whole = numbers(rank.device, 3 * count, 0),
             other = numbers(rank.device, 3 * count, 0);
      capture_all(rank, part, whole, other);
      capture_all(rank, part, whole, other);
      const Bytes wanted = rank.download(other, 12 * count), wanted_part = rank.download(part, 4 * count);
      std::ranges::fill(part.host_write<std::uint32_t>().span(), value);
      rank.stream.begin_capture();
      capture_all(rank, part, whole, other);
      Plan plan = rank.stream.end_capture();
      EXPECT_EQ(verify(plan).verdict, Verdict::kProven);
      rank.stream.launch(plan);
      rank.stream.launch(plan);
      EXPECT_EQ(rank.download(other, 12 * count), wanted) << count;
      EXPECT_EQ(rank.download(part, 4 * count), wanted_part) << count;
    }
  }));
}

// Gradients in buckets: made on one stream, added on another while the next is made.
Plan buckets(Communicator& comm, const Stream& compute, const Stream& exchange, const std::vector<Buffer>& data) {
  compute.begin_capture();
  for (const Buffer& bucket : data) {
    increment(compute, bucket);
    exchange.wait(compute.record());
    comm.all_reduce(bucket, bucket, DataType::kU32, ReduceOp::kSum, exchange);
  }
  compute.wait(exchange.record());
  return compute.end_capture();
}

TEST(CapturedCalls, RunBesideCompute) {
  expect_no_errors(test::with_ranks(2, [](Rank& rank) {
    std::vector<Buffer> data;
    for (std::size_t i = 0; i < 6; ++i) data.push_back(numbers(rank.device, 1000 << i, 0));
    const Stream exchange = rank.device.stream();
    Plan plan = buckets(rank.comm, rank.stream, exchange, data);
    EXPECT_EQ(verify(plan).verdict, Verdict::kProven) << verify(plan).text(plan);
    for (int step = 0; step < 4; ++step) rank.stream.launch(plan);
    rank.stream.sync();
    for (const Buffer& bucket : data) expect_all(bucket, 30);  // 2 (2 (2 (2 + 1) + 1) + 1), and so on
  }));
}

bool comes_true(const std::function<bool()>& condition) {
  const std::int64_t deadline = base::now_ns() + 30'000'000'000;
  for (base::Backoff backoff; !condition(); backoff.pause()) {
    if (base::now_ns() > deadline) return false;
  }
  return true;
}

// One thread makes the calls of two ranks, so no call may block it.
class TwoRanks : public testing::Test {
 protected:
  const Device device_ = Device::open("cpu", {.compute_workers = 2});
  std::vector<Communicator> comms_ = Communicator::init_all(std::vector{device_, device_});
  const Stream first_ = device_.stream(StreamFlags::kNonBlocking), second_ = device_.stream(StreamFlags::kNonBlocking),
               side_ = device_.stream(StreamFlags::kNonBlocking);
  const Buffer mine_ = numbers(device_, 5000, 1, "mine"), theirs_ = numbers(device_, 5000, 2, "theirs");

  Plan sum_of(int rank, const Stream& stream, Range data) {
    stream.begin_capture();
    comms_[static_cast<std::size_t>(rank)].all_reduce(data, data, DataType::kU32, ReduceOp::kSum, stream);
    return stream.end_capture();
  }
};

// The kernels of a plan run while its call waits for a rank that has not joined it.
TEST_F(TwoRanks, WaitInOneStreamOnly) {
  Gate done(device_);
  first_.begin_capture();
  side_.wait(first_.record());
  comms_[0].all_reduce(mine_, mine_, DataType::kU32, ReduceOp::kSum, side_);
  first_.write_value(done.range(), 7);
  first_.wait(side_.record());
  Plan plan = first_.end_capture();
  first_.launch(plan);
  EXPECT_TRUE(comes_true([&] { return done.value() == 7; }));
  EXPECT_FALSE(first_.query());
  Plan other = sum_of(1, second_, theirs_);
  second_.launch(other);
  first_.sync();
  second_.sync();
  expect_all(mine_, 3);
  expect_all(theirs_, 3);
}

// A message to oneself is an op of its stream like the others: enqueuing it waits for nothing.
TEST_F(TwoRanks, SendToThemselvesWithoutWaiting) {
  const Buffer in = numbers(device_, 5000, 0);
  Gate gate(device_);
  gate.hold(first_);
  increment(first_, mine_);
  Group group;
  comms_[0].send(mine_, 0, first_);
  comms_[0].recv(in, 0, first_);
  group.end();
  EXPECT_FALSE(first_.query());
  gate.open();
  first_.sync();
  expect_all(in, 2);
  Group wrong;
  comms_[0].send(mine_, 0, first_);
  comms_[0].recv(in.slice(0, 8), 0, first_);
  EXPECT_TRUE(fails([&] { wrong.end(); }, ErrorCode::kInvalidValue, {"20000", "8"}));
}

// The other ranks must match a launch, with a launch or with a call of their own.
TEST_F(TwoRanks, MatchALaunchWithACall) {
  Plan plan = sum_of(0, first_, mine_);
  first_.launch(plan);
  comms_[1].all_reduce(theirs_, theirs_, DataType::kU32, ReduceOp::kSum, second_);
  comms_[1].all_reduce(theirs_, theirs_, DataType::kU32, ReduceOp::kSum, second_);
  first_.launch(plan);
  first_.sync();
  second_.sync();
  expect_all(mine_, 6);
  expect_all(theirs_, 6);
}

TEST_F(TwoRanks, UseTheBuffersOfTheLaunch) {
  Plan plan = sum_of(0, first_, mine_), other = sum_of(1, second_, theirs_);
  const Buffer bound = numbers(device_, 5000, 40);
  first_.launch(plan, Bindings().buffer(mine_, bound));
  second_.launch(other);
  first_.sync();
  second_.sync();
  expect_all(bound, 42);
  expect_all(theirs_, 42);
  expect_all(mine_, 1);
}

TEST_F(TwoRanks, GroupOfTwoStreamsIsCaptured) {
  const Buffer in = numbers(device_, 5000, 0), back = numbers(device_, 5000, 6);
  first_.begin_capture();
  side_.wait(first_.record());
  {
    Group group;
    comms_[0].send(mine_, 1, first_);
    comms_[0].recv(in, 1, side_);
    group.end();
  }
  increment(side_, in);  // in a stream that did not submit the group
  first_.wait(side_.record());
  Plan plan = first_.end_capture();
  EXPECT_EQ(verify(plan).verdict, Verdict::kProven);
  for (std::uint32_t launch = 0; launch < 2; ++launch) {
    first_.launch(plan);
    Group group;
    comms_[1].recv(theirs_, 0, second_);
    comms_[1].send(back, 0, second_);
    group.end();
    first_.sync();
    second_.sync();
    expect_all(theirs_, 1);
    expect_all(in, 7);
  }
}

TEST_F(TwoRanks, DifferInWhatTheyCaptured) {
  Plan plan = sum_of(0, first_, mine_), other = sum_of(1, second_, theirs_.slice(0, 400));
  first_.launch(plan);
  second_.launch(other);
  EXPECT_TRUE(fails([&] { first_.sync(); }, ErrorCode::kMismatch, {"5000", "100"}));
  EXPECT_TRUE(fails([&] { second_.sync(); }, ErrorCode::kMismatch, {"5000", "100"}));
  EXPECT_TRUE(fails([&] { side_.launch(plan); }, ErrorCode::kMismatch, {"5000", "100"}));
}

// If the launch is refused, the ops before the call in the plan do not run either.
TEST_F(TwoRanks, LaunchNothingWithoutTheCommunicator) {
  first_.begin_capture();
  increment(first_, mine_);
  comms_[0].barrier(first_);
  Plan plan = first_.end_capture();
  comms_.clear();
  EXPECT_TRUE(
      fails([&] { first_.launch(plan); }, ErrorCode::kInvalidHandle, {"barrier", "communicator was destroyed"}));
  first_.sync();
  expect_all(mine_, 1);
}

TEST_F(TwoRanks, RunOnTheirKindOfDeviceOnly) {
  first_.begin_capture();
  comms_[0].barrier(first_);
  Plan plan = first_.end_capture();
  const Stream elsewhere = Device::open("sim:h200").stream();
  EXPECT_TRUE(fails([&] { elsewhere.launch(plan); }, ErrorCode::kUnsupported, {"barrier", "sim:h200"}));
}

// A kernel beside a call that writes what it reads.
TEST_F(TwoRanks, AreSeenByTheChecker) {
  const auto capture = [&](bool waits) {
    first_.begin_capture();
    side_.wait(first_.record());
    comms_[0].broadcast(mine_, mine_, 1, side_);
    const Event sent = side_.record();
    if (waits) first_.wait(sent);
    first_.launch(kLook, {.reads = {mine_.slice(4000, 8)}});
    if (!waits) first_.wait(sent);
    return first_.end_capture();
  };
  const Plan racy = capture(false), sound = capture(true);
  const Verification found = verify(racy);
  ASSERT_EQ(found.verdict, Verdict::kRace);
  ASSERT_EQ(found.races.size(), 1U);
  EXPECT_EQ(found.races[0].buffer, "mine");
  EXPECT_EQ(found.races[0].offset, 4000U);
  EXPECT_EQ(found.races[0].bytes, 8U);
  EXPECT_NE(found.text(racy).find("'broadcast'"), std::string::npos);
  EXPECT_EQ(verify(sound).verdict, Verdict::kProven);
}

// The calls of a communicator run in order: the second waits for the first, which waits for an op behind the second.
TEST_F(TwoRanks, WaitInACircleByTheirTurns) {
  const Buffer word = numbers(device_, 1, 0, "word");
  const auto capture = [&](Communicator& behind) {
    first_.begin_capture();
    side_.wait(first_.record());
    first_.wait_value(word, 1);
    comms_[0].barrier(first_);
    behind.barrier(side_);
    side_.write_value(word, 1);
    first_.wait(side_.record());
    return first_.end_capture();
  };
  EXPECT_EQ(verify(capture(comms_[0])).verdict, Verdict::kDeadlock);
  EXPECT_EQ(verify(capture(comms_[1])).verdict, Verdict::kProven);
}

// No op of this rank needs the ops before a barrier, but another rank may.
TEST_F(TwoRanks, BarriersReleaseOtherRanks) {
  first_.begin_capture();
  increment(first_, mine_);
  side_.wait(first_.record());
  comms_[0].barrier(side_);
  first_.wait(side_.record());
  const Plan plan = first_.end_capture();
  EXPECT_TRUE(verify(plan).superfluous.empty()) << verify(plan).text(plan);
}

}  // namespace
}  // namespace slip::test_captured
