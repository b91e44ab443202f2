#include "slip/weight_streamer.hpp"

#include <algorithm>
#include <atomic>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "base/sync.hpp"
#include "flow/weights/group_catalog.hpp"
#include "flow/weights/loader.hpp"
#include "flow/weights/step.hpp"
#include "flow/weights/streamed_groups.hpp"
#include "flow/weights/streamed_pass.hpp"
#include "flow/weights/weight_groups.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"

namespace slip {
namespace {

constexpr std::uint64_t kProbeBytes = std::uint64_t{16} << 20;  // max bytes of a copy by which plan() measures loads
constexpr std::size_t kMoreUses = 256;  // the log has room for twice the planned uses and these, if a step has more

// Throws kNotPermitted if another thread is in a call of the same streamer. The call lasts as long as this object.
class OneThread : base::NoCopy {
 public:
  OneThread(std::atomic<bool>& busy, Here here) : busy_(busy) {
    // acquire: this thread sees what the thread of the call before wrote.
    if (busy_.exchange(true, std::memory_order_acquire))
      throw Error(ErrorCode::kNotPermitted, "another thread is in a call of this WeightStreamer: one at a time", here);
  }
  ~OneThread() { busy_.store(false, std::memory_order_release); }  // release: for the thread of the next call

 private:
  std::atomic<bool>& busy_;
};

}  // namespace

struct WeightStreamer::State {
  const Device device;
  const StreamerOptions options;
  flow::GroupCatalog catalog;
  std::vector<std::unique_ptr<flow::StreamedPass>> passes;
  std::vector<flow::PassHistory> histories;  // by pass
  Costs links;                               // of loads
  flow::StreamerMemory sizes;
  Buffer own_memory;
  Range memory;  // [resident groups | ring]
  std::unique_ptr<flow::Loader> loader;
  std::unique_ptr<flow::StreamedGroups> groups;  // null before plan()
  std::optional<std::uint32_t> current;          // the pass of this step
  flow::UseLog log;                              // of this step
  StreamerReport counted;
  mutable std::atomic<bool> busy = false;

  State(const Device& on, const std::vector<StreamedGroup>& all, const StreamerOptions& how, Here here)
      : device(on), options(how), catalog(all, here) {
    if (how.budget && how.slowdown)
      throw Error(ErrorCode::kInvalidValue, "give a budget or a slowdown, not both: each follows from the other", here);
    links.device = "streamer";  // the groups get no room for direct reads: see Loader::Options::exact_places
    links.load = how.load;
    links.read = how.read;
    links.decode = how.decode;
  }

  flow::StreamedPass& pass(WeightPass pass, Here here) const {
    if (pass.index >= passes.size())
      base::fail(ErrorCode::kInvalidValue, here, "the streamer has no pass {}: it has {}", pass.index, passes.size());
    return *passes[pass.index];
  }
  flow::StreamedPass& planned_pass(WeightPass index, Here here) const {
    flow::StreamedPass& found = pass(index, here);
    if (!groups) throw Error(ErrorCode::kNotReady, "the passes are not planned yet: call plan() first", here);
    return found;
  }
  Range ring() const { return sizes.ring_of(memory); }

