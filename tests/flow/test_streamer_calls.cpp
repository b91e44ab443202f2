// WeightStreamer: its sources, its errors, and how it goes on after them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>

#include "flow/streamed_program.hpp"
#include "support/errors.hpp"
#include "support/share.hpp"
#include "support/test_alarm.hpp"

namespace slip::test_streamer_calls {
namespace {

using test::fails;
using test::Order;
using test::StreamedProgram;
using test::Weights;

[[maybe_unused]] const bool kAlarm = test::TestAlarm::install();

StreamerOptions with_budget(std::uint64_t budget) {
  return {.budget = budget, .load = {1e9, 0}, .search_effort = 20'000};
}

// A file with one tensor for each group, which is removed with this object.
struct TensorFile {
  std::string path;
  explicit TensorFile(const Weights& weights)
      : path(fmt::format("{}/slip-streamer-{}-{}.safetensors", testing::TempDir(), ::getpid(), made++)) {
    std::vector<TensorData> tensors;
    for (std::size_t i = 0; i < weights.size(); ++i)
      tensors.push_back(
          {fmt::format("t{}", i), DataType::kU32, {weights[i].size()}, std::as_bytes(std::span(weights[i]))});
    write_tensors(path, tensors);
  }
  ~TensorFile() { std::filesystem::remove(path); }
  static inline int made = 0;
};

std::vector<StreamedGroup> from_file(const TensorFile& file, std::size_t groups) {
  const WeightSource files = WeightSource::files(file.path);
  std::vector<StreamedGroup> made;
  for (std::size_t i = 0; i < groups; ++i)
    made.push_back({test::group_name(i), GroupSource::tensors(files, {fmt::format("t{}", i)})});
  return made;
}

TEST(StreamerSources, AllGiveTheSameBits) {
  for (const char* name : {"cpu", "sim:h200"}) {
    const Device device = Device::open(name);
    const Weights weights = test::random_groups(1, 12, 200'000);
    const TensorFile file(weights);
    std::vector<Buffer> pinned;
    std::vector<StreamedGroup> mixed = from_file(file, 12);  // a file, pinned memory, pageable memory, a function
    const std::vector<StreamedGroup> filled = test::from_callback(weights);
    for (std::size_t i = 0; i < 12; ++i) {
      const std::span<const std::byte> bytes = std::as_bytes(std::span(weights[i]));
      if (i % 4 == 1) {
        pinned.push_back(device.alloc(bytes.size(), MemoryKind::kPinned));
        std::ranges::copy(bytes, pinned.back().host_write<std::byte>().begin());
        mixed[i].source = GroupSource::pinned(pinned.back());
      }
      if (i % 4 == 2) mixed[i].source = GroupSource::memory(bytes);
      if (i % 4 == 3) mixed[i].source = filled[i].source;
    }
    for (const std::uint64_t host_memory : {UINT64_MAX, std::uint64_t{0}}) {
      StreamerOptions options = with_budget(3 * test::largest_of(weights));
      options.host_memory = host_memory;
      WeightStreamer streamer(device, mixed, options);
      const WeightPass pass = streamer.add_pass("all", test::uses_of(test::in_order(12), 1'000));
      streamer.plan();
      const WeightsProof proof = streamer.verify(pass);
      EXPECT_TRUE(proof.proven()) << proof.text;
      StreamedProgram program(device, weights);
      for (int step = 0; step < 3; ++step) program.step(streamer, pass, test::in_order(12));
      program.step(streamer, pass, {5, 4, 11, 4, 0});
      program.step(streamer, pass, {1, 9, 2, 8, 8});
      EXPECT_TRUE(program.right()) << name;
      device.sync();
    }
  }
}

// Reads from files run ahead of the loads, also if loads are replaced before any use.
TEST(StreamerSources, FilesInAnyOrder) {
  for (std::uint64_t seed = 1; seed <= 12 / test::kShare + 1; ++seed) {
    std::mt19937_64 random(seed);
    const Weights weights = test::random_groups(seed, 8, 300'000);
    const TensorFile file(weights);
    const Device device = Device::open("cpu");
    WeightStreamer streamer(device, from_file(file, 8), with_budget((2 + seed % 3) * test::largest_of(weights)));
    const WeightPass pass = streamer.add_pass("all");
    StreamedProgram program(device, weights);
    for (int step = 0; step < 10; ++step) {
      Order order;
      for (std::uint64_t use = random() % 12; use > 0; --use) order.push_back(static_cast<std::uint32_t>(random() % 8));
      program.step(streamer, pass, order);
    }
    ASSERT_TRUE(program.right()) << "seed " << seed;
  }
}

TEST(StreamerSources, AGroupOfSeveralTensorsHasOffsets) {
  const Weights weights = test::random_groups(2, 4, 5'000);
  const TensorFile file(weights);
  const WeightSource files = WeightSource::files(file.path);
  const Device device = Device::open("cpu");
  WeightStreamer streamer(
      device,
      {{"a", GroupSource::tensors(files, {"t0", "t1"})}, {"b", GroupSource::tensors(files, {"t2", "t3", "t1"})}},
      with_budget(100'000));
  const WeightPass pass = streamer.add_pass("all");
  StreamedProgram program(device, weights);
  for (int step = 0; step < 3; ++step) {
    streamer.begin(pass);
    const auto use = [&](const char* group, std::size_t tensor, std::uint32_t number) {
      const Range whole = streamer.acquire(group, program.stream());
      program.mix(whole.slice(streamer.offset(group, tensor), weights[number].size() * 4), number);
      streamer.release(group, program.stream());
    };
    use("a", 0, 0);
    use("a", 1, 1);
    use("b", 0, 2);
    use("b", 1, 3);
    use("b", 2, 1);
  }
  EXPECT_TRUE(program.right());
  EXPECT_EQ(streamer.offset("a", 0), 0u);
  EXPECT_EQ(streamer.offset("a", 1) % 256, 0u);
  EXPECT_TRUE(fails([&] { static_cast<void>(streamer.offset("a", 2)); }, ErrorCode::kInvalidValue, {"'a'", "2"}));
  EXPECT_TRUE(fails([&] { GroupSource::tensors(files, {"t9"}); }, ErrorCode::kInvalidValue, {"t9"}));
  EXPECT_TRUE(fails([&] { GroupSource::tensors(WeightSource(), {"t0"}); }, ErrorCode::kInvalidValue, {"files"}));
}

TEST(StreamerSources, AFileThatChangesIsAnError) {
  const Weights weights = test::random_groups(3, 8, 100'000);
  const TensorFile file(weights);
  const Device device = Device::open("cpu");
  WeightStreamer streamer(device, from_file(file, 8), with_budget(2 * test::largest_of(weights)));
  const WeightPass pass = streamer.add_pass("all");
  StreamedProgram program(device, weights);
  program.step(streamer, pass, test::in_order(8));
  EXPECT_TRUE(program.right());
  streamer.sync();
  std::filesystem::resize_file(file.path, std::filesystem::file_size(file.path) / 2);
  std::string said;
  try {
    for (int step = 0; step < 3; ++step) {
      program.step(streamer, pass, test::in_order(8));
      streamer.sync();
    }
  } catch (const Error& error) {
    said = error.what();
  }
  EXPECT_NE(said.find(file.path), std::string::npos) << said;
}

TEST(StreamerMemory, ABudgetThatIsTooSmallNamesTheSmallest) {
  const Weights weights = test::random_groups(4, 10, 30'000);
  const Device device = Device::open("cpu");
  const auto plan = [&](std::uint64_t budget, bool stream_all) {
    StreamerOptions options = with_budget(budget);
    options.stream_all = stream_all;
    WeightStreamer streamer(device, test::from_callback(weights), options);
    const WeightPass pass = streamer.add_pass("all", test::uses_of({0, 1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 8}));
    streamer.plan();
    EXPECT_LE(device.memory().used, budget);
    StreamedProgram program(device, weights);
    for (int step = 0; step < 3; ++step) program.step(streamer, pass, {0, 1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 8});
    EXPECT_TRUE(program.right());
    EXPECT_EQ(streamer.report().on_demand.count, 0u) << streamer.report().text();
  };
  for (const bool stream_all : {false, true}) {
    const std::uint64_t smallest = test::largest_of(weights);
    const std::string named = fmt::format("smallest that works is {} bytes", smallest);
    EXPECT_TRUE(fails([&] { plan(0, stream_all); }, ErrorCode::kOutOfMemory, {named}));
    EXPECT_TRUE(fails([&] { plan(smallest - 1, stream_all); }, ErrorCode::kOutOfMemory, {named}));
    plan(smallest, stream_all);
  }
  plan(test::bytes_of(weights), false);
}

TEST(StreamerMemory, TheProgramsOwnMemoryIsUsed) {
  const Weights weights = test::random_groups(5, 10, 30'000);
  const Device device = Device::open("cpu");
  const Buffer memory = device.alloc(3 * test::largest_of(weights) + 777);
  WeightStreamer streamer(device, test::from_callback(weights),
                          {.memory = memory.slice(256, memory.bytes() - 256), .load = {1e9, 0}});
  const WeightPass pass = streamer.add_pass("all", test::uses_of(test::in_order(10)));
  StreamedProgram program(device, weights);
  const std::size_t used = device.memory().used;
  for (int step = 0; step < 3; ++step) program.step(streamer, pass, test::in_order(10));
  EXPECT_TRUE(program.right());
  EXPECT_EQ(device.memory().used, used);
  streamer.begin(pass);
  const Range place = streamer.acquire("g0", program.stream());
  auto* const address = static_cast<std::byte*>(WeightStreamer::address(place));
  EXPECT_GE(address, static_cast<std::byte*>(memory.native()) + 256);
  EXPECT_LE(address + place.bytes, static_cast<std::byte*>(memory.native()) + memory.bytes());
}

// A resident group is where resident() says, from plan() on, with the bytes of its source.
TEST(StreamerMemory, ResidentGroupsHaveAPlace) {
  const Device device = Device::open("cpu");
  const Weights weights = test::random_groups(5, 8, 10'000);
  Buffer pinned = device.alloc(test::bytes_of(weights), MemoryKind::kPinned);
  std::vector<StreamedGroup> groups = test::from_callback(weights);
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < weights.size(); i += 2) {  // every second group comes from pinned memory
    const Range part = pinned.slice(at, weights[i].size() * sizeof(std::uint32_t));
    std::memcpy(WeightStreamer::address(part), weights[i].data(), part.bytes);
    groups[i].source = GroupSource::pinned(part);
    at += part.bytes;
  }
  WeightStreamer streamer(device, groups, with_budget(test::bytes_of(weights) / 2 + test::largest_of(weights)));
  streamer.add_pass("all");
  EXPECT_TRUE(fails([&] { static_cast<void>(streamer.resident(0)); }, ErrorCode::kNotReady));
  streamer.plan();
  std::size_t resident = 0;
  for (std::uint32_t i = 0; i < weights.size(); ++i) {
    const std::optional<Range> place = streamer.resident(i);
    if (!place) continue;
    ++resident;
    ASSERT_EQ(place->bytes, weights[i].size() * sizeof(std::uint32_t));
    EXPECT_EQ(std::memcmp(WeightStreamer::address(*place), weights[i].data(), place->bytes), 0) << i;
  }
  EXPECT_GT(resident, 0u);
  EXPECT_LT(resident, weights.size());
  EXPECT_TRUE(fails([&] { static_cast<void>(streamer.resident(8)); }, ErrorCode::kInvalidValue));
}

TEST(StreamerMemory, ASlowdownChoosesTheBudget) {
  const Weights weights = test::random_groups(6, 16, 30'000);
  const Device device = Device::open("cpu");
  WeightStreamer streamer(device, test::from_callback(weights), {.slowdown = 0.05, .load = {1e9, 0}});
  const WeightPass pass = streamer.add_pass("all", test::uses_of(test::in_order(16), 90'000'000));
  streamer.plan();
  EXPECT_LE(static_cast<double>(streamer.predict(pass).step), 1.06 * 16 * 90e6);
  EXPECT_LT(streamer.plan_of(pass).device_bytes(), test::bytes_of(weights));
  EXPECT_TRUE(fails([&] { WeightStreamer(device, test::from_callback(weights), {.budget = 1, .slowdown = 0.1}); },
                    ErrorCode::kInvalidValue, {"not both"}));
}

TEST(StreamerCalls, WrongCallsAreRefused) {
  const Weights weights = test::random_groups(7, 4, 10'000);
  const Device device = Device::open("cpu");
  WeightStreamer streamer(device, test::from_callback(weights), with_budget(2 * test::largest_of(weights)));
  StreamedProgram program(device, weights);
  const StreamRef stream = program.stream();
  EXPECT_TRUE(fails([&] { streamer.plan(); }, ErrorCode::kInvalidValue, {"add_pass"}));
  EXPECT_TRUE(fails([&] { streamer.add_pass("x", {{"nope"}}); }, ErrorCode::kInvalidValue, {"'nope'", "'g0'", "'g3'"}));
  EXPECT_TRUE(fails([&] { streamer.begin({0}); }, ErrorCode::kInvalidValue, {"no pass 0"}));
  const WeightPass pass = streamer.add_pass("all");
  EXPECT_TRUE(fails([&] { static_cast<void>(streamer.plan_of(pass)); }, ErrorCode::kNotReady, {"plan()"}));
  EXPECT_TRUE(fails([&] { streamer.acquire("g0", stream); }, ErrorCode::kNotReady, {"'g0'", "begin()"}));
  streamer.begin(pass);
  EXPECT_TRUE(fails([&] { streamer.plan(); }, ErrorCode::kNotPermitted));
  EXPECT_TRUE(fails([&] { streamer.acquire("nope", stream); }, ErrorCode::kInvalidValue, {"'nope'"}));
  EXPECT_TRUE(fails([&] { streamer.acquire(4, stream); }, ErrorCode::kInvalidValue, {"no group 4"}));
  EXPECT_TRUE(fails([&] { streamer.release("g1", stream); }, ErrorCode::kInvalidValue, {"'g1'", "not acquired"}));
  program.use(streamer, 1);
  EXPECT_TRUE(fails([&] { streamer.release("g1", stream); }, ErrorCode::kInvalidValue, {"'g1'", "not acquired"}));
  const Device other = Device::open("cpu");
  const Stream foreign = other.stream();
  EXPECT_TRUE(fails([&] { streamer.acquire("g2", foreign); }, ErrorCode::kInvalidHandle, {"device"}));
  for (std::uint32_t group : {2, 3, 0}) program.use(streamer, group);
  EXPECT_TRUE(program.right()) << "the refused calls changed nothing";
  EXPECT_TRUE(fails([&] { WeightStreamer(device, {}); }, ErrorCode::kInvalidValue, {"without groups"}));
  std::vector<StreamedGroup> twice = test::from_callback(weights);
  twice[1].name = "g0";
  EXPECT_TRUE(fails([&] { WeightStreamer(device, twice); }, ErrorCode::kInvalidValue, {"'g0'"}));
}

TEST(StreamerCalls, GroupsThatAreHeldLeaveNoPlace) {
  const Weights weights(6, std::vector<std::uint32_t>(1000));
  const Device device = Device::open("cpu");
  StreamerOptions options = with_budget(3 * 4096);
  options.stream_all = true;
  options.ring = 3 * 4096;
  WeightStreamer streamer(device, test::from_callback(weights), options);
  const WeightPass pass = streamer.add_pass("all");
  StreamedProgram program(device, weights);
  streamer.begin(pass);
  for (std::uint32_t group = 0; group < 3; ++group) program.mix(streamer.acquire(group, program.stream()), group);
  EXPECT_TRUE(fails([&] { streamer.acquire("g4", program.stream()); }, ErrorCode::kOutOfMemory,
                    {"'g4'", "'g0', 'g1', 'g2'", "12288"}));
  streamer.release("g1", program.stream());
  program.mix(streamer.acquire("g4", program.stream()), 4);
  EXPECT_TRUE(program.right());
}

TEST(StreamerCalls, ASecondThreadIsRefused) {
  const Weights weights = test::random_groups(8, 3, 1'000);
  const Device device = Device::open("cpu");
  WeightStreamer* under_test = nullptr;
  std::string said;
  int calls = 0;
  std::vector<StreamedGroup> groups = test::from_callback(weights);
  groups.push_back({"slow", GroupSource::callback(1024, [&](std::uint64_t, std::span<std::byte> into) {
                      std::ranges::fill(into, std::byte{1});
                      ++calls;
                      std::thread([&] {
                        try {
                          under_test->begin({0});
                        } catch (const Error& error) {
                          if (error.code() == ErrorCode::kNotPermitted) said = error.what();
                        }
                      }).join();
                    })});
  WeightStreamer streamer(device, groups, with_budget(1 << 20));
  under_test = &streamer;
  const WeightPass pass = streamer.add_pass("all");
  streamer.plan();  // calls the function, and so the other thread calls begin() meanwhile
  EXPECT_GT(calls, 0);
  EXPECT_NE(said.find("another thread"), std::string::npos) << said;
  StreamedProgram program(device, weights);
  std::thread([&] { program.step(streamer, pass, {0, 1, 2}); }).join();  // one after the other is allowed
  program.step(streamer, pass, {2, 1, 0});
  EXPECT_TRUE(program.right());
}

TEST(StreamerCalls, AStepThatIsBrokenOffDoesNoHarm) {
  const Weights weights = test::random_groups(9, 10, 20'000);
  for (const std::uint64_t seed : {1, 2, 3}) {
    const Device device = Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = seed});
    WeightStreamer streamer(device, test::from_callback(weights), with_budget(3 * test::largest_of(weights)));
    const WeightPass pass = streamer.add_pass("all", test::uses_of(test::in_order(10), 1'000));
    StreamedProgram program(device, weights, 2);
    for (int round = 0; round < 4; ++round) {
      streamer.begin(pass);
      for (std::uint32_t group = 0; group < 3; ++group) program.use(streamer, group);
      program.mix(streamer.acquire(3, program.stream(1)), 3, 1);  // never released
      program.step(streamer, pass, test::in_order(10));
    }
    EXPECT_TRUE(program.right()) << "seed " << seed;
    EXPECT_EQ(streamer.report().broken_off, 4u);
    EXPECT_EQ(streamer.report().replans, 0u);
  }
}

TEST(StreamerCalls, AStreamThatFailedOrIsGoneDoesNoHarm) {
  static const Kernel kThrow{"throw", [](const Args&) { throw std::runtime_error("no more"); }};
  const Weights weights = test::random_groups(10, 6, 20'000);
  const Device device = Device::open("cpu");
  WeightStreamer streamer(device, test::from_callback(weights), with_budget(2 * test::largest_of(weights)));
  const WeightPass pass = streamer.add_pass("all", test::uses_of(test::in_order(6), 1'000));
  {
    const Stream failing = device.stream(StreamFlags::kNonBlocking);
    streamer.begin(pass);
    const Range place = streamer.acquire("g0", failing);
    failing.launch(kThrow, {.reads = {place}, .writes = {}, .scalars = {}, .name = {}});
    EXPECT_TRUE(fails([&] { failing.sync(); }, ErrorCode::kLaunchFailed, {"no more"}));
  }
  StreamedProgram program(device, weights);
  for (int step = 0; step < 3; ++step) program.step(streamer, pass, test::in_order(6));
  EXPECT_TRUE(program.right());
  EXPECT_EQ(streamer.report().broken_off, 1u);
}

TEST(StreamerCalls, MoreStreamsThanAnEntryRemembers) {
  const Weights weights = test::random_groups(11, 6, 10'000);
  const Device device = Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = 5});
  WeightStreamer streamer(device, test::from_callback(weights), with_budget(2 * test::largest_of(weights)));
  const WeightPass pass = streamer.add_pass("all");
  StreamedProgram program(device, weights, 20);
  for (int step = 0; step < 4; ++step) {
    streamer.begin(pass);
    for (std::uint32_t group = 0; group < 6; ++group) {
      for (std::size_t stream = 0; stream < 20; ++stream) program.use(streamer, group, stream);
    }
  }
  EXPECT_TRUE(program.right());
}

}  // namespace
}  // namespace slip::test_streamer_calls
