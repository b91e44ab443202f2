#include "stress/generator.hpp"

#include <algorithm>
#include <random>

namespace slip::stress {
namespace {

constexpr int kSlots = 3;  // events that each thread records again and again, on each device

class Generator {
 public:
  Generator(std::uint64_t seed, const Shape& shape) : shape_(shape), random_(seed), order_(program_) {
    program_.seed = seed;
    program_.devices = 1 + below(shape.max_devices);
    program_.threads = chance(50) ? 1 : 1 + below(shape.max_threads);
    program_.events = program_.threads * program_.devices * kSlots;
    program_.plans.reserve(8);
  }

  Program run() {
    add_buffers();
    for (int thread = 0; thread < program_.threads; ++thread) add_streams(thread);
    for (int i = below(3); i > 0; --i) add_plan();
    const int target = shape_.steps / 2 + below(shape_.steps);
    while (static_cast<int>(program_.steps.size()) < target) add_action();
    return std::move(program_);
  }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<std::uint64_t>(limit)); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  const T& any(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(below(static_cast<int>(list.size())))];
  }
  const StreamSpec& spec(int stream) const { return program_.streams[static_cast<std::size_t>(stream)]; }
  const BufferSpec& buffer(int index) const { return program_.buffers[static_cast<std::size_t>(index)]; }

  // --- what there is ---

