#include "flow/gradients/gradient_step.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/small_floats.hpp"
#include "flow/gradients/cuda_gradients.hpp"

namespace slip {

const char* compression_name(Compression compression) {
  switch (compression) {
    case Compression::kNone: return "none";
    case Compression::kF16: return "f16";
    case Compression::kBF16: return "bf16";
  }
  return "unknown";
}

}  // namespace slip

namespace slip::flow {
namespace {

template <class To, class From>
void convert(const Args& args) {
  const std::span<const From> from = args.in<From>(0);
  const std::span<To> to = args.out<To>(0);
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = base::from_float<To>(base::to_float(from[i]));
}

const Kernel kPackF16{"gradients to f16", convert<base::F16, float>, cuda::pack_f16},
    kUnpackF16{"gradients from f16", convert<float, base::F16>, cuda::unpack_f16},
    kPackBf16{"gradients to bf16", convert<base::Bf16, float>, cuda::pack_bf16},
    kUnpackBf16{"gradients from bf16", convert<float, base::Bf16>, cuda::unpack_bf16};

}  // namespace

void GradientReduction::enqueue(const GradientCall& call, Here here) const {
  if (hook_) return hook_(call);
  if (compression_ == Compression::kNone || call.type != DataType::kF32)
    return call.comm.all_reduce(call.data, call.data, call.type, ReduceOp::kAvg, call.stream, here);
  const bool half = compression_ == Compression::kF16;
  const Range small = call.scratch.slice(0, call.data.bytes / 2);
  const Cost cost{.bytes = call.data.bytes * 3 / 2};
  call.stream.launch(half ? kPackF16 : kPackBf16, {.reads = {call.data}, .writes = {small}}, cost, here);
  call.comm.all_reduce(small, small, half ? DataType::kF16 : DataType::kBF16, ReduceOp::kAvg, call.stream, here);
  call.stream.launch(half ? kUnpackF16 : kUnpackBf16, {.reads = {small}, .writes = {call.data}}, cost, here);
}

ReduceCost measure_reduction(const GradientReduction& reduction, Communicator& comm, const Device& device,
                             StreamRef stream, std::uint64_t max_bytes, Here here) {
  constexpr std::uint64_t kMin = 1024, kMax = std::uint64_t{64} << 20, kStep = 4;
  constexpr std::int64_t kLongNs = 50'000'000;  // a call that takes this long shows the rate well enough
  // Several calls in a row, as in a step. A link with a token bucket (rate limiter) sends the first bytes after an idle
  // period faster. Single small calls would seem cheaper than they are.
  constexpr int kTries = 3, kCalls = 8;
  max_bytes = std::clamp(max_bytes, kMin, kMax);
  SharedBuffer data = comm.allocate(max_bytes, "gradients: probe", here);
  SharedBuffer scratch = comm.allocate(reduction.needs_scratch() ? max_bytes : 0, "gradients: probe", here);
  Buffer took = device.alloc(sizeof(std::int64_t), MemoryKind::kPinned, "gradients: time", here);
  stream.fill(data, 0, "gradients: probe", here);
  stream.sync(here);
  meet_on_gpu(comm, device, here);
  TimedEvent begin, end;
  ReduceCost cost;
  for (std::uint64_t bytes = kMin;; bytes = std::min(bytes * kStep, max_bytes)) {
    std::int64_t min_ns = 0;
    // If the size before suggests that a call takes long, two calls are enough.
    const int calls =
        cost.known() && cost.points.back().time / 1000 * static_cast<std::int64_t>(kStep) > kLongNs / kCalls ? 2
                                                                                                             : kCalls;
    for (int i = 0; i <= kTries; ++i) {
      comm.barrier(stream, here);
      stream.sync(here);
      stream.record(begin, here);
      for (int call = 0; call < calls; ++call)
        reduction.enqueue({comm, stream, data.slice(0, bytes), DataType::kF32,
                           reduction.needs_scratch() ? scratch.slice(0, bytes) : Range{}},
                          here);
      stream.record(end, here);
      stream.sync(here);
      const std::int64_t ns = (end - begin).count() / calls;
      if (i == 1 || (i > 1 && ns < min_ns)) min_ns = ns;  // try 0 opens the connections and does not count
    }
    took.host_write<std::int64_t>()[0] = min_ns;
    comm.all_reduce(took, took, DataType::kI64, ReduceOp::kMax, stream, here);
    stream.sync(here);
    min_ns = took.host_read<std::int64_t>()[0];
    Picos time = std::max<Picos>(min_ns * 1000, 1);
    if (cost.known()) time = std::max(time, cost.points.back().time);  // more bytes never cost less
    cost.points.push_back({bytes, time});
    if (min_ns > kLongNs || bytes == max_bytes) return cost;
  }
}

GradientStep::GradientStep(Communicator& comm, Stream stream, const ParameterList& parameters,
                           const GradientReduction& reduction)
    : comm_(comm), parameters_(parameters), reduction_(reduction), stream_(std::move(stream)) {}

void GradientStep::adopt(const GradientLayout& layout, const BucketPlan& plan, Range memory, Range scratch) {
  const Event before = calls_.empty() ? Event() : calls_.back().done;  // calls run in order, so it covers all of them
  calls_.clear();
  for (const Bucket& bucket : plan.buckets) {
    Call& call = calls_.emplace_back();
    call.data = memory.slice(bucket.first, bucket.bytes);
    if (scratch.block) call.scratch = scratch.slice(bucket.first, bucket.bytes);
    call.type = layout.type_at(bucket.first);
    call.marks.resize(1);  // most programs write all gradients in one stream
    call.done = before;
  }
  std::vector<std::uint32_t> by_address(calls_.size());  // calls in the order of their data in memory
  for (std::uint32_t i = 0; i < by_address.size(); ++i) by_address[i] = i;
  std::ranges::sort(by_address, {}, [&](std::uint32_t i) { return plan.buckets[i].first; });
  states_.assign(parameters_.size(), {});
  touches_.clear();
  std::size_t at = 0;
  for (const std::uint32_t parameter : layout.order()) {
    ParameterState& state = states_[parameter];
    const std::uint64_t first = layout.first(parameter), end = first + parameters_[parameter].bytes;
    state.view = memory.slice(first, end - first);
    state.first_touch = static_cast<std::uint32_t>(touches_.size());
    const auto ends = [&](std::size_t i) {
      return plan.buckets[by_address[i]].first + plan.buckets[by_address[i]].bytes;
    };
    while (ends(at) <= first) ++at;
    for (std::size_t i = at; i < by_address.size() && plan.buckets[by_address[i]].first < end; ++i) {
      touches_.push_back(by_address[i]);
      ++state.touches;
      ++calls_[by_address[i]].touched;
      state.last_call = std::max(state.last_call, by_address[i]);
    }
  }
  waited_.clear();
  ended_ = true;
}

void GradientStep::ready(std::uint32_t parameter, StreamRef stream, GradientClock& clock, Here here) {
  ParameterState& state = states_[parameter];
  if (clock.records()) clock.arrived(parameter, stream, here);
  state.ready = true;
  for (std::uint32_t i = 0; i < state.touches; ++i) {
    Call& call = calls_[touches_[state.first_touch + i]];
    mark(call, stream, here);
    --call.pending;
  }
  for (; next_ < calls_.size() && calls_[next_].pending == 0; ++next_) make(next_, clock, here);
}

// A later mark of the same stream replaces the earlier one. On a GPU a record takes a microsecond between two kernels.
// So if one stream wrote all gradients of the call in the step before, only its last mark is recorded. If another
// stream joins it in this step, the postponed record comes then: it may cover more work than it needs to.
void GradientStep::mark(Call& call, StreamRef stream, Here here) {
  const bool may_postpone = call.by_one_stream && call.marks[0].stream == stream.id() && call.pending > 1;
  std::uint32_t i = 0;
  while (i < call.marked && call.marks[i].stream != stream.id()) ++i;
  if (i == call.marked) {
    for (std::uint32_t k = 0; k < call.marked; ++k) {
      Mark& other = call.marks[k];
      if (other.postponed) other.postponed->record(other.event, here);
      other.postponed.reset();
    }
    call.by_one_stream = call.by_one_stream && i == 0;
    if (call.marked++ == call.marks.size()) call.marks.emplace_back();
    call.marks[i].stream = stream.id();
  }
  Mark& own = call.marks[i];
  own.postponed.reset();
  if (may_postpone && call.by_one_stream) own.postponed = stream;
  else stream.record(own.event, here);
}

void GradientStep::await(std::uint32_t call, StreamRef stream, Here here) {
  const auto found = std::ranges::find(waited_, stream.id(), &Waited::stream);
  if (found != waited_.end() && found->call >= call) return;
  stream.wait(calls_[call].done, here);
  if (found != waited_.end()) found->call = call;
  else waited_.push_back({stream.id(), call});
}

void GradientStep::make(std::uint32_t index, GradientClock& clock, Here here) {
  Call& call = calls_[index];
  for (std::uint32_t i = 0; i < call.marked; ++i) stream_.wait(call.marks[i].event, here);
  if (clock.records()) clock.started(index, stream_, here);
  reduction_.enqueue({comm_, stream_, call.data, call.type, call.scratch}, here);
  if (clock.records()) clock.ended(index, stream_, here);
  stream_.record(call.done, here);
}

std::string GradientStep::text_of(std::uint32_t call, Detail detail) const {
  std::string text;
  std::uint32_t more = 0;
  for (std::uint32_t parameter = 0; parameter < states_.size(); ++parameter) {
    const ParameterState& state = states_[parameter];
    const auto begin = touches_.begin() + state.first_touch;
    if (std::find(begin, begin + state.touches, call) == begin + state.touches) continue;
    const Parameter& one = parameters_[parameter];
    if (text.empty()) text = detail == Detail::kSize ? one.text() : fmt::format("'{}'", one.name);
    else ++more;
  }
  return more > 0 ? fmt::format("{} and {} more", text, more) : text;
}

std::string GradientStep::missing(std::uint32_t call) const {
  for (std::uint32_t parameter = 0; parameter < states_.size(); ++parameter) {
    const ParameterState& state = states_[parameter];
    if (state.ready) continue;
    for (std::uint32_t i = 0; i < state.touches; ++i) {
      if (touches_[state.first_touch + i] <= call) return parameters_[parameter].text();
    }
  }
  return "none";
}

void GradientStep::begin() {
  for (ParameterState& state : states_) state.ready = false;
  for (Call& call : calls_) {
    call.pending = call.touched;
    call.by_one_stream = call.marked == 1;
    call.marked = 0;
  }
  waited_.clear();
  next_ = 0;
  ended_ = false;
}

}  // namespace slip::flow
