// What only the cuda device has: native streams, graphs, faults, out of memory. The rules of streams themselves are
// tested by conformance and stress, on every device.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <thread>

#include "cuda/cuda_kernels.hpp"
#include "slip/slip.hpp"
#include "support/errors.hpp"

namespace slip {
namespace {

using test::affine;
using test::fails;

constexpr std::size_t kCount = 1 << 16;
constexpr std::size_t kBytes = kCount * sizeof(float);

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
    device.emplace(Device::open("cuda:0"));
    host.emplace(device->alloc(kBytes, MemoryKind::kPinned, "host"));
    a.emplace(device->alloc(kBytes, MemoryKind::kDevice, "a"));
    b.emplace(device->alloc(kBytes, MemoryKind::kDevice, "b"));
    std::random_device entropy;
    const unsigned seed = entropy();
    RecordProperty("seed", std::to_string(seed));
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> values(-1, 1);
    input.resize(kCount);
    for (float& value : input) value = values(random);
    {
      const auto view = host->host_write<float>();
      std::copy(input.begin(), input.end(), view.begin());
    }
    device->copy(*a, *host);
  }
  // Whether `buffer` is factor * input + offset, computed in double.
  testing::AssertionResult holds(const Buffer& buffer, double factor, double offset) {
    device->copy(*host, buffer);
    const auto view = host->host_read<float>();
    for (std::size_t i = 0; i < kCount; ++i) {
      const double expected = static_cast<double>(input[i]) * factor + offset;
      if (std::abs(view[i] - expected) > 1e-5 * (1 + std::abs(expected)))
        return testing::AssertionFailure() << "element " << i << " is " << view[i] << ", expected " << expected;
    }
    return testing::AssertionSuccess();
  }
  std::optional<Device> device;
  std::optional<Buffer> host, a, b;
  std::vector<float> input;
};

TEST(CudaAbsent, OpeningSaysThatThereIsNoGpu) {
  if (has_gpu()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_TRUE(fails([] { Device::open("cuda:0"); }, ErrorCode::kInvalidDevice, {"no GPU"}));
}

TEST_F(Cuda, AKernelRuns) {
  const Stream stream = device->stream();
  stream.launch(affine(), {.reads = {*a}, .writes = {*b}, .scalars = {2.0F, 1.0F}});
  stream.sync();
  EXPECT_TRUE(holds(*b, 2, 1));
}

TEST_F(Cuda, NativeStreamsAreOrderedWithOurs) {
  const Stream stream = device->stream(StreamFlags::kNonBlocking);
  ASSERT_NE(stream.native(), nullptr);
  stream.launch(affine(), {.reads = {*a}, .writes = {*b}, .scalars = {2.0F, 0.0F}});
  ASSERT_EQ(cudaMemcpyAsync(a->native(), b->native(), kBytes, cudaMemcpyDeviceToDevice, stream.native()), cudaSuccess);
  stream.launch(affine(), {.reads = {*a}, .writes = {*b}, .scalars = {3.0F, 1.0F}});
  stream.sync();
  EXPECT_TRUE(holds(*b, 6, 1));
}

TEST_F(Cuda, AnAdoptedStreamStaysItsOwners) {
  cudaStream_t theirs = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&theirs, cudaStreamNonBlocking), cudaSuccess);
  {
    const Stream stream = Stream::adopt(*device, theirs);
    EXPECT_EQ(stream.native(), theirs);
    stream.launch(affine(), {.reads = {*a}, .writes = {*b}, .scalars = {4.0F, 0.0F}});
    const Stream other = device->stream(StreamFlags::kNonBlocking);
    other.wait(stream.record());
    other.launch(affine(), {.reads = {*b}, .writes = {*a}, .scalars = {1.0F, 2.0F}});
    other.sync();
    EXPECT_TRUE(holds(*a, 4, 2));
  }
  EXPECT_EQ(cudaStreamQuery(theirs), cudaSuccess) << "it lives on";
  EXPECT_EQ(cudaStreamDestroy(theirs), cudaSuccess);
  EXPECT_TRUE(fails([&] { Stream::adopt(*device, nullptr); }, ErrorCode::kInvalidHandle, {"null"}));
}

// Its work goes on after the native stream was destroyed, and others may wait for it. Nothing uses the handle any more.
TEST_F(Cuda, AnAdoptedStreamMayEndBeforeTheStreamThatWrapsIt) {
  const Stream other = device->stream(StreamFlags::kNonBlocking);
  for (int round = 0; round < 20; ++round) {
    cudaStream_t theirs = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&theirs, cudaStreamNonBlocking), cudaSuccess);
    Stream stream = device->adopt(theirs, Name("theirs"), NativeLifetime::kMayEnd);
    stream.launch(affine(), {.reads = {*a}, .writes = {*b}, .scalars = {4.0F, 0.0F}});
    const Event done = stream.record();
    ASSERT_EQ(cudaStreamDestroy(theirs), cudaSuccess);
    if (round % 2 == 0) other.wait(done);
    else stream.sync();
    device->sync();
    stream = device->stream();  // closes the other one
    EXPECT_TRUE(holds(*b, 4, 0));
  }
}

