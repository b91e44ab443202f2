#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

#include "gpu.hpp"

namespace slip::bench {
namespace {

constexpr unsigned kBurnThreads = 1024;
constexpr unsigned kBurnBlocksPerProcessor = 2;  // 2048 threads: all that a multiprocessor takes

std::unique_ptr<Device> g_device;

// The shift between the multiplications keeps the compiler from combining several steps into one.
__host__ __device__ inline unsigned churn(unsigned word, unsigned steps) {
  for (unsigned i = 0; i < steps; ++i) word = (word ^ (word >> 15)) * 0x2c1b3c6du + 0x9e3779b9u;
  return word;
}

__global__ void count(const unsigned* /*unused*/, unsigned* word, unsigned value) { atomicAdd(word, value); }

__global__ void __launch_bounds__(kBurnThreads, kBurnBlocksPerProcessor) burn(unsigned* words, unsigned steps) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  words[i] = churn(words[i], steps);
}

void count_on_stream(const Args& args, CUstream_st* stream) {
  launch_count(args.in<unsigned>(0).data(), args.out<unsigned>(0).data(), args.scalar<unsigned>(0), stream);
}

void burn_on_stream(const Args& args, CUstream_st* stream) {
  launch_burn(args.out<unsigned>(0).data(), args.scalar<unsigned>(0), stream);
}

unsigned processors() {
  static const unsigned kProcessors = [] {
    int count = 0;
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
    return static_cast<unsigned>(count);
  }();
  return kProcessors;
}

std::string why_no_gpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (error != cudaSuccess) return std::string("no GPU: ") + cudaGetErrorString(error);
  return count > 0 ? "" : "no GPU: the driver finds none";
}

std::string gpu_text() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  const auto version = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  return std::string(properties.name) + ", CUDA runtime " + version(runtime) + ", driver for " + version(driver);
}

Recorded beside(Context& context, Pairs pairs, std::vector<double> judged) {
  context.note("medians: ours " + format_ns(median(pairs.ours)) + ", raw " + format_ns(median(pairs.raw)));
  Recorded recorded;
  recorded.ours = {"ours", std::move(judged), {}};
  recorded.peers = {{"ours_ns", std::move(pairs.ours), {}}, {"raw_ns", std::move(pairs.raw), {}}};
  return recorded;
}

}  // namespace

const Kernel kCount{"count", nullptr, count_on_stream};
const Kernel kBurn{"burn", nullptr, burn_on_stream};

void expect(bool holds, const std::string& otherwise) {
  if (!holds) throw std::runtime_error(otherwise);
}

Record on_gpu(Record record) {
  return [record = std::move(record)](Context& context) -> Recorded {
    if (std::string reason = why_no_gpu(); !reason.empty()) {
      context.skip(std::move(reason));
      return {};
    }
    static bool s_said = false;  // the note is printed once: all rows are of one device
    if (!std::exchange(s_said, true)) context.note(gpu_text());
    device();  // makes its context current before a raw call could make another context
    return record(context);
  };
}

const Device& device() {
  if (!g_device) g_device = std::make_unique<Device>(Device::open("cuda:0"));
  return *g_device;
}

void close_device() { g_device.reset(); }

RawStream::RawStream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

double gpu_ns(const RawStream& stream, const std::function<void()>& submit) {
  const RawEvent begin(cudaEventDefault), end(cudaEventDefault);
  check(cudaEventRecord(begin, stream), "cudaEventRecord");
  submit();
  check(cudaEventRecord(end, stream), "cudaEventRecord");
  stream.sync();
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e6;
}

void launch_count(const unsigned* unused, unsigned* word, unsigned value, cudaStream_t stream) {
  count<<<1, 1, 0, stream>>>(unused, word, value);
}

Counter::Counter() : memory_(device().alloc(2 * kWordAt)) {}

void Counter::reset() const {
  check(cudaMemset(raw_word(), 0, sizeof(unsigned)), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void Counter::expect_count(std::size_t launches) const {
  check(cudaGetLastError(), "launch");
  unsigned counted = 0;
  check(cudaMemcpy(&counted, raw_word(), sizeof counted, cudaMemcpyDeviceToHost), "cudaMemcpy");
  expect(counted == launches,
         std::to_string(launches) + " kernels were to run, " + std::to_string(counted) + " were counted");
}

void launch_burn(unsigned* words, unsigned steps, cudaStream_t stream) {
  burn<<<processors() * kBurnBlocksPerProcessor, kBurnThreads, 0, stream>>>(words, steps);
}

unsigned burn_words() { return processors() * kBurnBlocksPerProcessor * kBurnThreads; }

unsigned burn_steps_for(double ns) {
  constexpr int kKernels = 20;
  const Buffer memory = device().alloc(burn_words() * sizeof(unsigned));
  const RawStream stream;
  const auto kernel_ns = [&](unsigned steps) {
    return gpu_ns(stream,
                  [&] {
                    for (int i = 0; i < kKernels; ++i)
                      launch_burn(static_cast<unsigned*>(memory.native()), steps, stream);
                  }) /
           kKernels;
  };
  // Each round scales the number of steps by the time measured. Several rounds are needed: the clock rate rises during
  // the first ones, and the time of a kernel includes its start, so it is not proportional to the steps.
  unsigned steps = 1000;
  for (int round = 0; round < 6; ++round) {
    const double scaled = static_cast<double>(steps) * ns / kernel_ns(steps);
    steps = static_cast<unsigned>(std::clamp(scaled, 16.0, 1e8));
  }
  return steps;
}

unsigned churned(unsigned word, unsigned steps) { return churn(word, steps); }

Pairs take_pairs(const Context& context, const std::function<double()>& ours, const std::function<double()>& raw) {
  Pairs pairs;
  for (int turn = 0; turn < context.repeat() + 1; ++turn) {
    double ours_value = 0, raw_value = 0;
    if (turn % 2 == 0) ours_value = ours(), raw_value = raw();
    else raw_value = raw(), ours_value = ours();
    if (turn == 0) continue;
    pairs.ours.push_back(ours_value);
    pairs.raw.push_back(raw_value);
  }
  return pairs;
}

Recorded extra_ns(Context& context, Pairs pairs) {
  std::vector<double> extra;
  for (std::size_t i = 0; i < pairs.ours.size(); ++i) extra.push_back(pairs.ours[i] - pairs.raw[i]);
  return beside(context, std::move(pairs), std::move(extra));
}

Recorded percent(Context& context, Pairs pairs) {
  std::vector<double> quotients;
  for (std::size_t i = 0; i < pairs.ours.size(); ++i) quotients.push_back(100 * pairs.ours[i] / pairs.raw[i]);
  return beside(context, std::move(pairs), std::move(quotients));
}

}  // namespace slip::bench
