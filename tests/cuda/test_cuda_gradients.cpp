// Gradients on cuda:0: ranks as threads and as processes on one GPU, against averages computed in double.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>

#include "slip/slip.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"

namespace slip {
namespace {

using test::as_ranks;
using test::expect_no_errors;
using test::local_id;
using test::Met;
using test::play;
using test::RankProcess;

constexpr const char* kSeedVariable = "SLIP_TEST_SEED";
// Elements of each parameter: one element, sizes that are no multiples of vectors, and one that the planner may cut.
const std::vector<std::size_t> kLayers = {1000, 3, 70'001, 16, 400'000, 1, 5003};

// GpuTrainer asks for this number. It is set before main(), because another suite of the program may open the GPU
// first.
[[maybe_unused]] const int kQueuesSet = ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);

// Not cudaGetDeviceCount: it creates state of the driver in this process.
bool has_gpu() { return ::access("/dev/nvidiactl", F_OK) == 0; }

std::uint32_t fresh_seed() { return std::random_device()(); }

// A cost with which the planner cuts gradients and reorders buckets.
ReduceCost some_cost() { return ReduceCost::of({.bytes_per_second = 1e9, .latency = 20'000'000}); }

// One rank. All its memory and streams are made before the first call, and destroyed after the last call of all ranks:
// both may wait until the GPU is idle.
class GpuTrainer {
 public:
  GpuTrainer(const UniqueId& id, int nranks, int rank, std::uint32_t seed, const CommunicatorOptions& options)
      : comm(Communicator::init(id, nranks, rank, device, options)), random(seed) {}

  int rank() const { return comm.rank(); }
  int nranks() const { return comm.nranks(); }