  void measure_links(Here here);
  std::uint64_t budget(Here here) const;
  void leave_on_disk();
  void plan_pass(flow::StreamedPass& one) const;
  void plan(Here here);
  void end_step();
  void begin(WeightPass pass, Here here);
};

// Measures the links whose costs the program has not given. Copies go to the memory that the program gives, or to a
// buffer that is freed again.
void WeightStreamer::State::measure_links(Here here) {
  if (!(links.load.bytes_per_second > 0)) {
    const runtime::PrivateScope measuring;  // keeps these ops out of the program's trace
    std::uint64_t bytes = std::min(std::ranges::max(catalog.groups(), {}, &WeightGroup::bytes).bytes, kProbeBytes);
    if (options.memory) bytes = std::min<std::uint64_t>(bytes, options.memory->bytes);
    const Buffer host = device.alloc(bytes, MemoryKind::kPinned, "probe", here);
    const Buffer own = options.memory ? Buffer() : device.alloc(bytes, MemoryKind::kDevice, "probe", here);
    const Range to = options.memory ? *options.memory : own.range();
    links.load = measure_link(
        device,
        [&](StreamRef stream, std::uint64_t part) { stream.copy(to.slice(0, part), host.slice(0, part), "load"); },
        bytes, 1, here);
  }
  if (!(links.read.bytes_per_second > 0)) links.read = links.load;
  if (!(links.decode.bytes_per_second > 0) && catalog.any_packed()) links.decode = measure_decode(device, here);
}

std::uint64_t WeightStreamer::State::budget(Here here) const {
  const MemoryInfo info = device.memory();
  const std::uint64_t max = options.memory ? options.memory->bytes : info.total - std::min(info.total, info.used);
  if (options.budget) return options.memory ? std::min(*options.budget, max) : *options.budget;
  return options.slowdown ? std::min(max, flow::budget_for_slowdown(passes, catalog, options, here)) : max;
}

// Keeps groups of files in host memory, in their order, while they fit. Marks the others as read from disk.
void WeightStreamer::State::leave_on_disk() {
  std::uint64_t left = options.host_memory;
  for (std::uint32_t i = 0; i < catalog.size(); ++i) {
    if (!catalog.is_of_files(i) || catalog[i].resident || catalog.is_packed_in_memory(i)) continue;
    if (catalog[i].stored_bytes() > left) catalog.leave_on_disk(i);
    else left -= catalog[i].stored_bytes();
  }
}

void WeightStreamer::State::plan_pass(flow::StreamedPass& one) const {
  one.plan(catalog, sizes);
  one.make_table(ring());
}

void WeightStreamer::State::plan(Here here) {
  if (passes.empty()) throw Error(ErrorCode::kInvalidValue, "the streamer has no pass: call add_pass() first", here);
  catalog.clear_places();  // removes the places that an earlier, failed call has set
  catalog.compress(device, options.compress, here);
  measure_links(here);
  for (const auto& one : passes) one->set_links(links);
  sizes = flow::choose_memory(passes, catalog, budget(here), options, here);
  leave_on_disk();
  if (!options.memory) own_memory = device.alloc(sizes.bytes(), MemoryKind::kDevice, "streamed weights", here);
  memory = (options.memory ? *options.memory : own_memory.range()).slice(0, sizes.bytes());
  loader = std::make_unique<flow::Loader>(
      device, catalog.loaded(), sizes.loads_of(memory),
      flow::Loader::Options{.direct_reads = flow::is_host_memory(device), .exact_places = true}, here);
  loader->fill_resident(here);
  for (const auto& one : passes) plan_pass(*one);
  groups = std::make_unique<flow::StreamedGroups>(device, catalog, sizes, memory, *loader);
}

// Learns from the step that has ended. If the program has changed the order, the pass is planned again.
void WeightStreamer::State::end_step() {
  if (!current) return;
  const std::uint32_t index = *current;
  flow::PassHistory& history = histories[index];
  flow::StreamedPass& one = *passes[index];
  // A step that was broken off has an incomplete order.
  const bool complete = log.complete() && !groups->has_open_uses();
  bool changed = options.learn && complete && history.is_new_order(one.order(), log.order());
  if (changed) {
    one.change_order(log.order(), catalog);
    history.drop_times();
    ++counted.replans;
  }
  history.end_step(complete && log.order() == one.order());
  if (const std::optional<std::vector<Picos>> times = history.take_times();
      times && times->size() == one.order().size()) {
    one.change_times(*times, catalog);
    changed = true;
  }
  if (!log.complete()) log.reserve(2 * log.order().size());  // the next step of this length is logged completely
  if (!changed) return;
  plan_pass(one);
  groups->forget_plan();
}

void WeightStreamer::State::begin(WeightPass next, Here here) {
  pass(next, here);
  if (!groups) plan(here);
  loader->check_decoded(here);
  groups->last_load().query(here);  // throws the error of a load; does not wait
  end_step();
  if (current) histories[*current].follower = next.index;
  flow::StreamedPass& one = *passes[next.index];
  log.reserve(2 * one.order().size() + kMoreUses);
  log.clear();
  histories[next.index].reserve(log.max_uses());
  if (!one.times_known() && options.learn) histories[next.index].measure(one.order().size(), groups->stream());
  current = next.index;
  counted.broken_off += groups->begin(one.table(), passes[histories[next.index].follower]->table());
  ++counted.steps;
}

WeightStreamer::WeightStreamer(const Device& device, std::vector<StreamedGroup> groups, const StreamerOptions& options,
                               Here here)
    : state_(std::make_unique<State>(device, groups, options, here)) {}

WeightStreamer::~WeightStreamer() {
  if (!state_->groups) return;
  std::vector<StreamRef> streams = state_->loader->streams();
  streams.push_back(state_->groups->stream());
  flow::wait_for_all(streams);
}

WeightPass WeightStreamer::add_pass(std::string name, const std::vector<GroupUse>& uses, Here here) {
  const OneThread call(state_->busy, here);
  flow::UseOrder order;
  std::vector<Picos> times;
  const auto add = [&](std::uint32_t group, Picos time, std::uint32_t held) {
    order.push_back({group, static_cast<std::uint32_t>(order.size()) + held});
    times.push_back(time);
  };
  for (const GroupUse& use : uses) {
    if (use.held >= uses.size() - order.size())
      base::fail(ErrorCode::kInvalidValue, here,
                 "use {} of pass '{}', of group '{}', is held over {} uses, but {} follow", order.size(), name,
                 use.group, use.held, uses.size() - order.size() - 1);
    add(state_->catalog.find(use.group, here), use.time, use.held);
  }
  for (std::uint32_t i = 0; uses.empty() && i < state_->catalog.size(); ++i) add(i, 0, 0);
  const WeightPass pass{static_cast<std::uint32_t>(state_->passes.size())};
  auto made = std::make_unique<flow::StreamedPass>(std::move(name), std::move(order), std::move(times), state_->catalog,
                                                   state_->links);
  if (state_->groups) state_->plan_pass(*made);
  state_->passes.push_back(std::move(made));
  state_->histories.emplace_back().follower = pass.index;
  return pass;
}

void WeightStreamer::plan(Here here) {
  const OneThread call(state_->busy, here);
  if (state_->groups) throw Error(ErrorCode::kNotPermitted, "the streamer is planned already", here);
  state_->plan(here);
}

const WeightsPlan& WeightStreamer::plan_of(WeightPass pass, Here here) const {
  return state_->planned_pass(pass, here).plan();
}
const Graph& WeightStreamer::graph_of(WeightPass pass, Here here) const { return state_->pass(pass, here).graph(); }
const Costs& WeightStreamer::costs_of(WeightPass pass, Here here) const {
  return state_->planned_pass(pass, here).costs();
}

std::string WeightStreamer::describe(WeightPass pass, Here here) const {
  const flow::StreamedPass& one = state_->planned_pass(pass, here);
  const char* const times = one.times_known() ? "" : " (the times of its kernels are not known: taken as 0)";
  return fmt::format("pass           {}{}\n", one.name(), times) + slip::describe(one.plan(), one.graph(), one.costs());
}

WeightsProof WeightStreamer::verify(WeightPass pass, Here here) const {
  const OneThread call(state_->busy, here);
  const State& state = *state_;
  flow::StreamedPass one = state.planned_pass(pass, here);
  const runtime::PrivateScope proving;  // keeps these ops out of the program's trace
  const Device device = flow::open_proof_device(state.sizes.bytes(), here);
  const Buffer memory = device.alloc(state.sizes.bytes(), MemoryKind::kDevice, "streamed weights", here);
  flow::Loader loader(device, state.catalog.proven(), state.sizes.loads_of(memory),
                      {.direct_reads = flow::is_host_memory(state.device),
                       .exact_places = true,
                       .purpose = flow::Loader::Purpose::kProve},
                      here);
  flow::StreamedGroups groups(device, state.catalog, state.sizes, memory, loader);
  one.make_table(state.sizes.ring_of(memory));
  const Stream compute = device.stream("compute", StreamFlags::kNonBlocking, 0, here);
  device.sync(here);
  std::vector<StreamRef> others = loader.streams();
  others.push_back(groups.stream());
  const auto issue_step = [&] {
    groups.begin(one.table(), one.table());
    for (std::uint32_t i = 0; i < one.order().size(); ++i) {
      const Range weights = groups.acquire(one.order()[i].group, i, compute, here).range;
      compute.launch(*one.graph().ops()[i].kernel, {.reads = {weights}, .writes = {}, .scalars = {}, .name = {}}, {});
      for (std::uint32_t k = 0; k <= i; ++k) {
        if (one.order()[k].last == i) groups.release(one.order()[k].group, compute, here);
      }
    }
  };
  return flow::prove_captured(flow::capture_steps(compute, others, issue_step, here));
}

Prediction WeightStreamer::predict(WeightPass pass, int steps, Here here) const {
  const OneThread call(state_->busy, here);
  const flow::StreamedPass& one = state_->planned_pass(pass, here);
  return predict_weights(one.plan(), one.graph(), one.costs(), steps, here);
}

void WeightStreamer::begin(WeightPass pass, Here here) {
  const OneThread call(state_->busy, here);
  state_->begin(pass, here);
}

Range WeightStreamer::acquire(std::uint32_t group, StreamRef stream, Here here) {
  const OneThread call(state_->busy, here);
  State& state = *state_;
  state.catalog.check(group, here);
  if (!state.current)
    base::fail(ErrorCode::kNotReady, here, "acquire of group '{}' before the first begin(): no step has begun",
               state.catalog.name(group));
  const auto use = static_cast<std::uint32_t>(state.log.order().size());
  const flow::StreamedGroups::Acquired acquired = state.groups->acquire(group, use, stream, here);
  state.log.add(group);
  state.histories[*state.current].begin_use(use, stream);
  ++state.counted.uses;
  state.counted.skipped += acquired.skipped;
  state.counted.unplanned += acquired.planned == kNoOp ? 1 : 0;
  return acquired.range;
}

Range WeightStreamer::acquire(std::string_view group, StreamRef stream, Here here) {
  return acquire(state_->catalog.find(group, here), stream, here);
}

void WeightStreamer::release(std::uint32_t group, StreamRef stream, Here here) {
  const OneThread call(state_->busy, here);
  State& state = *state_;
  state.catalog.check(group, here);
  if (!state.current)
    base::fail(ErrorCode::kInvalidValue, here, "release of group '{}', which is not acquired",
               state.catalog.name(group));
  const std::uint32_t use = state.groups->release(group, stream, here);
  state.histories[*state.current].end_use(use, stream);
  state.log.end(use);
}

void WeightStreamer::release(std::string_view group, StreamRef stream, Here here) {
  release(state_->catalog.find(group, here), stream, here);
}

std::uint32_t WeightStreamer::group(std::string_view name, Here here) const { return state_->catalog.find(name, here); }

std::uint64_t WeightStreamer::offset(std::string_view group, std::size_t tensor, Here here) const {
  const WeightGroup& found = state_->catalog[state_->catalog.find(group, here)];
  if (tensor >= found.parts.size())
    base::fail(ErrorCode::kInvalidValue, here, "group '{}' has no tensor {}: it has {}", group, tensor,
               found.parts.size());
  return found.parts[tensor].offset;
}

std::optional<Range> WeightStreamer::resident(std::uint32_t group, Here here) const {
  state_->catalog.check(group, here);
  if (!state_->groups) throw Error(ErrorCode::kNotReady, "the passes are not planned yet: call plan() first", here);
  const WeightGroup& found = state_->catalog[group];
  if (!found.in_place()) return std::nullopt;
  return state_->memory.slice(found.offset, found.bytes);
}

void* WeightStreamer::address(Range range) { return runtime::address(range); }

void WeightStreamer::sync(Here here) {
  const OneThread call(state_->busy, here);
  if (!state_->groups) return;
  state_->loader->sync(state_->groups->stream(), here);
  for (const StreamRef stream : state_->loader->streams()) state_->loader->sync(stream, here);
}

StreamerReport WeightStreamer::report() const {
  const OneThread call(state_->busy, Here::at());
  StreamerReport report = state_->counted;
  if (!state_->groups) return report;
  const flow::LoadCounts& loads = state_->groups->counts();
  report.planned = {loads.planned.count, loads.planned.bytes};
  report.on_demand = {loads.on_demand.count, loads.on_demand.bytes};
  report.stalled = state_->groups->stalled();
  return report;
}

std::string StreamerReport::text() const {
  std::string text = fmt::format("steps          {}, with {} uses of weight groups\n", steps, uses);
  text += fmt::format("planned loads  {}, {}\n", planned.count, base::format_bytes(planned.bytes));
  text += fmt::format("on demand      {}, {}", on_demand.count, base::format_bytes(on_demand.bytes));
  if (on_demand.count > 0) text += fmt::format("; streams waited {} for them", base::format_time(stalled));
  text += fmt::format("\norder          {} uses not in the plan, {} planned uses passed over, {} broken off", unplanned,
                      skipped, broken_off);
  return text + fmt::format("; {} passes planned again\n", replans);
}

}  // namespace slip
