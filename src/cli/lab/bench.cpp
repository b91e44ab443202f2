#include "cli/lab/bench.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "cli/commands.hpp"
#include "cli/lab/cuda_kernels.hpp"
#include "store/topology_file.hpp"
#include "watch/analysis/engine_use.hpp"

namespace slip::cli {
namespace {

constexpr int kRunsOnCpu = 5;

bool is_path(std::string_view name) { return name.find('/') != std::string_view::npos || name.ends_with(".json"); }

// Converts a plain path of a description to "sim:PATH" for Device::open.
std::string device_name(const std::string& wanted) {
  return is_path(wanted) && !wanted.starts_with("sim:") ? "sim:" + wanted : wanted;
}

// Blocks streams until it is opened.
class Gate {
 public:
  explicit Gate(const Device& device)
      : stream_(device.stream(kNonBlocking)), flag_(device.alloc(4, MemoryKind::kPinned, "gate")) {}
  ~Gate() { open(); }  // also if the body throws: otherwise the device could not close

  void hold(const std::vector<StreamRef>& streams) {
    set(0);
    stream_.wait_value(flag_, 1);
    const Event opened = stream_.record();
    for (const StreamRef stream : streams) stream.wait(opened);
  }
  void open() { set(1); }

 private:
  void set(std::uint32_t value) {
    __atomic_store_n(static_cast<std::uint32_t*>(flag_.native()), value, __ATOMIC_RELEASE);
  }

  Stream stream_;
  Buffer flag_;
};

}  // namespace

Pace::Pace(const Args& args) {
  const std::int64_t nanoseconds = pace_nanoseconds(args.scalar<std::int64_t>(0));
  end_ns_ = nanoseconds > 0 ? base::now_ns() + nanoseconds : 0;
}

Pace::~Pace() {
  while (end_ns_ != 0 && base::now_ns() < end_ns_)
    base::yield_thread();  // yields, because there may be more kernels than cores
}

CopyMemory::CopyMemory(const Device& on, std::size_t bytes) {
  for (int i = 0; i < 2; ++i) {
    host[i] = on.alloc(bytes, MemoryKind::kPinned, "host");
    device[i] = on.alloc(bytes, MemoryKind::kDevice, "device");
    std::ranges::fill(host[i].host_write<unsigned char>(), 1);
    on.copy(device[i], host[i]);
  }
}

const TraceSpan& Run::span(std::string_view name) const {
  for (const TraceSpan& each : spans) {
    if (each.run && each.name == name) return each;
  }
  throw Error(ErrorCode::kInvalidValue, fmt::format("the lab looks for an op '{}' that did not run", name));
}

Bench::Bench(LabOptions options) : options_(std::move(options)) {
  options_.device = device_name(options_.device);
  // Ranks that are threads share the queues of the process. If two streams share a queue, a rank that waits can be in
  // front of the rank that it waits for. A number that the user has set, for Slipstream or for CUDA, stays.
  if (on_gpu() && base::env().max_connections == 0) base::set_cuda_connections(kQueuesOfLabs);
  virtual_time_ = open_device(options_.device).info().virtual_time;
  if (virtual_time_ && !options_.topology.empty())
    cluster_ = flow::cluster_cost(store::read_topologies(options_.topology, {}), options_.nodes.value_or(1), {});
  if (on_gpu()) cuda::load_kernels();  // before a gate blocks streams
}

Picos Bench::upload_time(std::uint64_t bytes) const {
  const Device device = open();
  const Buffer to = device.alloc(bytes);
  Buffer from = device.alloc(bytes, MemoryKind::kPinned);
  std::ranges::fill(from.host_write<unsigned char>(), 1);
  const Stream stream = device.stream();
  if (!virtual_time_) {  // warm-up: maps the pages
    stream.copy(to, from);
    stream.sync();
  }
  return measure(device, {stream}, [&] { stream.copy(to, from); }).figures.total;
}

Work Bench::work(Picos time, double width) const {
  return {{.width = width, .time = time}, virtual_time_ ? 0 : pace_of(time / 1000, width)};
}

Run Bench::measure(const Device& device, const std::vector<StreamRef>& streams, const std::function<void()>& body,
                   const std::function<void()>& prepare) const {
  std::optional<Gate> gate;
  if (!virtual_time_ && !streams.empty()) gate.emplace(device);
  Run best;
  const int runs = virtual_time_ ? 1 : quick() ? 2 : kRunsOnCpu;
  for (int i = 0; i < runs; ++i) {
    if (prepare) prepare();
    if (gate) gate->hold(streams);
    Trace trace;
    body();
    if (gate) gate->open();
    device.sync();
    trace.stop();
    Run run{trace.data(), {}, {}, device.memory().peak};
    run.spans = run.data.spans();
    // Removes the gate, which was submitted before the trace began.
    std::erase_if(run.spans, [](const TraceSpan& span) { return !span.submit; });
    run.figures = figures(run.spans);
    if (i == 0 || run.figures.total < best.figures.total) best = std::move(run);
  }
  return best;
}

bool together(const TraceSpan& a, const TraceSpan& b) { return a.started < b.ended && b.started < a.ended; }

std::string order_of(std::vector<TraceSpan> spans) {
  std::ranges::sort(spans, {}, [](const TraceSpan& span) { return std::pair(span.started, span.name); });
  std::string text, apart;
  Picos busy_until = 0;
  std::size_t group = 0;  // index of the first op of the current "||" group
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const bool beside = i > 0 && spans[i].started < busy_until;
    if (!beside) group = i;
    text += fmt::format("{}{}", i == 0 ? "" : beside ? " || " : " -> ", spans[i].name);
    // In a || b || c, b may overlap both while c starts after a has ended.
    for (std::size_t k = group; k < i; ++k) {
      if (!together(spans[k], spans[i])) apart += fmt::format(", {} -> {}", spans[k].name, spans[i].name);
    }
    busy_until = std::max(busy_until, spans[i].ended);
  }
  return text + apart;
}