  void add_buffers() {
    for (int device = 0; device < program_.devices; ++device) {
      for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kDevice, MemoryKind::kDevice, MemoryKind::kPinned,
                                    MemoryKind::kPinned, MemoryKind::kPageable})
        live_.push_back(new_buffer({kind, device, false}));
    }
  }
  int new_buffer(const BufferSpec& made) {
    program_.buffers.push_back(made);
    return static_cast<int>(program_.buffers.size() - 1);
  }

  void add_streams(int thread) {
    for (int device = 0; device < program_.devices; ++device) {
      using Form = StreamSpec::Form;
      const int created = 1 + below(3);
      for (int i = 0; i < created; ++i) open_stream(thread, device);
      if (chance(60)) streams_.push_back(new_stream({.form = Form::kLegacy, .thread = thread, .device = device}));
      if (chance(40)) streams_.push_back(new_stream({.form = Form::kPerThread, .thread = thread, .device = device}));
    }
  }
  int new_stream(const StreamSpec& made) {
    program_.streams.push_back(made);
    final_event_.push_back(-1);
    return static_cast<int>(program_.streams.size() - 1);
  }
  void open_stream(int thread, int device) {
    const int stream = new_stream({.thread = thread,
                                   .device = device,
                                   .flags = chance(60) ? StreamFlags::kBlocking : StreamFlags::kNonBlocking,
                                   .priority = -below(3)});
    streams_.push_back(stream);
    push({.kind = Kind::kOpen, .thread = thread, .stream = stream});
  }

  // Kernels, fills and copies on two branches; what conflicts across the branches is joined.
  void add_plan() {
    PlanSpec plan{.device = below(program_.devices), .nodes = {}};
    plan_owner_.push_back(below(program_.threads));
    const int nodes = 2 + below(4);
    for (int i = 0; i < nodes; ++i) {
      Step node = work(plan.device, {Kind::kKernel, Kind::kKernel, Kind::kFill, Kind::kCopy}, false);
      node.stream = below(2);
      node.edge = true;  // joined with the other branch: also when nothing conflicts, which is only slower
      if (chance(30)) node.edge = conflicts(plan, node);
      plan.nodes.push_back(node);
    }
    program_.plans.push_back(std::move(plan));
  }
  static bool overlap(const std::vector<Span>& a, const std::vector<Span>& b) {
    return std::any_of(a.begin(), a.end(), [&](const Span& x) {
      return std::any_of(b.begin(), b.end(), [&](const Span& y) {
        return x.buffer == y.buffer && x.page < y.page + y.pages && y.page < x.page + x.pages;
      });
    });
  }
  static bool conflicts(const PlanSpec& plan, const Step& node) {
    return std::any_of(plan.nodes.begin(), plan.nodes.end(), [&](const Step& other) {
      return other.stream != node.stream && (overlap(other.writes, node.writes) || overlap(other.writes, node.reads) ||
                                             overlap(other.reads, node.writes));
    });
  }

  // --- steps ---

  void push(Step step) {
    order_.apply(step);
    program_.steps.push_back(std::move(step));
  }

  // Adds the step, after whatever it must come after.
  void add(const Step& step) {
    while (const std::optional<Conflict> missing = order_.conflict(step)) add_edge(step, *missing);
    push(step);
  }

  int fresh_event() { return program_.events++; }
  int slot_event(int thread, int device) { return (thread * program_.devices + device) * kSlots + below(kSlots); }

  // Makes `thread` know what `owner` has done and issued.
  void hand_over(int owner, int thread) {
    const int handoff = program_.handoffs++;
    push({.kind = Kind::kPublish, .thread = owner, .handoff = handoff});
    push({.kind = Kind::kTake, .thread = thread, .handoff = handoff});
  }

  void add_edge(const Step& step, const Conflict& missing) {
    if (missing.chain < kMaxThreads) return hand_over(missing.chain, step.thread);  // the host's own access
    const int from = missing.chain - kMaxThreads;
    const int owner = spec(from).thread;
    // A copy between host buffers waits for its stream, but what it touches must be known to the host.
    const bool by_host = step.stream < 0 || touches_pageable(step);
    const bool gone = final_event_[static_cast<std::size_t>(from)] >= 0;
    if (owner == step.thread && !gone && shape_.host_edges && (by_host ? chance(50) : chance(15)))
      return push({.kind = Kind::kSync, .thread = owner, .stream = from});
    int event = final_event_[static_cast<std::size_t>(from)];
    if (!gone) {
      event = owner == step.thread ? slot_event(owner, spec(from).device) : fresh_event();
      push({.kind = Kind::kRecord, .thread = owner, .stream = from, .event = event});
    }
    if (owner != step.thread) hand_over(owner, step.thread);
    if (by_host) push({.kind = Kind::kSyncEvent, .thread = step.thread, .event = event});
    else push({.kind = Kind::kWait, .thread = step.thread, .stream = step.stream, .event = event, .edge = true});
  }
  bool on_host(const Span& span) const { return buffer(span.buffer).kind != MemoryKind::kDevice; }
  bool touches_pageable(const Step& step) const {
    if (step.kind != Kind::kCopy) return false;
    return (on_host(step.reads[0]) && on_host(step.writes[0])) ||
           buffer(step.reads[0].buffer).kind == MemoryKind::kPageable;
  }

  Span any_span(int buffer_index, int pages) { return {buffer_index, below(kPages - pages + 1), pages}; }
  // A buffer that ops of `device` may touch: its own, pinned ones, and rarely another device's.
  int any_buffer(int device, bool pageable) {
    for (;;) {
      const int index = any(live_);
      const BufferSpec& it = buffer(index);
      if (it.kind == MemoryKind::kPageable && !pageable) continue;
      if (it.kind == MemoryKind::kDevice && it.device != device && !chance(20)) continue;
      return index;
    }
  }
  int any_host_buffer(bool pageable) {
    for (;;) {
      const int index = any(live_);
      if (buffer(index).kind == MemoryKind::kPinned || (pageable && buffer(index).kind == MemoryKind::kPageable))
        return index;
    }
  }

  // A kernel, fill or copy for a stream of the device. Not `pageable`: nothing that a capture refuses.
  Step work(int device, const std::vector<Kind>& kinds, bool pageable) {
    Step step{.kind = any(kinds), .value = static_cast<std::uint32_t>(random_() | 1)};
    const int pages = 1 + below(2);
    if (step.kind == Kind::kHostFunction) {
      step.writes = {any_span(any_host_buffer(false), pages)};
      if (chance(50)) step.reads = {any_span(any_host_buffer(false), pages)};
    } else if (step.kind == Kind::kFill) {
      step.writes = {any_span(any_buffer(device, false), pages)};
    } else if (step.kind == Kind::kCopy) {
      do {
        step.reads = {any_span(any_buffer(device, pageable), pages)};
        step.writes = {any_span(any_buffer(device, pageable), pages)};
      } while (overlap(step.reads, step.writes) || (!pageable && on_host(step.reads[0]) && on_host(step.writes[0])));
    } else {
      step.writes = {any_span(any_buffer(device, false), pages)};
      for (int i = below(3); i > 0; --i) step.reads.push_back(any_span(any_buffer(device, false), pages));
    }
    return step;
  }

  void add_action() {
    const int stream = any(streams_);
    const int thread = spec(stream).thread, device = spec(stream).device;
    const int dice = below(100);
    if (dice < 62) {
      using enum Kind;
      Step step = work(device, {kKernel, kKernel, kKernel, kKernel, kCopy, kCopy, kCopy, kFill, kHostFunction}, true);
      step.thread = thread;
      step.stream = stream;
      add(step);
    } else if (dice < 68) {
      add_host_access(thread);
    } else if (dice < 74) {
      add_memory(stream);
    } else if (dice < 80) {
      add_launch(stream);
    } else if (dice < 90) {
      add_event_use(stream);
    } else if (dice < 94) {
      replace_stream(stream);
    } else {
      add_host_wait(stream);
    }
  }

  void add_host_access(int thread) {
    const Span span = any_span(any_host_buffer(true), 1 + below(2));
    Step step{.kind = chance(50) ? Kind::kHostRead : Kind::kHostWrite, .thread = thread};
    if (step.kind == Kind::kHostRead) step.reads = {span};
    else step.writes = {span}, step.value = static_cast<std::uint32_t>(random_() | 1);
    add(step);
  }

  // Stream-ordered memory: allocated and filled, or freed by any stream of its device.
  void add_memory(int stream) {
    const int thread = spec(stream).thread, device = spec(stream).device;
    std::vector<int> mine;
    for (const int index : live_) {
      if (buffer(index).dynamic && buffer(index).device == device) mine.push_back(index);
    }
    if (mine.size() < 2) {
      const int made = new_buffer({MemoryKind::kDevice, device, true});
      const std::vector<Span> whole = {{made, 0, kPages}};
      push({.kind = Kind::kAlloc, .thread = thread, .stream = stream, .writes = whole});
      push({.kind = Kind::kFill, .thread = thread, .stream = stream, .writes = whole, .value = random_byte()});
      live_.push_back(made);
      return;
    }
    const int gone = any(mine);
    if (in_plan(gone)) return;
    add({.kind = Kind::kFree, .thread = thread, .stream = stream, .writes = {{gone, 0, kPages}}});
    std::erase(live_, gone);
  }
  std::uint32_t random_byte() { return static_cast<std::uint32_t>(1 + below(255)); }
  bool in_plan(int index) const {
    for (const PlanSpec& plan : program_.plans) {
      for (const Step& node : plan.nodes) {
        if (overlap(node.reads, {{index, 0, kPages}}) || overlap(node.writes, {{index, 0, kPages}})) return true;
      }
    }
    return false;
  }

  void add_launch(int stream) {
    for (std::size_t plan = 0; plan < program_.plans.size(); ++plan) {
      if (plan_owner_[plan] != spec(stream).thread || program_.plans[plan].device != spec(stream).device) continue;
      if (chance(40)) continue;
      return add(
          {.kind = Kind::kLaunch, .thread = spec(stream).thread, .stream = stream, .plan = static_cast<int>(plan)});
    }
  }

  // Records that no op needs, and waits for arbitrary events, recorded or not.
  void add_event_use(int stream) {
    const int thread = spec(stream).thread;
    const int event = slot_event(thread, chance(80) ? spec(stream).device : below(program_.devices));
    if (chance(50)) push({.kind = Kind::kWait, .thread = thread, .stream = stream, .event = event});
    else
      push({.kind = Kind::kRecord,
            .thread = thread,
            .stream = stream,
            .event = slot_event(thread, spec(stream).device)});
  }

  // Destroys a stream, with whatever is pending in it, and opens another. Its end is kept as an event of its own.
  void replace_stream(int stream) {
    if (spec(stream).form != StreamSpec::Form::kCreated) return;
    const int thread = spec(stream).thread, device = spec(stream).device;
    const int event = fresh_event();
    push({.kind = Kind::kRecord, .thread = thread, .stream = stream, .event = event});
    push({.kind = Kind::kDestroy, .thread = thread, .stream = stream});
    final_event_[static_cast<std::size_t>(stream)] = event;
    std::erase(streams_, stream);
    open_stream(thread, device);
  }

  void add_host_wait(int stream) {
    const int thread = spec(stream).thread;
    switch (below(shape_.host_edges ? 6 : 2)) {
      case 0: return push({.kind = Kind::kQuery, .thread = thread, .stream = stream});
      case 1:
        return push({.kind = Kind::kQueryEvent, .thread = thread, .event = slot_event(thread, spec(stream).device)});
      case 2:
        return push({.kind = Kind::kSyncEvent, .thread = thread, .event = slot_event(thread, spec(stream).device)});
      case 3: return push({.kind = Kind::kSyncDevice, .thread = thread, .device = spec(stream).device});
      default: return push({.kind = Kind::kSync, .thread = thread, .stream = stream});
    }
  }

  const Shape shape_;
  std::mt19937_64 random_;
  Program program_;
  Order order_;
  std::vector<int> live_;         // buffers
  std::vector<int> streams_;      // open ones, and those that always are
  std::vector<int> final_event_;  // by stream: recorded at its end, -1 while it is open
  std::vector<int> plan_owner_;   // by plan: the thread that launches it
};

}  // namespace

Program generate(std::uint64_t seed, const Shape& shape) { return Generator(seed, shape).run(); }

}  // namespace slip::stress