  // With more streams than hardware queues, a rank could wait in front of another rank in the same queue.
  const Device device = Device::open("cuda:0", {.max_connections = 32});
  const Stream compute = device.stream(StreamFlags::kNonBlocking), side = device.stream(StreamFlags::kNonBlocking);
  Buffer input = device.alloc(4 << 20, MemoryKind::kPinned, "input"),
         result = device.alloc(4 << 20, MemoryKind::kPinned, "result"),
         flag = device.alloc(64, MemoryKind::kPinned, "flag");
  Communicator comm;
  std::mt19937 random;  // draws the same numbers on all ranks
};

// Some f32 parameters. Each step has new random gradients, which every rank draws for all ranks.
class RandomNetwork {
 public:
  RandomNetwork(GpuTrainer& on, const GradientOptions& options, const std::vector<std::size_t>& sizes = kLayers)
      : trainer(on), gradients(on.comm, on.device, options), layers(sizes), absent(sizes.size()) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      ids.push_back(gradients.add(fmt::format("layer{}", i), layers[i] * sizeof(float), DataType::kF32));
      firsts.push_back(total);
      total += (layers[i] + 3) / 4 * 4;
    }
    gradients.seal();
  }

  // Values in [-1, 1] for all ranks; `average` is their average in double. A rank may have no gradient for a layer.
  void draw(bool some_absent) {
    std::uniform_real_distribution<float> values(-1, 1);
    average.assign(total, 0.0);
    const HostView<float> own = trainer.input.host_write<float>();
    for (int rank = 0; rank < trainer.nranks(); ++rank) {
      for (std::size_t i = 0; i < layers.size(); ++i) {
        const bool is_absent = some_absent && trainer.random() % 8 == 0;
        if (rank == trainer.rank()) absent[i] = is_absent;
        for (std::size_t k = firsts[i]; k < firsts[i] + layers[i]; ++k) {
          const float value = values(trainer.random);
          if (rank == trainer.rank()) own[k] = value;
          if (!is_absent) average[k] += static_cast<double>(value) / trainer.nranks();
        }
      }
    }
  }

  // Adds what the views hold to the new values, as a program does that accumulates. `average` is then that of the sums.
  void draw_and_accumulate() {
    for (std::size_t i = 0; i < layers.size(); ++i)
      trainer.compute.copy(trainer.result.slice(firsts[i] * sizeof(float), layers[i] * sizeof(float)),
                           gradients.view(ids[i]));
    trainer.compute.sync();
    const std::vector<double> before = average;
    draw(false);
    const HostView<const float> sums = trainer.result.host_read<float>();
    const HostView<float> own = trainer.input.host_write<float>();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      for (std::size_t k = firsts[i]; k < firsts[i] + layers[i]; ++k) {
        own[k] += sums[k];
        average[k] += before[k];
      }
    }
  }

  Range input_of(std::size_t i) const {
    return trainer.input.slice(firsts[i] * sizeof(float), layers[i] * sizeof(float));
  }
  void backward(std::size_t i, StreamRef stream) {
    if (absent[i]) return gradients.absent(ids[i], stream);
    stream.copy(gradients.view(ids[i]), input_of(i));
    gradients.ready(ids[i], stream);
  }
  void use(std::size_t i) {
    gradients.wait(ids[i], trainer.compute);
    trainer.compute.copy(trainer.result.slice(firsts[i] * sizeof(float), layers[i] * sizeof(float)),
                         gradients.view(ids[i]));
  }
  void use_all() {
    for (std::size_t i = 0; i < layers.size(); ++i) use(i);
  }
  // Another order of gradients on each rank, in two streams.
  void backward_in_any_order() {
    std::vector<std::size_t> order(layers.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::mt19937 own(static_cast<unsigned>(trainer.rank() + 1) * 7919U + static_cast<unsigned>(gradients.steps()));
    std::shuffle(order.begin(), order.end(), own);
    for (const std::size_t i : order) backward(i, own() % 3 == 0 ? trainer.side : trainer.compute);
  }
  std::string compare(const std::string& what, double factor, double tolerance) {
    trainer.compute.sync();
    trainer.side.sync();
    const HostView<const float> got = trainer.result.host_read<float>();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      for (std::size_t k = firsts[i]; k < firsts[i] + layers[i]; ++k) {
        if (std::abs(got[k] - average[k] * factor) <= tolerance) continue;
        return fmt::format("{}, step {}: element {} of layer {} is {} instead of {}", what, gradients.steps(),
                           k - firsts[i], i, got[k], average[k] * factor);
      }
    }
    return {};
  }

  GpuTrainer& trainer;
  Gradients gradients;
  std::vector<ParameterId> ids;
  std::vector<std::size_t> layers, firsts;
  std::size_t total = 0;  // elements
  std::vector<bool> absent;
  std::vector<double> average;
};

// The rounding of f32 sums; of values that are sent with fewer bits, also that of each partial sum.
double tolerance_of(Compression compression, int nranks) {
  const double one = compression == Compression::kNone  ? std::exp2(-24)
                     : compression == Compression::kF16 ? std::exp2(-11)
                                                        : std::exp2(-8);
  return 2 * nranks * one;
}

std::string check_averages(GpuTrainer& trainer) {
  for (const BucketRule rule : {BucketRule::kPlanned, BucketRule::kDdp, BucketRule::kEach}) {
    for (const Compression compression : {Compression::kNone, Compression::kF16, Compression::kBF16}) {
      const bool measured = compression == Compression::kNone;  // otherwise with a given cost
      RandomNetwork network(trainer, {.buckets = rule,
                                      .compression = compression,
                                      .cost = measured ? ReduceCost{} : some_cost(),
                                      .check_every = 2});
      for (int step = 0; step < 12; ++step) {
        network.draw(step % 2 == 1);
        network.backward_in_any_order();
        network.use_all();
        network.gradients.step_end();
        const std::string what =
            fmt::format("buckets {}, compression {}", bucket_rule_name(rule), compression_name(compression));
        if (std::string wrong = network.compare(what, 1, tolerance_of(compression, trainer.nranks())); !wrong.empty())
          return wrong;
      }
      if (network.gradients.steps() != 12) return "the number of steps is wrong";
      if (rule == BucketRule::kPlanned && network.gradients.plans() < 2) return "no plan was made from a step";
    }
  }
  return {};
}

