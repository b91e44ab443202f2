#include "stress/runner.hpp"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include "slip/plan.hpp"
#include "stress/cuda_kernels.hpp"

namespace slip::stress {
namespace {

void mix(const Args& args) {
  std::vector<Words> out, in;
  for (std::size_t i = 0; i < args.writes(); ++i)
    out.push_back({args.out<std::uint32_t>(i).data(), args.out<std::uint32_t>(i).size()});
  for (std::size_t i = 0; i < args.reads(); ++i)
    in.push_back({const_cast<std::uint32_t*>(args.in<std::uint32_t>(i).data()), args.in<std::uint32_t>(i).size()});
  mix_words(out, in, args.scalar<std::uint32_t>(0));
}

const Kernel& mix_kernel() {
  static const Kernel kMix{"mix", mix, cuda::mix};
  return kMix;
}

// What host threads hand to each other: that a step has been made.
class Handoffs {
 public:
  explicit Handoffs(int count) : given_(static_cast<std::size_t>(count)) {}
  void publish(int handoff) {
    const std::lock_guard lock(mutex_);
    given_[static_cast<std::size_t>(handoff)] = true;
    changed_.notify_all();
  }
  void take(int handoff) {
    std::unique_lock lock(mutex_);
    const auto given = [&] { return given_[static_cast<std::size_t>(handoff)] || failed_; };
    if (!changed_.wait_for(lock, std::chrono::seconds(60), given)) throw std::runtime_error("a handoff never came");
    if (failed_) throw std::runtime_error("another thread failed");
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> given_;  // guarded by mutex_
  bool failed_ = false;      // guarded by mutex_
};

class Run {
 public:
  Run(const Program& program, const char* device, const DeviceOptions& options)
      : program_(program),
        devices_(Device::open_all(device, program.devices, options)),
        buffers_(program.buffers.size()),
        streams_(program.streams.size()),
        events_(static_cast<std::size_t>(program.events)),
        handoffs_(program.handoffs) {
    result_.seen.resize(program.steps.size());
    for (const Device& from : devices_) {
      for (const Device& to : devices_) {
        if (!(from == to)) from.enable_peer_access(to);
      }
    }
    fill_buffers();
    for (const PlanSpec& plan : program.plans) plans_.push_back(capture(plan));
  }

  Result finish() {
    if (program_.threads == 1) {
      make_steps(0);
    } else {
      std::vector<std::thread> threads;
      for (int thread = 0; thread < program_.threads; ++thread)
        threads.emplace_back([this, thread] { make_steps(thread); });
      for (std::thread& thread : threads) thread.join();
    }
    try {
      for (const Device& device : devices_) device.sync();
      if (result_.error.empty()) read_buffers();
    } catch (const std::exception& error) {
      if (result_.error.empty()) result_.error = fmt::format("at the end: {}", error.what());
    }
    return std::move(result_);
  }

 private:
  Range range(const Span& span) const {
    return buffers_[static_cast<std::size_t>(span.buffer)].slice(static_cast<std::size_t>(span.page * kPageBytes),
                                                                 static_cast<std::size_t>(span.pages * kPageBytes));
  }
  std::vector<Range> ranges(const std::vector<Span>& spans) const {
    std::vector<Range> result;
    for (const Span& span : spans) result.push_back(range(span));
    return result;
  }
  Words host_words(const Span& span) const {
    auto* data = static_cast<std::uint32_t*>(buffers_[static_cast<std::size_t>(span.buffer)].native());
    return {data + span.page * kPageWords, static_cast<std::size_t>(span.pages * kPageWords)};
  }
  std::vector<Words> host_words(const std::vector<Span>& spans) const {
    std::vector<Words> words;
    for (const Span& span : spans) words.push_back(host_words(span));
    return words;
  }

  void fill_buffers() {
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
      const BufferSpec& spec = program_.buffers[b];
      if (spec.dynamic) continue;
      const Device& device = devices_[static_cast<std::size_t>(spec.device)];
      constexpr std::size_t kBytes = kPages * kPageBytes;
      buffers_[b] = device.alloc(kBytes, spec.kind, fmt::format("b{}", b));
      std::uint32_t words[kPages * kPageWords];
      for (int i = 0; i < kPages * kPageWords; ++i) words[i] = initial_word(static_cast<int>(b), i);
      device.copy(buffers_[b], device.wrap(words, kBytes));
    }
    for (const Device& device : devices_) device.sync();
  }

  void read_buffers() {
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
      std::vector<std::uint32_t>& words = result_.buffers.emplace_back();
      if (!buffers_[b]) continue;
      words.resize(buffers_[b].bytes() / 4);
      const Device& device = devices_[static_cast<std::size_t>(program_.buffers[b].device)];
      device.copy(device.wrap(words.data(), words.size() * 4), buffers_[b]);
    }
  }

