// Steps of two ranks on one GPU: what share of the communication the backward pass hides. The kernels of the backward
// pass and those of the reductions share the multiprocessors, so both may take longer together. All of that counts as
// exposed: it is the time of a step beyond its compute alone.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>

#include "base/env.hpp"
#include "cuda_work.hpp"
#include "models.hpp"
#include "slip/gradients.hpp"

namespace slip::bench {
namespace {

constexpr int kRanks = 2;
constexpr std::size_t kLayers = 48;
constexpr std::uint64_t kLayerBytes = std::uint64_t{32} << 20;
constexpr double kComputePerCommunication = 2;
constexpr int kWarmUps = 13;  // steps; the last early look at times leads to a plan by then
constexpr int kQueues = 32;   // hardware queues: no two streams share one

const Kernel kBackward{"backward", nullptr, work};

struct Setup {
  double share = 0.75;    // of the multiprocessors that compute
  int max_channels = 16;  // blocks of a reduction on each rank; 0: chosen by the communicator
};

struct Hidden {
  double compute_ns = 0, communication_ns = 0, step_ns = 0;
  double events_ns = 0;  // of compute alone, with an event after each layer
  std::size_t buckets = 0;
  double reported = 0;  // percent that the report calls overlapped; it knows nothing of slower compute
  double exposed_ns() const { return std::max(0.0, step_ns - compute_ns); }
  double percent() const { return 100 * (1 - exposed_ns() / communication_ns); }
};

// One rank. It is made before the first call and destroyed after the last call of both ranks.
class GpuRank {
 public:
  GpuRank(const UniqueId& id, int rank, const Setup& setup)
      : blocks_(std::max(1, static_cast<int>(multiprocessors() * setup.share / kRanks))),
        comm_(Communicator::init(id, kRanks, rank, device_, {.max_channels = setup.max_channels})),
        gradients_(comm_, device_, {}),
        reported_(comm_, device_, {.measure = true}) {
    for (Gradients* const one : {&gradients_, &reported_}) {
      for (std::size_t i = 0; i < kLayers; ++i) one->add(fmt::format("layer {}", i), kLayerBytes, DataType::kF32);
      one->seal();
    }
  }

  // `compute_ns`: what the compute of a step takes; 0: as long as kComputePerCommunication says.
  Hidden run(int steps, double compute_ns) {
    Hidden seen;
    for (int i = 0; i < 3; ++i) compute();
    seen.communication_ns = timed(steps, [&] { communicate(); });
    for (int i = 0; i < 3; ++i) {
      const double wanted = compute_ns > 0 ? compute_ns : seen.communication_ns * kComputePerCommunication;
      rounds_ = std::max(1, static_cast<int>(rounds_ * wanted / timed(1, [&] { compute(); })));
    }
    for (int i = 0; i < kWarmUps; ++i) step(gradients_);
    seen.communication_ns = timed(steps, [&] { communicate(); });
    // In turns, because the clock rate of the GPU changes.
    std::vector<double> alone, recorded, together;
    for (int turn = 0; turn < 9; ++turn) {
      alone.push_back(timed(steps, [&] { compute(); }));
      together.push_back(timed(steps, [&] { step(gradients_); }));
      recorded.push_back(timed(steps, [&] { compute(true); }));
    }
    seen.compute_ns = median(alone);
    seen.events_ns = median(recorded);
    seen.step_ns = median(together);
    seen.buckets = gradients_.plan().buckets.size();
    for (int i = 0; i < kWarmUps + 2; ++i) step(reported_);
    compute_.sync();
    if (const std::optional<GradientReport> report = reported_.report()) seen.reported = report->overlapped();
    check_result();
    return seen;
  }