// The host does not wait between steps.
std::string check_steps_ahead(GpuTrainer& trainer) {
  RandomNetwork network(trainer, {.cost = some_cost(), .check_every = 3});
  network.draw(false);
  for (int step = 0; step < 10; ++step) {
    for (std::size_t i = kLayers.size(); i-- > 0;) network.backward(i, trainer.compute);
    network.use_all();
    network.gradients.step_end();
  }
  return network.compare("steps ahead", 1, tolerance_of(Compression::kNone, trainer.nranks()));
}

std::string check_norm(GpuTrainer& trainer) {
  RandomNetwork network(trainer, {.cost = some_cost(), .check_every = 2, .norm = true});
  for (int step = 0; step < 6; ++step) {
    network.draw(step == 3);
    double squares = 0;
    for (const double value : network.average) squares += value * value;
    const double norm = std::sqrt(squares), max_norm = step % 2 == 0 ? norm / 3 : norm * 3;
    network.backward_in_any_order();
    network.gradients.clip_norm(max_norm, trainer.compute);
    network.use_all();
    network.gradients.step_end();
    const double tolerance = 2 * tolerance_of(Compression::kNone, trainer.nranks());
    if (std::string wrong = network.compare("clipped", step % 2 == 0 ? 1.0 / 3 : 1, tolerance); !wrong.empty())
      return wrong;
    const double got = HostView<const double>(network.gradients.norm(), Here::at())[0];
    if (std::abs(got - norm) > 1e-5 * norm) return fmt::format("the norm is {} instead of {}", got, norm);
  }
  return {};
}

// Three micro-batches are accumulated in the views; only the last one is reduced.
std::string check_no_sync(GpuTrainer& trainer) {
  RandomNetwork network(trainer, {.buckets = BucketRule::kEach});
  for (int step = 0; step < 3; ++step) {
    network.draw(false);
    for (int micro = 0; micro < 2; ++micro) {
      {
        const Gradients::NoSync pause(network.gradients);
        network.backward_in_any_order();
        network.gradients.step_end();
      }
      trainer.compute.sync();
      trainer.side.sync();
      network.draw_and_accumulate();
    }
    network.backward_in_any_order();
    network.use_all();
    network.gradients.step_end();
    const double tolerance =
        4 * tolerance_of(Compression::kNone, trainer.nranks());  // sums of three have more rounding
    if (std::string wrong = network.compare("after NoSync", 1, tolerance); !wrong.empty()) return wrong;
  }
  return network.gradients.steps() == 3 ? "" : "steps without reduction were counted";
}

// The hook averages into the scratch memory and copies it back.
std::string check_hook(GpuTrainer& trainer) {
  int calls = 0;
  const GradientHook hook = [&](const GradientCall& call) {
    ++calls;
    call.comm.all_reduce(call.scratch, call.data, call.type, ReduceOp::kAvg, call.stream);
    call.stream.copy(call.data, call.scratch);
  };
  RandomNetwork network(trainer, {.hook = hook});
  const int probes = calls;
  if (probes == 0) return "the cost of the hook was not measured";
  for (int step = 0; step < 4; ++step) {
    network.draw(false);
    network.backward_in_any_order();
    network.use_all();
    network.gradients.step_end();
    const double tolerance = tolerance_of(Compression::kNone, trainer.nranks());
    if (std::string wrong = network.compare("a hook", 1, tolerance); !wrong.empty()) return wrong;
  }
  return calls > probes ? "" : "the hook was not called in steps";
}