TEST_F(Cuda, APlanRunsAsAGraphWithOtherBindings) {
  const Stream stream = device->stream(StreamFlags::kNonBlocking), fork = device->stream(StreamFlags::kNonBlocking);
  Buffer c = device->alloc(kBytes, MemoryKind::kDevice, "c");
  int calls = 0;
  stream.begin_capture();
  stream.launch(affine(), {.reads = {*a}, .writes = {*b}, .scalars = {2.0F, 0.0F}, .name = "first"});
  fork.wait(stream.record());
  fork.launch(affine(), {.reads = {*b}, .writes = {c}, .scalars = {1.0F, 1.0F}, .name = "second"});
  fork.host([&calls] { ++calls; });
  stream.wait(fork.record());
  Plan plan = stream.end_capture();
  for (int i = 0; i < 3; ++i) stream.launch(plan);
  stream.sync();
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(holds(c, 2, 1));
  Bindings bindings;
  bindings.scalar("first", 0, 5.0F);
  stream.launch(plan, bindings);
  stream.sync();
  EXPECT_TRUE(holds(c, 5, 1));
  stream.launch(plan);
  stream.sync();
  EXPECT_TRUE(holds(c, 2, 1)) << "bindings hold for one launch";
  EXPECT_EQ(calls, 5);
}

TEST_F(Cuda, AHostFunctionOfAPlanThatThrowsFailsTheStreamItWasLaunchedIn) {
  const Stream stream = device->stream(), other = device->stream();
  stream.begin_capture();
  stream.host([] { throw std::runtime_error("no more paper"); }, "print");
  Plan plan = stream.end_capture();
  other.launch(plan);
  EXPECT_TRUE(fails([&] { other.sync(); }, ErrorCode::kLaunchFailed, {"'print'", "no more paper"}));
  EXPECT_NO_THROW(stream.sync());
}

