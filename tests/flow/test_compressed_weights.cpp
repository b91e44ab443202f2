// Plans with compressed weights: they are chosen where they make steps shorter, and change no bit of any output.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "flow/stacks.hpp"
#include "flow/weights/packed_groups.hpp"
#include "model/compressed_files.hpp"
#include "slip/runner.hpp"
#include "slip/weight_streamer.hpp"
#include "support/share.hpp"

namespace slip::test_compressed_weights {
namespace {

using test::Chain;
using test::Weights;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kBytes = 1'200'000;  // of a weight: more than join_bytes, so that each is a group

// The bits of f32 weights from a normal distribution: a chain's weights are words. All weights are the same numbers, in
// an order of their own: drawing new ones takes long under a sanitizer.
Weights normal_weights(const Chain& chain, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<std::uint32_t> words(kBytes / 4);
  for (std::uint32_t& word : words) word = std::bit_cast<std::uint32_t>(normal(random));
  Weights weights;
  for (const GraphValue& value : chain.graph.values()) {
    if (value.role != ValueRole::kWeight) continue;
    std::rotate(words.begin(), words.begin() + 1009, words.end());
    weights.push_back(words);
  }
  return weights;
}

// A chain with weights of f32, which can be compressed.
Chain f32_chain(std::size_t layers, std::uint64_t bytes, Picos time) {
  std::vector<test::Layer> sizes(layers, {bytes, time});
  Chain chain = test::make_chain(sizes, 1e9, DataType::kF32);
  chain.costs.decode = {50e9, 1000};
  chain.costs.read = {0.5e9, 1000};
  return chain;
}

std::size_t number_of(const GraphValue& weight) { return std::stoul(weight.name.substr(1)); }
std::span<const std::byte> bytes_of(const std::vector<std::uint32_t>& words) { return std::as_bytes(std::span(words)); }

WeightSource from_memory(const Weights& weights) {
  return WeightSource::memory([&weights](const GraphValue& weight) { return bytes_of(weights[number_of(weight)]); });
}

void expect_right(Runner& runner, const Chain& chain, const Weights& weights, const std::string& what) {
  const Value x = *chain.graph.find("x"), y = *chain.graph.find(fmt::format("y{}", weights.size() - 1));
  for (std::uint32_t step = 0; step < (test::kShare > 1 ? 2U : 4U); ++step) {
    std::vector<std::uint32_t> input(64);
    for (std::uint32_t i = 0; i < 64; ++i) input[i] = i * 7 + step * 1000;
    std::ranges::copy(input, runner.input<std::uint32_t>(x).begin());
    runner.step();
    ASSERT_TRUE(std::ranges::equal(runner.output<std::uint32_t>(y), test::expected(weights, input)))
        << what << ", step " << step;
  }
}

WeightsOptions with_budget(const Chain& chain, double share) {
  WeightsOptions options{.search_effort = 20'000};
  options.budget = static_cast<std::uint64_t>(share * static_cast<double>(chain.graph.bytes_of(ValueRole::kWeight))) +
                   std::uint64_t{7} * kMiB;
  return options;
}

// A folder with the weights of a chain, removed with this object.
struct Folder {
  std::string path;
  Folder(const Chain& chain, const Weights& weights)
      : path(fmt::format("{}/slip-compressed-{}-{}", testing::TempDir(), ::getpid(), made++)) {
    std::filesystem::create_directories(path + "/plain");
    std::vector<TensorData> tensors;
    for (const GraphValue& value : chain.graph.values()) {
      if (value.role == ValueRole::kWeight)
        tensors.push_back({value.name, value.type, value.shape, bytes_of(weights[number_of(value)])});
    }
    write_tensors(path + "/plain/model.safetensors", tensors);
    model::compress_files(path + "/plain", path + "/small", {}, {});
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string small() const { return path + "/small"; }
  static inline int made = 0;
};

bool any_streamed(const WeightsPlan& plan) {
  return std::ranges::any_of(plan.groups, [](const WeightGroup& g) { return g.compressed_bytes > 0 && !g.resident; });
}
bool any_resident(const WeightsPlan& plan) {
  return std::ranges::any_of(plan.groups, [](const WeightGroup& g) { return g.compressed_bytes > 0 && g.resident; });
}

// Near the end: in the blocks of the last weight.
void flip_bit(const std::string& file) {
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(-1000, std::ios::end);
  const char old = static_cast<char>(bytes.get());
  bytes.seekp(-1000, std::ios::end);
  bytes.put(static_cast<char>(old ^ 4));
}

TEST(CompressedWeights, OutputsKeepTheirBitsWithEveryBudgetAndForm) {
  const Chain chain = f32_chain(24, kBytes, 1'000'000);
  const Weights weights = normal_weights(chain, 1);
  const Device device = Device::open("cpu");
  const WeightSource source = WeightSource::compressed(device, chain.graph, from_memory(weights));
  bool streamed = false, resident = false;
  for (const char* on : {"cpu", "a GPU"}) {  // where the plan was made for: with slots, or without
    Costs costs = chain.costs;
    costs.device = on;
    for (const double share : {0.05, 0.3, 0.5, 0.8, 1.1}) {
      WeightsOptions options = with_budget(chain, share);
      options.compressed = source.compressed_bytes(chain.graph);
      const WeightsPlan plan = plan_weights(chain.graph, costs, options);
      EXPECT_LE(plan.device_bytes(), *plan.budget);
      const std::string what = fmt::format("{}, share {}, {} loads", on, share, plan.loads.size());
      EXPECT_TRUE(verify_weights(plan, chain.graph).proven()) << what;
      EXPECT_TRUE(verify_weights(plan, chain.graph, device, source).proven()) << what;
      Runner runner(device, chain.graph, plan, source);
      expect_right(runner, chain, weights, what);
      streamed = streamed || any_streamed(plan);
      resident = resident || any_resident(plan);
    }
  }
  EXPECT_TRUE(streamed);
  EXPECT_TRUE(resident);
}

TEST(CompressedWeights, FewerBytesOnTheLinkMakeLoadBoundStepsShorter) {
  const Chain chain = f32_chain(32, kBytes, 1'000'000);  // a load takes 1.2 ms, an op 1 us
  const Weights weights = normal_weights(chain, 2);
  const Device device = Device::open("cpu");
  const WeightSource source = WeightSource::compressed(device, chain.graph, from_memory(weights));
  Costs costs = chain.costs;
  costs.device = "a GPU";
  WeightsOptions options{.ring = 4 * (kBytes + 256), .stream_all = true};
  const Picos plain = plan_weights(chain.graph, costs, options).step;
  options.compressed = source.compressed_bytes(chain.graph);
  const WeightsPlan plan = plan_weights(chain.graph, costs, options);
  EXPECT_TRUE(any_streamed(plan));
  EXPECT_EQ(plan.streamed_bytes, 32 * kBytes);
  const double ratio = static_cast<double>(plan.streamed_bytes) / static_cast<double>(plan.link_bytes());
  EXPECT_GT(ratio, 1.15);  // f32: 27.2 of 32 bits
  EXPECT_GT(static_cast<double>(plain) / static_cast<double>(plan.step), 0.97 * ratio);
  // The simulation with the ops of the loader agrees with the planner.
  const Prediction prediction = predict_weights(plan, chain.graph, costs);
  EXPECT_NEAR(static_cast<double>(prediction.step), static_cast<double>(plan.step),
              0.02 * static_cast<double>(plan.step));
  EXPECT_NE(describe(plan, chain.graph, costs).find("compressed"), std::string::npos);
}

TEST(CompressedWeights, ResidentGroupsStayCompressedWhereMoreOfThemFit) {
  const Chain chain = f32_chain(64, kBytes, 1'000'000);
  Costs costs = chain.costs;
  costs.device = "a GPU";
  WeightsOptions options{.budget = chain.graph.bytes_of(ValueRole::kWeight) / 2, .search_effort = 20'000};
  const Picos plain = plan_weights(chain.graph, costs, options).step;
  // As bf16 weights would be: 1.43 times smaller.
  options.compressed = [](const WeightGroup& group) { return group.bytes * 7 / 10 / 16 * 16; };
  const WeightsPlan plan = plan_weights(chain.graph, costs, options);
  EXPECT_TRUE(any_resident(plan));
  EXPECT_LE(plan.device_bytes(), *plan.budget);
  EXPECT_GT(static_cast<double>(plain) / static_cast<double>(plan.step), 1.8);
  const Prediction prediction = predict_weights(plan, chain.graph, costs);
  EXPECT_NEAR(static_cast<double>(prediction.step), static_cast<double>(plan.step),
              0.03 * static_cast<double>(plan.step));
}

// On the cpu device nothing crosses the link: the groups are decoded from where they are.
TEST(CompressedWeights, TheDescriptionSaysThatDecodingTakesTheTime) {
  const Chain chain = f32_chain(32, kBytes, 1'000'000);
  Costs costs = chain.costs;
  costs.device = "cpu";
  WeightsOptions options = with_budget(chain, 0.3);
  options.compressed = [](const WeightGroup& group) { return group.bytes * 7 / 10 / 16 * 16; };
  const WeightsPlan plan = plan_weights(chain.graph, costs, options);
  ASSERT_TRUE(any_streamed(plan));
  const std::string text = describe(plan, chain.graph, costs);
  EXPECT_NE(text.find("nothing over the link"), std::string::npos) << text;
  EXPECT_NE(text.find("of decoding: "), std::string::npos) << text;
  EXPECT_NE(text.find("most of it is decoding"), std::string::npos) << text;
}

TEST(CompressedWeights, NothingIsCompressedWhereComputeHidesTheLoads) {
  const Chain chain = f32_chain(32, kBytes, 6'000'000'000);  // an op takes 6 ms, a load 1.2
  Costs costs = chain.costs;
  WeightsOptions options{.budget = chain.graph.bytes_of(ValueRole::kWeight) / 4, .search_effort = 20'000};
  options.compressed = [](const WeightGroup& group) { return group.bytes * 7 / 10 / 16 * 16; };
  const WeightsPlan plan = plan_weights(chain.graph, costs, options);
  EXPECT_FALSE(any_streamed(plan) || any_resident(plan));
}

TEST(CompressedWeights, WithoutTheCostOfDecodingNothingIsCompressed) {
  Chain chain = f32_chain(32, kBytes, 1'000'000);
  chain.costs.decode = {};
  WeightsOptions options{.budget = chain.graph.bytes_of(ValueRole::kWeight) / 4, .search_effort = 20'000};
  options.compressed = [](const WeightGroup& group) { return group.bytes / 2 / 16 * 16; };
  const WeightsPlan plan = plan_weights(chain.graph, chain.costs, options);
  EXPECT_FALSE(any_streamed(plan) || any_resident(plan));
}

// Compressed groups that all fit into host memory are not read from disk. In every form, the groups in host memory fit.
TEST(CompressedWeights, HostMemoryHoldsAsManyGroupsAsFitInTheirForm) {
  const Chain chain = f32_chain(20, kBytes, 1'000'000);
  for (const double decode : {50e9, 2e9, 1e9}) {
    for (const std::uint64_t host_memory : {16 * kBytes, 10 * kBytes}) {
      Costs costs = chain.costs;
      costs.device = "a GPU";
      costs.decode = {decode, 1000};
      WeightsOptions options = with_budget(chain, 0.3);
      options.host_memory = host_memory;
      options.compressed = [](const WeightGroup& group) { return group.bytes * 7 / 10 / 16 * 16; };
      const WeightsPlan plan = plan_weights(chain.graph, costs, options);
      std::uint64_t kept = 0;
      for (const WeightGroup& group : plan.groups) kept += group.resident || group.from_disk ? 0 : group.stored_bytes();
      EXPECT_LE(kept, host_memory) << decode;
      if (decode < 50e9 || host_memory < 14 * kBytes) continue;
      EXPECT_TRUE(any_streamed(plan));
      EXPECT_TRUE(std::ranges::none_of(plan.groups, &WeightGroup::from_disk));
    }
  }
}

TEST(CompressedWeights, CompressedFilesRunFromMemoryAndFromDisk) {
  const Chain chain = f32_chain(20, kBytes, 1'000'000);
  const Weights weights = normal_weights(chain, 3);
  const Folder folder(chain, weights);
  const Device device = Device::open("cpu");
  const WeightSource source = WeightSource::files(folder.small());
  ASSERT_TRUE(source.compressed_bytes(chain.graph));
  for (const std::uint64_t host_memory : {UINT64_MAX, 10 * kBytes, std::uint64_t{0}}) {
    for (const bool compressed : {true, false}) {  // false: the host decodes
      for (const char* on : {"cpu", "a GPU"}) {
        if (test::kShare > 1 && host_memory > 0 && on != std::string("cpu")) continue;  // it takes long there
        Costs costs = chain.costs;
        costs.device = on;
        WeightsOptions options = with_budget(chain, 0.3);
        options.host_memory = host_memory;
        if (compressed) options.compressed = source.compressed_bytes(chain.graph);
        const WeightsPlan plan = plan_weights(chain.graph, costs, options);
        EXPECT_EQ(any_streamed(plan), compressed);
        EXPECT_TRUE(verify_weights(plan, chain.graph, device, source).proven());
        Runner runner(device, chain.graph, plan, source);
        expect_right(runner, chain, weights, fmt::format("{} in memory, {}", host_memory, on));
      }
    }
  }
}

std::uint64_t bytes_in_host_memory(const WeightsPlan& plan) {
  std::uint64_t bytes = 0;
  for (const WeightGroup& group : plan.groups) bytes += group.from_disk ? 0 : group.stored_bytes();
  return bytes;
}

TEST(CompressedWeights, CompressedWeightsThatFitHostMemoryAreNotReadFromDisk) {
  const Chain chain = f32_chain(24, kBytes, 1'000'000);
  Costs costs = chain.costs;
  costs.device = "a GPU";
  WeightsOptions options = with_budget(chain, 0.3);
  options.compressed = [](const WeightGroup& group) { return group.bytes * 7 / 10 / 16 * 16; };
  options.host_memory = 24 * kBytes * 8 / 10;  // of all weights, which take 0.7 compressed
  const WeightsPlan plan = plan_weights(chain.graph, costs, options);
  ASSERT_TRUE(any_streamed(plan));
  EXPECT_TRUE(std::ranges::none_of(plan.groups, &WeightGroup::from_disk));
}

// Decoding is slower than the link, and faster than the disk: only the groups on disk are compressed.
TEST(CompressedWeights, GroupsThatAreNotCompressedFitHostMemory) {
  const Chain chain = f32_chain(24, kBytes, 1'000'000);
  Costs costs = chain.costs;
  costs.device = "a GPU";
  costs.load = {7e9, 1000};
  costs.decode = {1e9, 1000};
  WeightsOptions options{.budget = 6 * kBytes, .search_effort = 20'000};
  options.compressed = [](const WeightGroup& group) { return group.bytes * 7 / 10 / 16 * 16; };
  options.host_memory = 24 * kBytes / 2;
  const WeightsPlan plan = plan_weights(chain.graph, costs, options);
  ASSERT_TRUE(any_streamed(plan));
  for (const WeightGroup& group : plan.groups) EXPECT_TRUE(group.compressed_bytes == 0 || group.from_disk);
  EXPECT_LE(bytes_in_host_memory(plan), options.host_memory);
}

TEST(CompressedWeights, ADamagedBlockIsFoundBeforeAnyOutput) {
  const Chain chain = f32_chain(30, kBytes, 1'000'000);
  const Weights weights = normal_weights(chain, 4);
  const Folder folder(chain, weights);
  flip_bit(folder.small() + "/model.safetensors");
  const Device device = Device::open("cpu");
  const WeightSource source = WeightSource::files(folder.small());
  for (const std::uint64_t host_memory : {UINT64_MAX, std::uint64_t{0}}) {
    WeightsOptions options = with_budget(chain, 0);
    options.host_memory = host_memory;
    options.compressed = source.compressed_bytes(chain.graph);
    const WeightsPlan plan = plan_weights(chain.graph, chain.costs, options);
    ASSERT_TRUE(any_streamed(plan));
    try {
      Runner runner(device, chain.graph, plan, source);
      runner.step();
      static_cast<void>(runner.output<std::byte>(*chain.graph.find("y29")));
      ADD_FAILURE() << "an output in spite of the damage";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("model.safetensors"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("block"), std::string::npos) << error.what();
    }
  }
}

// Groups that the device decodes and groups that the host decodes are read by the same stream.
TEST(CompressedWeights, SomeGroupsOfACompressedFolderAreDecodedByTheHost) {
  const Chain chain = f32_chain(20, kBytes, 1'000'000);
  const Weights weights = normal_weights(chain, 6);
  const Folder folder(chain, weights);
  const WeightSource source = WeightSource::files(folder.small());
  const Device device = Device::open("cpu");
  WeightsOptions options = with_budget(chain, 0);
  options.host_memory = 0;
  options.compressed = [all = source.compressed_bytes(chain.graph)](const WeightGroup& group) {
    return group.parts.front().bytes.value.index % 3 == 0 ? std::uint64_t{0} : all(group);
  };
  const WeightsPlan plan = plan_weights(chain.graph, chain.costs, options);
  const auto packed = [](const WeightGroup& group) { return group.compressed_bytes > 0; };
  ASSERT_TRUE(std::ranges::any_of(plan.groups, packed));
  ASSERT_FALSE(std::ranges::all_of(plan.groups, packed));
  Runner runner(device, chain.graph, plan, source);
  expect_right(runner, chain, weights, "every third group by the host");
}

TEST(CompressedWeights, APlanIsWrittenAndReadWithItsForms) {
  const Chain chain = f32_chain(32, kBytes, 1'000'000);
  Costs costs = chain.costs;
  costs.device = "a GPU";
  WeightsOptions options{.budget = chain.graph.bytes_of(ValueRole::kWeight) / 2, .search_effort = 20'000};
  options.compressed = [](const WeightGroup& group) { return group.bytes * 7 / 10 / 16 * 16; };
  const WeightsPlan plan = plan_weights(chain.graph, costs, options);
  const std::string path = fmt::format("{}/slip-compressed-plan-{}.json", testing::TempDir(), ::getpid());
  write_weights_plan(plan, chain.graph, path);
  const WeightsPlan again = read_weights_plan(chain.graph, path);
  std::filesystem::remove(path);
  EXPECT_EQ(again.slot_bytes, plan.slot_bytes);
  EXPECT_EQ(again.link_bytes(), plan.link_bytes());
  EXPECT_EQ(again.streamed_bytes, plan.streamed_bytes);
  EXPECT_EQ(again.decoding, plan.decoding);
  for (std::size_t i = 0; i < plan.groups.size(); ++i)
    EXPECT_EQ(again.groups[i].compressed_bytes, plan.groups[i].compressed_bytes) << i;
}

TEST(CompressedWeights, APlanForOtherSizesIsRefused) {
  const Chain chain = f32_chain(16, kBytes, 1'000'000);
  const Weights weights = normal_weights(chain, 5);
  const Device device = Device::open("cpu");
  WeightsOptions options = with_budget(chain, 0.2);
  options.compressed = [](const WeightGroup& group) { return group.bytes / 2 / 16 * 16; };
  const WeightsPlan plan = plan_weights(chain.graph, chain.costs, options);
  ASSERT_TRUE(any_streamed(plan));
  const WeightSource source = WeightSource::compressed(device, chain.graph, from_memory(weights));
  EXPECT_THROW(Runner(device, chain.graph, plan, source), Error);
  EXPECT_THROW(Runner(device, chain.graph, plan, from_memory(weights)), Error);
  WeightsPlan cut = plan;
  cut.slot_bytes = 256;
  EXPECT_NO_THROW(static_cast<void>(verify_weights(plan, chain.graph)));
  EXPECT_THROW(static_cast<void>(verify_weights(cut, chain.graph)), Error);
}

TEST(CompressedWeights, WeightsOfAnotherModelOfTheSameSizesAreRefused) {
  static const Kernel kUse{"use", [](const Args&) {}};
  const auto graph_with = [](const char* name) {
    Graph graph;
    const Value x = graph.input("x", DataType::kU32, {64}), y = graph.activation("y", DataType::kU32, {64});
    const Value weight = graph.weight(name, DataType::kF32, {kBytes / 4});
    graph.add_op({"op", &kUse, {graph.all_of(x), graph.all_of(weight)}, {graph.all_of(y)}, {}, {}});
    graph.output(y);
    return graph;
  };
  const Graph graph = graph_with("up"), other = graph_with("down");
  const std::vector<std::uint32_t> words(kBytes / 4);
  const WeightSource source = WeightSource::compressed(
      Device::open("cpu"), graph, WeightSource::memory([&](const GraphValue&) { return bytes_of(words); }));
  EXPECT_NO_THROW(static_cast<void>(source.compressed_bytes(graph)));
  EXPECT_THROW(static_cast<void>(source.compressed_bytes(other)), Error);
}

TEST(CompressedWeights, AStreamerCompressesItsGroups) {
  constexpr std::size_t kGroups = 32, kWords = 600'000;
  std::mt19937_64 random(6);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<std::uint16_t> words(kWords);
  for (std::uint16_t& word : words)
    word = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
  std::vector<std::vector<std::uint16_t>> weights;
  while (weights.size() < kGroups) {  // the same numbers, each time in another order
    std::rotate(words.begin(), words.begin() + 1009, words.end());
    weights.push_back(words);
  }
  const Device device = Device::open("cpu");
  for (const double share : {0.2, 0.5}) {
    std::vector<StreamedGroup> groups;
    std::vector<GroupUse> uses;
    for (std::size_t i = 0; i < kGroups; ++i) {
      groups.push_back(
          {fmt::format("g{}", i), GroupSource::memory(std::as_bytes(std::span(weights[i])), DataType::kBF16)});
      uses.push_back({fmt::format("g{}", i), 1000});
    }
    WeightStreamer streamer(device, groups,
                            {.budget = static_cast<std::uint64_t>(share * kGroups * kWords * 2) + 5 * kMiB,
                             .compress = true,
                             .load = {1e9, 0},
                             .decode = {50e9, 0}});
    const WeightPass pass = streamer.add_pass("pass", uses);
    streamer.plan();
    EXPECT_TRUE(any_streamed(streamer.plan_of(pass)));
    EXPECT_TRUE(streamer.verify(pass).proven());
    EXPECT_GT(streamer.predict(pass).step, 0);
    const Stream stream = device.stream();
    for (int step = 0; step < 3; ++step) {
      streamer.begin(pass);
      for (std::size_t i = 0; i < kGroups; ++i) {
        const std::string name = fmt::format("g{}", step == 2 ? kGroups - 1 - i : i);  // the last step: another order
        const Range range = streamer.acquire(name, stream);
        stream.sync();
        const auto* const found = static_cast<const std::uint16_t*>(WeightStreamer::address(range));
        ASSERT_TRUE(std::equal(found, found + kWords, weights[step == 2 ? kGroups - 1 - i : i].begin())) << name;
        streamer.release(name, stream);
      }
    }
    streamer.sync();
  }
}

// The files are not compressed. The streamer compresses their tensors in memory, and does not read the files again,
// whatever the limit of host memory is.
TEST(CompressedWeights, AStreamerCompressesTensorsOfFiles) {
  const Chain chain = f32_chain(12, kBytes, 1'000'000);
  const Weights weights = normal_weights(chain, 8);
  const Folder folder(chain, weights);
  const WeightSource files = WeightSource::files(folder.path + "/plain");
  const Device device = Device::open("cpu");
  std::vector<StreamedGroup> groups;
  std::vector<GroupUse> uses;
  for (const GraphValue& value : chain.graph.values()) {
    if (value.role != ValueRole::kWeight) continue;
    groups.push_back({value.name, GroupSource::tensors(files, {value.name})});
    uses.push_back({value.name, 1000});
  }
  WeightStreamer streamer(
      device, groups,
      {.budget = 5 * kBytes, .host_memory = 0, .compress = true, .load = {1e9, 0}, .decode = {50e9, 0}});
  const WeightPass pass = streamer.add_pass("pass", uses);
  streamer.plan();
  EXPECT_TRUE(any_streamed(streamer.plan_of(pass)));
  EXPECT_TRUE(streamer.verify(pass).proven());
  const Stream stream = device.stream();
  for (int step = 0; step < 2; ++step) {
    streamer.begin(pass);
    for (const StreamedGroup& group : groups) {
      const Range range = streamer.acquire(group.name, stream);
      stream.sync();
      const std::vector<std::uint32_t>& wanted = weights[std::stoul(group.name.substr(1))];
      const auto* const found = static_cast<const std::uint32_t*>(WeightStreamer::address(range));
      ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), found)) << group.name;
      streamer.release(group.name, stream);
    }
  }
  streamer.sync();
}

// An op that needs damaged weights does not run, though nobody has waited for the load.
TEST(CompressedWeights, AStreamerRunsNothingWithADamagedGroup) {
  const Chain chain = f32_chain(12, kBytes, 1'000'000);
  const Weights weights = normal_weights(chain, 7);
  const Folder folder(chain, weights);
  flip_bit(folder.small() + "/model.safetensors");
  const WeightSource files = WeightSource::files(folder.small());
  const Device device = Device::open("cpu");
  std::vector<StreamedGroup> groups;
  std::vector<GroupUse> uses;
  for (const GraphValue& value : chain.graph.values()) {
    if (value.role != ValueRole::kWeight) continue;
    groups.push_back({value.name, GroupSource::tensors(files, {value.name})});
    uses.push_back({value.name, 1000});
  }
  WeightStreamer streamer(
      device, groups,
      {.budget = 5 * kBytes, .host_memory = 0, .compress = true, .load = {1e9, 0}, .decode = {50e9, 0}});
  const WeightPass pass = streamer.add_pass("pass", uses);
  const Stream stream = device.stream();
  std::atomic<std::size_t> ran = 0;
  try {
    streamer.begin(pass);
    EXPECT_TRUE(any_streamed(streamer.plan_of(pass)));
    for (const StreamedGroup& group : groups) {
      static_cast<void>(streamer.acquire(group.name, stream));
      stream.host([&ran] { ran.fetch_add(1, std::memory_order_relaxed); });
      streamer.release(group.name, stream);
    }
    streamer.sync();
    ADD_FAILURE() << "the damage was not found";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("model.safetensors"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("block"), std::string::npos) << error.what();
  }
  EXPECT_THROW(stream.sync(), Error);
  EXPECT_LT(ran.load(), groups.size());
}

TEST(CompressedWeights, AGroupOfHalfAWeightIsRefused) {
  std::vector<std::byte> bytes(7);
  EXPECT_THROW(static_cast<void>(GroupSource::memory(bytes, DataType::kF32)), Error);
}

}  // namespace
}  // namespace slip::test_compressed_weights