std::string check_types(GpuTrainer& trainer) {
  Gradients gradients(trainer.comm, trainer.device, {.cost = some_cost(), .check_every = 2});
  const ParameterId doubles = gradients.add("doubles", 8 * 999, DataType::kF64),
                    integers = gradients.add("integers", 4 * 77, DataType::kI32),
                    floats = gradients.add("floats", 4 * 5, DataType::kF32);
  gradients.seal();
  const auto n = static_cast<std::size_t>(trainer.nranks()), own = static_cast<std::size_t>(trainer.rank());
  for (int step = 0; step < 6; ++step) {
    std::vector<double> average(999, 0.0);
    std::vector<std::int64_t> sums(77, 0);
    {
      const HostView<double> numbers = trainer.input.host_write<double>(0, 8 * 999);
      const HostView<std::int32_t> counts = trainer.input.host_write<std::int32_t>(8192, 4 * 77);
      const HostView<float> zeros = trainer.input.host_write<float>(12288, 4 * 5);
      std::uniform_real_distribution<double> values(-1, 1);
      for (std::size_t rank = 0; rank < n; ++rank) {
        for (std::size_t i = 0; i < 999; ++i) {
          const double value = values(trainer.random);
          if (rank == own) numbers[i] = value;
          average[i] += value / static_cast<double>(n);
        }
        for (std::size_t i = 0; i < 77; ++i) {
          const auto value = static_cast<std::int32_t>(trainer.random() % 2'000'001) - 1'000'000;
          if (rank == own) counts[i] = value;
          sums[i] += value;
        }
      }
      for (float& zero : zeros) zero = 0;
    }
    const std::pair<ParameterId, std::size_t> all[] = {{doubles, 0}, {integers, 8192}, {floats, 12288}};
    for (const auto& [id, offset] : all) {
      const Range view = gradients.view(id);
      trainer.compute.copy(view, trainer.input.slice(offset, view.bytes));
      gradients.ready(id, trainer.compute);
    }
    for (const auto& [id, offset] : all) {
      gradients.wait(id, trainer.compute);
      const Range view = gradients.view(id);
      trainer.compute.copy(trainer.result.slice(offset, view.bytes), view);
    }
    gradients.step_end();
    trainer.compute.sync();
    const HostView<const double> numbers = trainer.result.host_read<double>(0, 8 * 999);
    for (std::size_t i = 0; i < 999; ++i) {
      if (std::abs(numbers[i] - average[i]) > 1e-14) return fmt::format("double {} of step {} is wrong", i, step);
    }
    const HostView<const std::int32_t> counts = trainer.result.host_read<std::int32_t>(8192, 4 * 77);
    for (std::size_t i = 0; i < 77; ++i) {
      if (counts[i] != sums[i] / static_cast<std::int64_t>(n))
        return fmt::format("integer {} of step {} is {}, the sum is {}", i, step, counts[i], sums[i]);
    }
  }
  return {};
}

std::string check_everything(GpuTrainer& trainer) {
  for (const auto check :
       {&check_averages, &check_steps_ahead, &check_norm, &check_no_sync, &check_hook, &check_types}) {
    const std::string wrong = check(trainer);
    if (wrong.empty()) continue;
    const std::string text = fmt::format("rank {}: {}", trainer.rank(), wrong);
    trainer.comm.fail(ErrorCode::kLaunchFailed, text);
    return text;
  }
  trainer.comm.finalize();
  return {};
}

// A captured step is a plan that can be proven and launched.
std::string check_plan(GpuTrainer& trainer) {
  RandomNetwork network(trainer, {.buckets = BucketRule::kDdp});
  network.draw(false);
  trainer.compute.begin_capture();
  for (std::size_t i = kLayers.size(); i-- > 0;) network.backward(i, trainer.compute);
  network.use_all();
  network.gradients.step_end();
  Plan plan = trainer.compute.end_capture();
  if (const Verification proof = verify(plan); !proof.proven()) return proof.text(plan);
  for (int launch = 0; launch < 2; ++launch) {
    network.draw(false);
    trainer.compute.launch(plan);
    const double tolerance = tolerance_of(Compression::kNone, trainer.nranks());
    if (std::string wrong = network.compare("a plan", 1, tolerance); !wrong.empty()) return wrong;
  }
  return {};
}