 private:
  void backward(Range gradient) {
    compute_.launch(kBackward,
                    {.writes = {gradient}, .scalars = {blocks_, rounds_, static_cast<float>(comm_.rank() + 1)}});
  }
  void compute(bool records = false) {
    for (std::size_t i = 0; i < kLayers; ++i) {
      backward(plain_.slice(i % 2 * kLayerBytes, kLayerBytes));
      if (records) compute_.record(event_);
    }
  }
  // The calls of the plan, alone.
  void communicate() {
    for (const Bucket& bucket : gradients_.plan().buckets) {
      const Range data = plain_.slice(0, std::min<std::uint64_t>(bucket.bytes, plain_.bytes()));
      comm_.all_reduce(data, data, DataType::kF32, ReduceOp::kAvg, compute_);
    }
  }
  void step(Gradients& gradients) {
    for (std::size_t i = kLayers; i-- > 0;) {
      backward(gradients.view(ParameterId(i)));
      gradients.ready(ParameterId(i), compute_);
    }
    for (std::size_t i = 0; i < kLayers; ++i) gradients.wait(ParameterId(i), compute_);
    gradients.step_end();
  }
  void check_result() {
    for (std::size_t i = 0; i < kLayers; ++i) {
      compute_.copy(result_, gradients_.view(ParameterId(i)).slice(kLayerBytes - 64, 64));
      compute_.sync();
      for (const float value : result_.host_read<float>()) {
        if (value != 1.5F) throw std::runtime_error(fmt::format("layer {} is {} instead of 1.5", i, value));
      }
    }
  }
  // Host time of one of so many steps that are issued together; both ranks begin at once.
  double timed(int steps, const std::function<void()>& one) {
    comm_.barrier(compute_);
    compute_.sync();
    const Timer timer;
    for (int i = 0; i < steps; ++i) one();
    compute_.sync();
    return agreed(timer.elapsed_ns() / steps);
  }
  // The time of the slower rank counts for both, so that both choose the same number of rounds.
  double agreed(double ns) {
    time_.host_write<double>()[0] = ns;
    comm_.all_reduce(time_, time_, DataType::kF64, ReduceOp::kMax, compute_);
    compute_.sync();
    return time_.host_read<double>()[0];
  }

  const Device device_ = Device::open("cuda:0", {.max_connections = kQueues});
  const Stream compute_ = device_.stream(StreamFlags::kNonBlocking);
  Buffer plain_ = device_.alloc(kLayers * kLayerBytes, MemoryKind::kDevice, "plain");
  Buffer time_ = device_.alloc(sizeof(double), MemoryKind::kPinned, "time");
  Buffer result_ = device_.alloc(64, MemoryKind::kPinned, "result");
  Event event_;
  const int blocks_;
  int rounds_ = 2000;
  Communicator comm_;
  Gradients gradients_, reported_;
};

Hidden measure(const Setup& setup, int steps, double compute_ns = 0) {
  load_work();
  const UniqueId id = UniqueId::create({.host = "127.0.0.1"});
  std::vector<std::unique_ptr<GpuRank>> ranks(kRanks);
  std::vector<Hidden> seen(kRanks);
  std::vector<std::exception_ptr> errors(kRanks);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kRanks; ++i) {
    threads.emplace_back([&, i] {
      try {
        ranks[i] = std::make_unique<GpuRank>(id, static_cast<int>(i), setup);
        seen[i] = ranks[i]->run(steps, compute_ns);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return seen[0];
}

std::string text_of(const Hidden& seen) {
  return fmt::format(
      "compute alone {:.2f} ms ({:.2f} with an event after each layer), {} calls alone {:.2f} ms, a step {:.2f} ms: "
      "{:.1f} % hidden ({:.1f} % by the report, which does not count slower compute)",
      seen.compute_ns / 1e6, seen.events_ns / 1e6, seen.buckets, seen.communication_ns / 1e6, seen.step_ns / 1e6,
      seen.percent(), seen.reported);
}

std::optional<double> hidden_share(Context& context) {
  base::set_cuda_connections(kQueues);  // before the first CUDA call: the driver reads it once
  if (!has_gpu()) return context.skip("no GPU");
  // Few steps at a time: the driver's queue of a stream is limited, and a rank that waits in a launch would block the
  // launches of the other rank.
  const int steps = static_cast<int>(context.iterations(2));
  const Setup setup;
  const Hidden seen = measure(setup, steps);
  context.note(
      fmt::format("two ranks as threads on one GPU, {} layers of {} MiB, f32; compute on {:.0f} % of the "
                  "multiprocessors, reductions with {} blocks on each rank",
                  kLayers, kLayerBytes >> 20, setup.share * 100, setup.max_channels));
  context.note(text_of(seen));
  // The same compute with other numbers of blocks, and on all multiprocessors.
  const Setup others[] = {{0.75, 8}, {0.75, 12}, {0.75, 24}, {0.75, 0}, {1.0, 8}, {1.0, 16}, {1.0, 0}};
  for (const Setup& other : others)
    context.note(fmt::format("compute on {:.0f} %, {}: {}", other.share * 100,
                             other.max_channels == 0 ? "the communicator's own number of blocks"
                                                     : fmt::format("{} blocks", other.max_channels),
                             text_of(measure(other, steps, seen.compute_ns))));
  return seen.percent();
}

}  // namespace

void add_gpu_bars(Harness& harness) {
  harness.add({.area = "gradients",
               .name = "gpu_hidden",
               .unit = Unit::kPercent,
               .better = Better::kHigher,
               .ours = hidden_share,
               .limit = 90,
               .warmups = 0,
               .max_repeat = 3});
}

}  // namespace slip::bench