  Plan capture(const PlanSpec& plan) {
    const Device& device = devices_[static_cast<std::size_t>(plan.device)];
    const Stream origin = device.stream(StreamFlags::kNonBlocking), forked = device.stream(StreamFlags::kNonBlocking);
    origin.begin_capture();
    forked.wait(origin.record());
    for (const Step& node : plan.nodes) {
      const Stream& mine = node.stream == 0 ? origin : forked;
      if (node.edge) mine.wait((node.stream == 0 ? forked : origin).record());
      issue(mine, node);
    }
    origin.wait(forked.record());
    return origin.end_capture();
  }

  StreamRef stream(const Step& step) const {
    const StreamSpec& spec = program_.streams[static_cast<std::size_t>(step.stream)];
    const Device& device = devices_[static_cast<std::size_t>(spec.device)];
    if (spec.form == StreamSpec::Form::kLegacy) return device.legacy_stream();
    if (spec.form == StreamSpec::Form::kPerThread) return device.per_thread_stream();
    return *streams_[static_cast<std::size_t>(step.stream)];
  }
  Event& event(const Step& step) { return events_[static_cast<std::size_t>(step.event)]; }

  // The ops that a plan can have, too.
  void issue(StreamRef on, const Step& step) const {
    switch (step.kind) {
      case Kind::kKernel: {
        const std::vector<Range> reads = ranges(step.reads), writes = ranges(step.writes);
        on.launch(mix_kernel(), {.reads = reads, .writes = writes, .scalars = {step.value}}, {.time = 1000});
        break;
      }
      case Kind::kCopy: on.copy(range(step.writes[0]), range(step.reads[0])); break;
      case Kind::kFill: on.fill(range(step.writes[0]), static_cast<unsigned char>(step.value)); break;
      default: break;
    }
  }

  void make_steps(int thread) {
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      if (program_.steps[i].thread != thread) continue;
      try {
        make(program_.steps[i], i);
      } catch (const std::exception& error) {
        const std::lock_guard lock(error_mutex_);
        if (result_.error.empty()) result_.error = fmt::format("step {}: {}", i, error.what());
        return handoffs_.fail();
      }
    }
  }

  void make(const Step& step, std::size_t index) {
    const auto own = static_cast<std::size_t>(step.stream);
    switch (step.kind) {
      case Kind::kOpen: {
        const StreamSpec& spec = program_.streams[own];
        streams_[own].emplace(devices_[static_cast<std::size_t>(spec.device)].stream(spec.flags, spec.priority));
        break;
      }
      case Kind::kDestroy: streams_[own].reset(); break;
      case Kind::kHostFunction:
        stream(step).host([out = host_words(step.writes), in = host_words(step.reads), value = step.value] {
          mix_words(out, in, value);
        });
        break;
      case Kind::kAlloc: buffers_[buffer(step)] = stream(step).alloc(kPages * kPageBytes); break;
      case Kind::kFree: stream(step).free(std::move(buffers_[buffer(step)])); break;
      case Kind::kLaunch: stream(step).launch(plans_[static_cast<std::size_t>(step.plan)]); break;
      case Kind::kRecord: stream(step).record(event(step)); break;
      case Kind::kWait: stream(step).wait(event(step)); break;
      case Kind::kQuery: static_cast<void>(stream(step).query()); break;
      case Kind::kQueryEvent: static_cast<void>(event(step).query()); break;
      case Kind::kSync: stream(step).sync(); break;
      case Kind::kSyncEvent: event(step).sync(); break;
      case Kind::kSyncDevice: devices_[static_cast<std::size_t>(step.device)].sync(); break;
      case Kind::kHostRead: {
        const HostAccess access(range(step.reads[0]), false, Here::at());
        const Words words = host_words(step.reads[0]);
        result_.seen[index] = digest(words.data, words.count);
        break;
      }
      case Kind::kHostWrite: {
        std::deque<HostAccess> accesses;
        for (const Span& span : step.reads) accesses.emplace_back(range(span), false, Here::at());
        for (const Span& span : step.writes) accesses.emplace_back(range(span), true, Here::at());
        mix_words(host_words(step.writes), host_words(step.reads), step.value);
        break;
      }
      case Kind::kPublish: handoffs_.publish(step.handoff); break;
      case Kind::kTake: handoffs_.take(step.handoff); break;
      default: issue(stream(step), step); break;
    }
  }
  static std::size_t buffer(const Step& step) { return static_cast<std::size_t>(step.writes[0].buffer); }

  const Program& program_;
  const std::vector<Device> devices_;
  std::vector<Buffer> buffers_;
  std::vector<std::optional<Stream>> streams_;
  std::vector<Event> events_;
  std::vector<Plan> plans_;
  Handoffs handoffs_;
  std::mutex error_mutex_;  // guards result_.error while threads run
  Result result_;
};

}  // namespace

Result run(const Program& program, const char* device, const DeviceOptions& options) {
  try {
    return Run(program, device, options).finish();
  } catch (const std::exception& error) {
    Result failed;
    failed.error = fmt::format("before the first step: {}", error.what());
    return failed;
  }
}

}  // namespace slip::stress