TEST_F(Cuda, APlanMayGoWhileItsLastLaunchRuns) {
  const Stream stream = device->stream();
  int calls = 0;
  for (int i = 0; i < 50; ++i) {
    stream.begin_capture();
    stream.launch(test::spin(), {.scalars = {100'000ULL}});
    stream.host([&calls] { ++calls; });
    Plan plan = stream.end_capture();
    stream.launch(plan);
  }
  stream.sync();
  EXPECT_EQ(calls, 50);
}

// Compiling a plan captures CUDA streams, which a device sync in another thread must not disturb.
TEST_F(Cuda, PlansCompileWhileAnotherThreadSynchronises) {
  const Stream stream = device->stream(StreamFlags::kNonBlocking), fork = device->stream(StreamFlags::kNonBlocking);
  std::vector<Plan>
      plans;  // captured before: a device sync is refused meanwhile (rule 98), compiling comes at the launch
  for (int i = 0; i < 200; ++i) {
    stream.begin_capture();
    stream.launch(affine(), {.reads = {*a}, .writes = {*b}, .scalars = {2.0F, static_cast<float>(i)}});
    fork.wait(stream.record());
    fork.launch(test::spin(), {.scalars = {1000ULL}});
    stream.wait(fork.record());
    plans.push_back(stream.end_capture());
  }
  std::atomic<bool> stop{false};
  int failed_syncs = 0;
  std::thread waits([&] {
    while (!stop.load()) {
      try {
        device->sync();
      } catch (const Error&) {
        ++failed_syncs;
      }
    }
  });
  for (Plan& plan : plans) {
    EXPECT_NO_THROW(stream.launch(plan));
    EXPECT_NO_THROW(stream.sync());
  }
  stop.store(true);
  waits.join();
  EXPECT_EQ(failed_syncs, 0);
  EXPECT_TRUE(holds(*b, 2, 199));
}

TEST_F(Cuda, TimedEventsMeasureTheGpu) {
  const Stream stream = device->stream();
  const TimedEvent begin = stream.record_timed();
  stream.launch(test::spin(), {.scalars = {2'000'000ULL}});
  const TimedEvent end = stream.record_timed();
  end.sync();
  const auto took = end - begin;
  EXPECT_GE(took, std::chrono::microseconds(1900));
  EXPECT_LT(took, std::chrono::milliseconds(100));
}

TEST_F(Cuda, StreamOrderedMemoryIsTheDriversAndCounted) {
  const Stream stream = device->stream();
  const std::size_t before = device->memory().used;
  Buffer buffer = stream.alloc(kBytes, "ordered");
  EXPECT_EQ(device->memory().used, before + kBytes);
  stream.launch(affine(), {.reads = {*a}, .writes = {buffer}, .scalars = {3.0F, 0.0F}});
  stream.copy(*b, buffer);
  stream.free(std::move(buffer));
  EXPECT_EQ(device->memory().used, before);
  stream.sync();
  EXPECT_TRUE(holds(*b, 3, 0));
}

TEST_F(Cuda, OutOfMemorySaysAskedFreeAndTotal) {
  EXPECT_TRUE(
      fails([&] { device->alloc(std::size_t{1} << 60); }, ErrorCode::kOutOfMemory, {"1152921504606846976", "free"}));
  const Device small = Device::open("cuda:0", {.memory_limit = 1 << 20});
  EXPECT_TRUE(fails([&] { small.alloc(2 << 20); }, ErrorCode::kOutOfMemory, {"1048576"}));
  const Stream stream = small.stream();
  EXPECT_TRUE(fails([&] { stream.alloc(2 << 20); }, ErrorCode::kOutOfMemory, {"1048576"}));
}

TEST_F(Cuda, AKernelWithoutACudaFunctionIsRefused) {
  static const Kernel kHostOnly{"host only", [](const Args&) {}};
  EXPECT_TRUE(fails([&] { device->stream().launch(kHostOnly); }, ErrorCode::kUnsupported, {"'host only'"}));
}

TEST_F(Cuda, ThereAreOnlySoManyGpus) {
  EXPECT_TRUE(fails([] { Device::open("cuda:99"); }, ErrorCode::kInvalidDevice, {"this machine has"}));
  EXPECT_TRUE(fails([] { Device::open("cuda:x"); }, ErrorCode::kInvalidDevice, {"cuda:NUMBER"}));
}

TEST_F(Cuda, ATraceHasTheGpusTimes) {
  const Stream stream = device->stream();
  stream.launch(test::spin(), {.scalars = {1000ULL}});
  stream.sync();
  Trace trace;
  for (int i = 0; i < 3; ++i) stream.launch(test::spin(), {.scalars = {2'000'000ULL}, .name = "two ms"});
  stream.sync();
  trace.stop();
  int seen = 0;
  Picos last = 0;
  const TraceData data = trace.data();
  for (const TraceSpan& op : data.spans()) {
    if (op.name != "two ms" || !op.run) continue;
    ++seen;
    EXPECT_GE(op.ended - op.started, 1'900'000'000) << "picoseconds";
    EXPECT_LT(op.ended - op.started, 4'000'000'000);
    EXPECT_GE(op.started, last) << "one after the other";
    last = op.ended;
  }
  EXPECT_EQ(seen, 3);
}

// Ends the process with status 0 if the fault was reported correctly.
[[noreturn]] void meet_a_fault() {
  const Device device = Device::open("cuda:0");
  const Stream stream = device.stream();
  stream.launch(test::wild());
  const auto fault_in = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kDeviceFault) return std::string(error.what());
    }
    return std::string();
  };
  const std::string first = fault_in([&] { stream.sync(); });
  const std::string second = fault_in([&] { device.alloc(64); });
  std::fprintf(stderr, "%s", first.c_str());
  std::_Exit(first.find("'wild'") != std::string::npos && !second.empty() ? 0 : 1);
}

// In a process of its own: after a fault nothing on the GPU works in that process any more.
TEST_F(Cuda, AFaultIsStickyAndNamesTheOps) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(meet_a_fault(), testing::ExitedWithCode(0), "illegal memory access");
}

// Ends the process with status 0 if the number of hardware queues is that of the context, which another library made.
[[noreturn]] void open_after_a_context() {
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (cudaFree(nullptr) != cudaSuccess) std::_Exit(2);
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (!fails([] { Device::open("cuda:0", {.max_connections = 32}); }, ErrorCode::kInvalidValue,
               {"max_connections 32", "8 hardware queues", "CUDA_DEVICE_MAX_CONNECTIONS=32"}))
      std::_Exit(3);
  }
  for (const int queues : {8, 0}) {
    if (Device::open("cuda:0", {.max_connections = queues}).info().queues != 8) std::_Exit(4);
  }
  std::_Exit(0);
}

// Ends the process with status 0 if the first open sets the number of hardware queues, and a later one cannot.
[[noreturn]] void open_before_a_context() {
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  for (const int queues : {16, 0, 16}) {
    if (Device::open("cuda:0", {.max_connections = queues}).info().queues != 16) std::_Exit(3);
  }
  const bool refused =
      fails([] { Device::open("cuda:0", {.max_connections = 32}); }, ErrorCode::kInvalidValue, {"16 hardware queues"});
  std::_Exit(refused ? 0 : 4);
}

// In processes of their own, which have no context yet.
TEST(CudaQueues, AreThoseThatTheDriverHasRead) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(open_after_a_context(), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(open_before_a_context(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace slip
