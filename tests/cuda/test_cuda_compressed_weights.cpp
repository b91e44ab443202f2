// Compressed weights on a GPU: streamed, resident and read from disk, they give the bits of a resident run.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "model/compressed_files.hpp"
#include "model/stack.hpp"
#include "slip/slip.hpp"

namespace slip::test_cuda_compressed_weights {
namespace {

class CudaCompressedWeights : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU here";
  }
};

struct Stack {
  model::StackOptions options;
  Graph graph;
  explicit Stack(DataType type) {
    options.blocks = 6;
    options.hidden = 1024;
    options.intermediate = 2816;
    options.tokens = 4;
    options.type = type;
    options.seed = std::random_device()();
    graph = model::stack_graph(options);
  }
  WeightSource source() const {
    return WeightSource::callback([this](const GraphValue& weight, std::uint64_t offset, std::span<std::byte> into) {
      model::fill_stack_weight(graph, options, *graph.find(weight.name), offset, into);
    });
  }
};

std::vector<std::byte> output_of(const Device& device, const Stack& stack, const WeightsPlan& plan,
                                 const WeightSource& source) {
  Runner runner(device, stack.graph, plan, source);
  std::vector<std::byte> output;
  for (int step = 0; step < 3; ++step) {
    const auto input = runner.input<std::byte>(*stack.graph.find("x"));
    for (std::size_t i = 0; i < input.size(); ++i) input[i] = std::byte(i % 2 == 0 ? i * 31 : 0x3D + i % 3);
    runner.step();
    const auto bytes = runner.output<std::byte>(*stack.graph.find("y"));
    output.assign(bytes.begin(), bytes.end());
  }
  return output;
}

TEST_F(CudaCompressedWeights, EveryFormGivesTheBitsOfAResidentRun) {
  const Device device = Device::open("cuda:0");
  for (const DataType type : {DataType::kBF16, DataType::kF32}) {
    const Stack stack(type);
    const WeightSource plain = stack.source(), packed = WeightSource::compressed(device, stack.graph, plain);
    Costs costs = measure_costs(stack.graph, device, packed);
    ASSERT_GT(costs.decode.bytes_per_second, 0);
    costs.load.bytes_per_second /= 50;  // so that all forms win somewhere
    costs.read = costs.load;
    const std::vector<std::byte> wanted = output_of(device, stack, plan_weights(stack.graph, costs), plain);
    const std::string folder = fmt::format("{}/slip-cuda-compressed-{}", testing::TempDir(), ::getpid());
    std::filesystem::create_directories(folder);
    std::vector<TensorShape> shapes;
    for (const GraphValue& value : stack.graph.values()) {
      if (value.role == ValueRole::kWeight) shapes.push_back({value.name, value.type, value.shape});
    }
    write_tensors(
        folder + "/model.safetensors", shapes, [&](std::size_t index, std::uint64_t offset, std::span<std::byte> into) {
          model::fill_stack_weight(stack.graph, stack.options, *stack.graph.find(shapes[index].name), offset, into);
        });
    model::compress_files(folder, folder + "-small", {}, {});
    const WeightSource files = WeightSource::files(folder + "-small");
    const std::uint64_t all = stack.graph.bytes_of(ValueRole::kWeight);
    bool streamed = false, resident = false;
    for (const double share : {0.35, 0.6, 0.8}) {
      for (const std::uint64_t host_memory : {UINT64_MAX, std::uint64_t{0}}) {
        WeightsOptions options{.budget = static_cast<std::uint64_t>(share * static_cast<double>(all)),
                               .host_memory = host_memory};
        const WeightSource& source = host_memory == 0 ? files : packed;
        options.compressed = source.compressed_bytes(stack.graph);
        const WeightsPlan plan = plan_weights(stack.graph, costs, options);
        EXPECT_TRUE(verify_weights(plan, stack.graph, device, source).proven());
        for (const WeightGroup& group : plan.groups) {
          streamed = streamed || (group.compressed_bytes > 0 && !group.resident);
          resident = resident || (group.compressed_bytes > 0 && group.resident);
        }
        EXPECT_EQ(output_of(device, stack, plan, source), wanted)
            << data_type_name(type) << ", share " << share << ", host memory " << host_memory;
      }
    }
    EXPECT_TRUE(streamed);
    EXPECT_TRUE(resident || type != DataType::kBF16);
    std::filesystem::remove_all(folder);
    std::filesystem::remove_all(folder + "-small");
  }
}

TEST_F(CudaCompressedWeights, AStreamerDecodesIntoTheRing) {
  constexpr std::size_t kGroups = 24, kWeights = 700'001;
  const Device device = Device::open("cuda:0");
  std::mt19937_64 random(std::random_device{}());
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<std::vector<std::uint16_t>> weights(kGroups, std::vector<std::uint16_t>(kWeights));
  std::vector<StreamedGroup> groups;
  std::vector<GroupUse> uses;
  for (std::size_t i = 0; i < kGroups; ++i) {
    for (std::uint16_t& word : weights[i])
      word = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
    groups.push_back(
        {fmt::format("g{}", i), GroupSource::memory(std::as_bytes(std::span(weights[i])), DataType::kBF16)});
    uses.push_back({fmt::format("g{}", i), 1000});
  }
  WeightStreamer streamer(device, groups, {.budget = kGroups * kWeights, .compress = true});
  const WeightPass pass = streamer.add_pass("pass", uses);
  streamer.plan();
  EXPECT_LT(streamer.plan_of(pass).link_bytes(), streamer.plan_of(pass).streamed_bytes);
  const Stream stream = device.stream();
  Buffer back = device.alloc(kWeights * 2, MemoryKind::kPinned);
  for (int step = 0; step < 3; ++step) {
    streamer.begin(pass);
    for (std::size_t i = 0; i < kGroups; ++i) {
      const std::size_t group = step == 2 ? kGroups - 1 - i : i;
      const Range range = streamer.acquire(static_cast<std::uint32_t>(group), stream);
      stream.copy(back, range);
      streamer.release(static_cast<std::uint32_t>(group), stream);
      stream.sync();
      const auto view = back.host_read<std::uint16_t>();
      ASSERT_TRUE(std::equal(view.begin(), view.end(), weights[group].begin())) << group;
    }
  }
  streamer.sync();
}

}  // namespace
}  // namespace slip::test_cuda_compressed_weights
