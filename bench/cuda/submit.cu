// The host time of a call of Slipstream, compared with the raw CUDA call. Each workload is measured in two ways. Until
// all work has run: that is what a program observes, but if the GPU is slower than the host, its time hides the host's.
// Only the submission, behind a closed gate: that is the host's time alone.
#include <optional>
#include <string>
#include <utility>

#include "bars.hpp"
#include "gate.hpp"
#include "gpu.hpp"

namespace slip::bench {
namespace {

constexpr double kExtraLimit = 200;     // nanoseconds that an op may take longer than the raw call
constexpr std::size_t kBatchOps = 480;  // well below the 1,024 launches that fit into a hardware queue

enum class Held { kNo, kYes };
enum class Side { kOurs, kRaw };

// The streams of both sides, and what runs in them. Rounds are submitted without waiting for anything.
class Workload {
 public:
  virtual ~Workload() = default;
  virtual void ours(std::size_t rounds) const = 0;
  virtual void raw(std::size_t rounds) const = 0;

  std::size_t ops = 1;       // of a round
  std::size_t launches = 1;  // of a round, for the counter
  bool second_held = false;  // the gate in the first stream also holds the second

  Stream a = device().stream(StreamFlags::kNonBlocking), b = device().stream(StreamFlags::kNonBlocking);
  RawStream raw_a, raw_b;
  Counter counter;

 protected:
  void launch(const Stream& stream) const {
    stream.launch(kCount, {.reads = {unused_}, .writes = {word_}, .scalars = {1u}});
  }
  void launch(const RawStream& stream) const { launch_count(raw_unused_, raw_word_, 1, stream); }

 private:
  Range unused_ = counter.unused(), word_ = counter.word();
  const unsigned* raw_unused_ = counter.raw_unused();
  unsigned* raw_word_ = counter.raw_word();
};

struct Launches final : Workload {
  void ours(std::size_t rounds) const override {
    for (std::size_t i = 0; i < rounds; ++i) launch(a);
  }
  void raw(std::size_t rounds) const override {
    for (std::size_t i = 0; i < rounds; ++i) launch(raw_a);
  }
};

// The raw side records the same event each time, which is the fastest way. A wait refers to the last record.
struct RecordWait final : Workload {
  RecordWait() { ops = 2, launches = 0, second_held = true; }
  void ours(std::size_t rounds) const override {
    for (std::size_t i = 0; i < rounds; ++i) b.wait(a.record());
  }
  void raw(std::size_t rounds) const override {
    for (std::size_t i = 0; i < rounds; ++i) {
      cudaEventRecord(event_, raw_a);
      cudaStreamWaitEvent(raw_b, event_, 0);
    }
  }

 private:
  RawEvent event_{cudaEventDisableTiming};
};

struct PingPong final : Workload {
  PingPong() { ops = 6, launches = 2, second_held = true; }
  void ours(std::size_t rounds) const override {
    for (std::size_t i = 0; i < rounds; ++i) {
      launch(a);
      b.wait(a.record());
      launch(b);
      a.wait(b.record());
    }
  }
  void raw(std::size_t rounds) const override {
    for (std::size_t i = 0; i < rounds; ++i) {
      launch(raw_a);
      cudaEventRecord(there_, raw_a);
      cudaStreamWaitEvent(raw_b, there_, 0);
      launch(raw_b);
      cudaEventRecord(back_, raw_b);
      cudaStreamWaitEvent(raw_a, back_, 0);
    }
  }