Cover cover(std::span<const TraceSpan> spans, const SpanFilter& of, const SpanFilter& by) {
  const auto times = [&](const SpanFilter& filter) {
    std::vector<std::vector<watch::Interval>> all;
    for (const TraceSpan& span : spans) {
      if (span.run && filter(span)) all.push_back({{span.started, span.ended}});
    }
    return watch::union_of(std::move(all));
  };
  const std::vector<watch::Interval> covered = times(of);
  return {watch::total_time(covered), watch::overlap_time(covered, times(by))};
}

SpanFilter named(std::string_view prefix) {
  return [prefix = std::string(prefix)](const TraceSpan& span) { return span.name.starts_with(prefix); };
}

double ratio(Picos a, Picos b) { return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b); }

int wrong_in_random_orders(int seeds, const std::function<bool(const Device&)>& program) {
  int wrong = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    const Device device = Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = static_cast<std::uint64_t>(seed)});
    if (!program(device)) ++wrong;
  }
  return wrong;
}

// The kernels of the labs. Scalar 0 is always the pace.
namespace {

void vector_add(const Args& args) {
  const Pace pace(args);
  const auto a = args.in<float>(0), b = args.in<float>(1);
  const auto out = args.out<float>(0);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = a[i] + b[i];
}

void saxpy(const Args& args) {
  const Pace pace(args);
  const auto x = args.in<float>(0), y = args.in<float>(1);
  const auto out = args.out<float>(0);
  const auto factor = args.scalar<float>(1);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = factor * x[i] + y[i];
}

void scale(const Args& args) {
  const Pace pace(args);
  const auto in = args.in<float>(0);
  const auto out = args.out<float>(0);
  const auto factor = args.scalar<float>(1), more = args.scalar<float>(2);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = factor * in[i] + more;
}

void take_time(const Args& args) { const Pace pace(args); }

}  // namespace

const Kernel kVectorAdd{"vector_add", vector_add, cuda::vector_add};
const Kernel kSaxpy{"saxpy", saxpy, cuda::saxpy};
const Kernel kScale{"scale", scale, cuda::scale};
const Kernel kBusy{"busy", take_time, cuda::busy};

}  // namespace slip::cli