class CudaGradients : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  }
  // All ranks are constructed before the first call, and destroyed after the last: see GpuTrainer.
  static std::vector<Met> run(int count, const std::function<void(GpuTrainer&)>& body, int max_channels = 0) {
    const UniqueId id = local_id();
    const std::uint32_t seed = fresh_seed();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(20);
    options.max_channels = max_channels;
    std::vector<std::unique_ptr<GpuTrainer>> ranks(static_cast<std::size_t>(count));
    std::vector<Met> met = as_ranks(count, [&](int rank) {
      auto& mine = ranks[static_cast<std::size_t>(rank)];
      mine = std::make_unique<GpuTrainer>(id, count, rank, seed, options);
      body(*mine);
    });
    return met;
  }
  static void expect_right(int count, const std::function<std::string(GpuTrainer&)>& check, int max_channels = 0) {
    std::vector<std::string> wrong(static_cast<std::size_t>(count));
    const auto body = [&](GpuTrainer& one) { wrong[static_cast<std::size_t>(one.rank())] = check(one); };
    expect_no_errors(run(count, body, max_channels));
    for (const std::string& text : wrong) EXPECT_EQ(text, "");
  }
  static void expect_all(const std::vector<Met>& met, ErrorCode code, std::initializer_list<std::string_view> words) {
    for (std::size_t rank = 0; rank < met.size(); ++rank) {
      ASSERT_TRUE(met[rank].code) << "rank " << rank << " met no error";
      EXPECT_EQ(*met[rank].code, code) << met[rank].text;
      for (const std::string_view word : words)
        EXPECT_NE(met[rank].text.find(word), std::string::npos) << word << " is not in: " << met[rank].text;
    }
  }
};

TEST_F(CudaGradients, ThreadsGetTheAverage) {
  for (const int count : {2, 4}) expect_right(count, check_everything);
}

TEST_F(CudaGradients, AreRightWithFewBlocks) {
  for (const int max_channels : {1, 3}) expect_right(2, check_steps_ahead, max_channels);
}

TEST_F(CudaGradients, AStepIsAPlan) { expect_right(2, check_plan); }

SLIP_CHILD(CudaGradients, Everything) {
  play([](const transport::LaunchInfo& info) {
    const char* const seed = std::getenv(kSeedVariable);
    GpuTrainer one(info.id, info.nranks, info.rank, static_cast<std::uint32_t>(std::strtoul(seed, nullptr, 10)),
                   {.timeout = std::chrono::seconds(60)});
    const std::string wrong = check_everything(one);
    return wrong.empty() ? std::string("right") : wrong;
  });
}

TEST_F(CudaGradients, ProcessesGetTheAverage) {
  const UniqueId id = local_id();
  const std::string seed = std::to_string(fresh_seed());
  SCOPED_TRACE("seed " + seed);
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back("CudaGradients.Everything", id, 2, rank,
                       std::map<std::string, std::string>{{kSeedVariable, seed}});
  for (RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "right");
}