 private:
  RawEvent there_{cudaEventDisableTiming}, back_{cudaEventDisableTiming};
};

// Returns nanoseconds: with a gate until all work is submitted, without one until all work is done.
double run(const Workload& work, Side side, std::size_t rounds, Gate* gate) {
  const bool ours = side == Side::kOurs;
  const cudaStream_t first = ours ? work.a.native() : static_cast<cudaStream_t>(work.raw_a);
  const cudaStream_t second = ours ? work.b.native() : static_cast<cudaStream_t>(work.raw_b);
  work.counter.reset();
  if (gate) gate->close(first);
  const Timer timer;
  if (ours) work.ours(rounds);
  else work.raw(rounds);
  const double submitted = timer.elapsed_ns();
  if (gate) {
    // Checks that the work waits for the gate. If the second stream does, the records and waits have had an effect.
    const cudaError_t state = cudaStreamQuery(work.second_held ? second : first);
    static_cast<void>(cudaGetLastError());  // clears "not ready": otherwise the next check would find it as an error
    expect(state == cudaErrorNotReady, "the gate did not hold the work");
    gate->open();
  }
  if (ours) work.a.sync(), work.b.sync();
  else work.raw_a.sync(), work.raw_b.sync();
  const double done = timer.elapsed_ns();
  work.counter.expect_count(rounds * work.launches);
  return gate ? submitted : done;
}

// Measures the two sides alternately, in batches: changes of the machine's speed then affect both sides alike, and a
// batch fits into the queue behind the gate. The sum over the batches of a side is one sample.
Pairs interleaved_pairs(const Context& context, const Workload& work, std::size_t all_ops, Held held) {
  std::optional<Gate> gate;
  if (held == Held::kYes) gate.emplace();
  const std::size_t rounds = kBatchOps / work.ops, batches = context.iterations(all_ops / kBatchOps);
  const double ops = static_cast<double>(rounds * work.ops * batches);
  run(work, Side::kOurs, rounds, nullptr), run(work, Side::kRaw, rounds, nullptr);  // loads the kernels
  Pairs pairs;
  for (int turn = 0; turn < context.repeat() + 1; ++turn) {
    double sums[2] = {0, 0};
    for (std::size_t batch = 0; batch < batches; ++batch) {
      const bool ours_first = batch % 2 == 0;
      for (const bool ours : {ours_first, !ours_first})
        sums[ours ? 0 : 1] += run(work, ours ? Side::kOurs : Side::kRaw, rounds, gate ? &*gate : nullptr);
    }
    if (gate) gate->expect_held();
    if (turn == 0) continue;
    pairs.ours.push_back(sums[0] / ops);
    pairs.raw.push_back(sums[1] / ops);
  }
  return pairs;
}

template <class W>
void add_extra(Harness& harness, const std::string& name, std::size_t ops) {
  for (const Held held : {Held::kNo, Held::kYes}) {
    const auto record = [=](Context& context) {
      const W work;
      return extra_ns(context, interleaved_pairs(context, work, ops, held));
    };
    harness.add({.area = "cuda",
                 .name = name + (held == Held::kYes ? "_extra_submitted" : "_extra"),
                 .limit = kExtraLimit,
                 .record = on_gpu(record)});
  }
}

constexpr std::size_t kAllocBytes = std::size_t{1} << 20;

// Both functions return nanoseconds for a pair of allocation and free, until all work has run.

double alloc_free_ours(const Stream& stream, std::size_t pairs) {
  const std::size_t before = device().memory().used;
  std::size_t missing = 0;
  const Timer timer;
  for (std::size_t i = 0; i < pairs; ++i) {
    Buffer buffer = stream.alloc(kAllocBytes);
    missing += buffer.native() == nullptr;
    stream.free(std::move(buffer));
  }
  stream.sync();
  const double elapsed = timer.elapsed_ns();
  expect(missing == 0, "an allocation gave no address");
  expect(device().memory().used == before, "memory was not freed");
  return elapsed / static_cast<double>(pairs);
}

double alloc_free_raw(const RawStream& stream, std::size_t pairs) {
  std::size_t missing = 0;
  const Timer timer;
  for (std::size_t i = 0; i < pairs; ++i) {
    void* address = nullptr;
    cudaMallocAsync(&address, kAllocBytes, stream);
    missing += address == nullptr;
    cudaFreeAsync(address, stream);
  }
  stream.sync();
  const double elapsed = timer.elapsed_ns();
  check(cudaGetLastError(), "cudaMallocAsync or cudaFreeAsync");
  expect(missing == 0, "an allocation gave no address");
  return elapsed / static_cast<double>(pairs);
}

Recorded record_alloc_free(Context& context) {
  const std::size_t count = context.iterations(5000);
  const Stream stream = device().stream(StreamFlags::kNonBlocking);
  const RawStream raw_stream;
  Pairs pairs = take_pairs(
      context, [&] { return alloc_free_ours(stream, count); }, [&] { return alloc_free_raw(raw_stream, count); });
  context.note("for information, nothing must be reached; extra " + format_ns(median(pairs.ours) - median(pairs.raw)) +
               " a pair");
  return {{"ours", std::move(pairs.ours), {}}, {{"raw", std::move(pairs.raw), {}}}};
}

}  // namespace

void add_submit_bars(Harness& harness) {
  add_extra<Launches>(harness, "launch", 10'000);
  add_extra<RecordWait>(harness, "record_wait", 20'000);
  add_extra<PingPong>(harness, "ping_pong", 12'000);
  harness.add({.area = "cuda", .name = "alloc_free_1MiB", .target = 0, .record = on_gpu(record_alloc_free)});
}

}  // namespace slip::bench
