// Plans: bindings, repeated launches, and plans that cannot be right.
#include <thread>
#include <vector>

#include "backend/support.hpp"
#include "slip/plan.hpp"

namespace slip::test_plan {
namespace {

using test::Bodies;
using test::Gate;

// out(0) = in(0) + scalar(0)
const Kernel kAdd{"add",
                  [](const Args& args) {
                    const auto in = args.in<int>(0);
                    const auto out = args.out<int>(0);
                    for (std::size_t i = 0; i < out.size(); ++i) out[i] = in[i] + args.scalar<int>(0);
                  },
                  nullptr};

struct Plans : testing::Test {
  Device device = Device::open("cpu");
  Buffer x = device.alloc(64, MemoryKind::kPinned, "x");
  Buffer y = device.alloc(64, MemoryKind::kPinned, "y");
  Stream stream = device.stream();

  static PlanNode kernel_node(std::uint32_t at = 0) {
    return {.stream = at, .kind = OpKind::kKernel, .engine = Engine::kCompute, .kernel = &test::nothing(), .name = "k"};
  }
  Plan add_plan() {
    stream.begin_capture();
    stream.launch(kAdd, {.reads = {x.slice(0, 32)}, .writes = {y.slice(32, 32)}, .scalars = {10}, .name = "first"});
    stream.launch(kAdd, {.reads = {y.slice(32, 32)}, .writes = {y.slice(0, 32)}, .scalars = {20}, .name = "second"});
    return stream.end_capture();
  }
  void set(Buffer& buffer, int value) {
    for (int& element : buffer.host_write<int>()) element = value;
  }
  int at(const Buffer& buffer, std::size_t i) { return buffer.host_read<int>()[i]; }
};

TEST_F(Plans, BindBuffersBySliceAndScalarsByName) {
  Plan plan = add_plan();
  Buffer other_x = device.alloc(64, MemoryKind::kPinned);
  Buffer large = device.alloc(256, MemoryKind::kPinned);
  set(x, 1);
  set(y, 0);
  set(other_x, 5);
  set(large, 0);
  stream.launch(plan);
  stream.launch(plan, Bindings().buffer(x, other_x).buffer(y, large.slice(128, 64)).scalar("second", 0, 200));
  ASSERT_TRUE(test::finishes(stream));
  EXPECT_EQ(at(y, 8), 11);
  EXPECT_EQ(at(y, 0), 31);
  EXPECT_EQ(at(large, 32 + 8), 15) << "offset kept within the binding";
  EXPECT_EQ(at(large, 32), 215);
  EXPECT_EQ(at(large, 0), 0);
  stream.launch(plan);
  ASSERT_TRUE(test::finishes(stream));
  EXPECT_EQ(at(y, 0), 31) << "bindings are for one launch";
}

TEST_F(Plans, ABindingOfAPartAppliesToThatPart) {
  Plan plan = add_plan();
  Buffer half = device.alloc(32, MemoryKind::kPinned);
  set(x, 1);
  set(y, 0);
  set(half, 0);
  stream.launch(plan, Bindings().buffer(y.slice(0, 32), half));
  ASSERT_TRUE(test::finishes(stream));
  EXPECT_EQ(at(half, 0), 31);
  EXPECT_EQ(at(y, 8), 11);
  EXPECT_EQ(at(y, 0), 0);
}

// Whatever is wrong with a launch, none of it runs.
TEST_F(Plans, ALaunchThatCannotBeBoundRunsNothing) {
  Plan plan = add_plan();
  set(x, 1);
  set(y, 0);
  Buffer small = device.alloc(16, MemoryKind::kPinned);
  EXPECT_EQ(test::code_of([&] { stream.launch(plan, Bindings().buffer(y.slice(0, 32), small)); }),
            ErrorCode::kInvalidValue);
  Range stale;
  {
    const Buffer gone = device.alloc(64, MemoryKind::kPinned);
    stale = gone;
  }
  EXPECT_EQ(test::code_of([&] { stream.launch(plan, Bindings().buffer(y.slice(0, 32), stale)); }),
            ErrorCode::kInvalidHandle);
  EXPECT_EQ(test::code_of([&] { stream.launch(plan, Bindings().buffer(y.slice(0, 32), Range())); }),
            ErrorCode::kInvalidValue);
  EXPECT_TRUE(test::finishes(stream));
  EXPECT_EQ(at(y, 8), 0) << "the first op of the plan ran although the second could not";
  stream.launch(plan);
  EXPECT_TRUE(test::finishes(stream));
  EXPECT_EQ(at(y, 0), 31);
}

TEST_F(Plans, ABufferOfThePlanWasFreed) {
  Plan plan = add_plan();
  x = Buffer();
  EXPECT_EQ(test::code_of([&] { stream.launch(plan); }), ErrorCode::kInvalidHandle);
  Buffer other = device.alloc(64, MemoryKind::kPinned);
  EXPECT_TRUE(test::finishes(stream));
}

TEST_F(Plans, OneLaunchFollowsTheOther) {
  Bodies bodies;
  test::ConcurrencyCounter counter;
  const Stream fork = device.stream(StreamFlags::kNonBlocking);
  const Stream second = device.stream(StreamFlags::kNonBlocking);
  const auto busy = [&] {
    counter.enter();
    for (int i = 0; i < 50; ++i) sched_yield();
    counter.leave();
  };
  stream.begin_capture();
  bodies.launch(stream, busy);
  fork.wait(stream.record());
  bodies.launch(fork, busy);
  stream.wait(fork.record());
  Plan plan = stream.end_capture();
  for (int i = 0; i < 20; ++i) (i % 2 == 0 ? StreamRef(stream) : StreamRef(second)).launch(plan);
  ASSERT_TRUE(test::finishes(stream) && test::finishes(second));
  EXPECT_EQ(counter.max(), 1) << "rule 100: not even from two streams";
}

TEST_F(Plans, LaunchedFromTwoThreads) {
  std::uint64_t counter = 0;  // the plan never overlaps itself
  static const Kernel kCount{"count", [](const Args& args) { ++*args.scalar<std::uint64_t*>(0); }, nullptr};
  stream.begin_capture();
  for (int i = 0; i < 5; ++i) stream.launch(kCount, {.scalars = {&counter}});
  Plan plan = stream.end_capture();
  const int times = test::rounds(500);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      const Stream own = device.stream(StreamFlags::kNonBlocking);
      for (int i = 0; i < times; ++i) own.launch(plan);
      EXPECT_TRUE(test::finishes(own));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter, 15U * static_cast<std::uint64_t>(times));
}

TEST_F(Plans, DestroyedWhileRunning) {
  std::atomic<int> ran{0};
  Bodies bodies;
  Gate gate(device);
  const Stream fork = device.stream(StreamFlags::kNonBlocking);
  gate.hold(stream);
  {
    Stream capturing = device.stream();
    capturing.begin_capture();
    fork.wait(capturing.record());
    bodies.launch(fork, [&] { ran.fetch_add(1); });
    auto token = std::make_shared<int>(0);
    capturing.host([&, token] { ran.fetch_add(1); });
    capturing.wait(fork.record());
    Plan plan = capturing.end_capture();
    for (int i = 0; i < 3; ++i) stream.launch(plan);
  }
  EXPECT_EQ(ran.load(), 0);
  gate.open();
  EXPECT_TRUE(test::finishes(stream));
  EXPECT_EQ(ran.load(), 6);
}

TEST_F(Plans, AForkedPlanOutlivesItsDevice) {
  Plan plan;
  {
    const Device gone = Device::open("cpu");
    const Stream a = gone.stream();
    const Stream b = gone.stream();
    a.begin_capture();
    b.wait(a.record());
    b.launch(test::nothing());
    a.wait(b.record());
    plan = a.end_capture();
    a.launch(plan);
    a.sync();
  }
  // Its streams live on with the plan, or it says that their device is gone; either way nothing breaks.
  const ErrorCode code = test::code_of([&] { stream.launch(plan); });
  EXPECT_TRUE(code == ErrorCode::kOk || code == ErrorCode::kInvalidDevice);
  EXPECT_TRUE(test::finishes(stream));
}

TEST_F(Plans, AFreshForkedPlanOfAClosedDeviceIsRefused) {
  Plan plan;
  {
    const Device gone = Device::open("cpu");
    const Stream a = gone.stream();
    const Stream b = gone.stream();
    a.begin_capture();
    b.wait(a.record());
    b.launch(test::nothing());
    a.wait(b.record());
    plan = a.end_capture();
  }
  EXPECT_EQ(test::code_of([&] { stream.launch(plan); }), ErrorCode::kInvalidDevice);
  EXPECT_TRUE(test::finishes(stream));
}

TEST_F(Plans, AFailedLaunchDoesNotSpoilLaterOnesInOtherStreams) {
  std::atomic<bool> fails{true};
  Bodies bodies;
  const Stream fork = device.stream(StreamFlags::kNonBlocking);
  stream.begin_capture();
  fork.wait(stream.record());
  bodies.launch(fork, [&] {
    if (fails.load()) throw std::runtime_error("once");
  });
  stream.wait(fork.record());
  Plan plan = stream.end_capture();
  // Many times: the branch may fail while the launch is still issuing ops, and that is not the launch's error.
  for (int i = 0; i < 200; ++i) {
    fails.store(true);
    const Stream origin = device.stream();
    EXPECT_NO_THROW(origin.launch(plan));
    EXPECT_EQ(test::code_of([&] { origin.sync(); }), ErrorCode::kLaunchFailed);
    fails.store(false);
    const Stream next = device.stream();
    EXPECT_NO_THROW(next.launch(plan));
    EXPECT_NO_THROW(next.sync());
  }
}

TEST_F(Plans, AMovedFromPlanIsRefused) {
  Plan plan = add_plan();
  Plan other = std::move(plan);
  EXPECT_EQ(test::code_of([&] { stream.launch(plan); }), ErrorCode::kInvalidHandle);
  stream.launch(other);
  EXPECT_TRUE(test::finishes(stream));
}

TEST_F(Plans, AnEmptyPlanRunsNothing) {
  Plan plan;
  stream.launch(plan);
  EXPECT_TRUE(test::finishes(stream));
  EXPECT_TRUE(test::contains(plan.describe(), "0 ops"));
}

TEST_F(Plans, BuiltByHand) {
  Plan plan;
  set(x, 3);
  const std::uint32_t first = plan.add({.kind = OpKind::kKernel,
                                        .engine = Engine::kCompute,
                                        .kernel = &kAdd,
                                        .name = "a",
                                        .reads = {x},
                                        .writes = {y},
                                        .scalars = {4}});
  plan.add({.stream = 1,
            .kind = OpKind::kKernel,
            .engine = Engine::kCompute,
            .kernel = &kAdd,
            .name = "b",
            .reads = {y},
            .writes = {x},
            .scalars = {5},
            .waits = {first}});
  stream.launch(plan);
  ASSERT_TRUE(test::finishes(stream));
  EXPECT_EQ(at(x, 15), 12);
  const Device other = Device::open("cpu");  // the same plan there: its streams are of the launching device
  const Stream there = other.stream();
  there.launch(plan);
  ASSERT_TRUE(test::finishes(there));
  EXPECT_EQ(at(x, 15), 21);
}

TEST_F(Plans, NodesThatCannotBeRightAreRefused) {
  Plan plan;
  const auto refused = [&](PlanNode node) {
    return test::code_of([&] { plan.add(node); }) == ErrorCode::kInvalidValue;
  };
  PlanNode node = kernel_node();
  node.kernel = nullptr;
  EXPECT_TRUE(refused(node));
  EXPECT_TRUE(refused(kernel_node(0xffffffffU)));
  EXPECT_TRUE(refused({.kind = OpKind::kCopy, .name = "copy"}));
  EXPECT_TRUE(refused({.kind = OpKind::kCopy, .name = "copy", .reads = {x.slice(0, 8)}, .writes = {y.slice(0, 4)}}));
  EXPECT_TRUE(refused({.kind = OpKind::kFill, .name = "fill"}));
  EXPECT_TRUE(refused({.kind = OpKind::kHost, .name = "host"}));
  EXPECT_TRUE(refused({.kind = OpKind::kWaitValue, .name = "wait"}));
  EXPECT_TRUE(refused({.kind = OpKind::kWait, .name = "wait"}));
  EXPECT_TRUE(refused({.kind = OpKind::kRecord, .name = "record"}));
  node = kernel_node();
  node.waits = {0};
  EXPECT_TRUE(refused(node)) << "waits for itself";
  EXPECT_TRUE(plan.nodes().empty());
}

}  // namespace
}  // namespace slip::test_plan