// The compute stream is held by a flag between two gradients. The first gradient is reduced meanwhile, and the report
// shows that.
TEST_F(CudaGradients, AreReducedWhileTheBackwardPassRuns) {
  expect_no_errors(run(2, [](GpuTrainer& trainer) {
    RandomNetwork network(trainer, {.buckets = BucketRule::kEach, .measure = true}, {5000, 300'000});
    for (int step = 0; step < 4; ++step) {
      network.draw(false);
      __atomic_store_n(static_cast<std::uint32_t*>(trainer.flag.native()), 0U, __ATOMIC_RELEASE);
      network.backward(1, trainer.compute);
      trainer.compute.wait_value(trainer.flag.slice(0, 4), 1);
      network.backward(0, trainer.compute);
      network.gradients.wait(network.ids[1], trainer.side);
      trainer.side.sync();  // returns only if the reduction does not wait for the compute stream
      __atomic_store_n(static_cast<std::uint32_t*>(trainer.flag.native()), 1U, __ATOMIC_RELEASE);
      network.use_all();
      network.gradients.step_end();
      EXPECT_EQ(network.compare("overlapped", 1, tolerance_of(Compression::kNone, 2)), "");
    }
    const std::optional<GradientReport> report = network.gradients.report();
    ASSERT_TRUE(report);
    ASSERT_EQ(report->buckets.size(), 2U);
    EXPECT_LT(report->buckets[0].end, report->buckets[1].ready);
    EXPECT_EQ(report->buckets[0].exposed, 0);
    EXPECT_GT(report->communication, 0);
    EXPECT_GT(report->overlapped(), 0);
    EXPECT_GE(report->time, report->bound);
  }));
}

TEST_F(CudaGradients, ReadyTwiceIsAnErrorOnAllRanks) {
  for (const int bad_step : {0, 3}) {
    expect_all(run(2,
                   [&](GpuTrainer& trainer) {
                     RandomNetwork network(trainer, {.cost = some_cost()}, {1000, 64});
                     for (int step = 0; step < 5; ++step) {
                       network.draw(false);
                       network.backward(1, trainer.compute);
                       if (step == bad_step && trainer.rank() == 1) network.backward(1, trainer.compute);
                       network.backward(0, trainer.compute);
                       network.use_all();
                       network.gradients.step_end();
                       trainer.compute.sync();
                     }
                   }),
               ErrorCode::kInvalidValue, {"rank 1", "twice", "'layer1'", "256 bytes"});
  }
}

TEST_F(CudaGradients, AMissingGradientIsAnErrorOnAllRanks) {
  for (const BucketRule rule : {BucketRule::kPlanned, BucketRule::kEach}) {
    for (const int count : {2, 4}) {
      expect_all(run(count,
                     [&](GpuTrainer& trainer) {
                       RandomNetwork network(trainer, {.buckets = rule, .cost = some_cost()}, {1000, 64, 5000});
                       for (int step = 0; step < 5; ++step) {
                         network.draw(false);
                         network.backward(2, trainer.compute);
                         if (step != 2 || trainer.rank() != 1) network.backward(1, trainer.compute);
                         network.backward(0, trainer.compute);
                         network.gradients.step_end();
                         for (std::size_t i = 0; i < 3; ++i) network.use(i);
                         trainer.compute.sync();
                       }
                     }),
                 ErrorCode::kInvalidValue, {"rank 1", "neither ready() nor absent()", "'layer1'"});
    }
  }
}

TEST_F(CudaGradients, AHookThatThrowsIsAnErrorOnAllRanks) {
  expect_all(run(2,
                 [&](GpuTrainer& trainer) {
                   int steps = 0;
                   const GradientHook hook = [&](const GradientCall& call) {
                     if (trainer.rank() == 1 && steps == 2) throw std::runtime_error("no more");
                     call.comm.all_reduce(call.data, call.data, call.type, ReduceOp::kAvg, call.stream);
                   };
                   RandomNetwork network(trainer, {.hook = hook, .cost = some_cost()}, {1000, 64});
                   for (; steps < 5; ++steps) {
                     network.draw(false);
                     for (std::size_t i = 2; i-- > 0;) network.backward(i, trainer.compute);
                     network.use_all();
                     network.gradients.step_end();
                     trainer.compute.sync();
                   }
                 }),
             ErrorCode::kLaunchFailed, {"rank 1", "the hook", "no more"});
}

TEST_F(CudaGradients, DifferentParametersAreAnErrorOnAllRanks) {
  expect_all(run(2,
                 [](GpuTrainer& trainer) {
                   Gradients gradients(trainer.comm, trainer.device);
                   gradients.add("fc.weight", trainer.rank() == 1 ? 2048 : 4096, DataType::kF32);
                   gradients.seal();
                 }),
             ErrorCode::kMismatch, {"rank 1", "'fc.weight'", "2048 bytes", "4096 bytes", "rank 0"});
}

}  // namespace
}  // namespace slip
