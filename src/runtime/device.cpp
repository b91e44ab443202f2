#include "slip/device.hpp"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/terminal.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"
#include "runtime/pool.hpp"

namespace slip {
using namespace runtime;
namespace {

constexpr int kMaxWorkers = 1024;

DeviceOptions with_environment(DeviceOptions options, Here here) {
  const base::Env& from = base::env();
  options.launch_blocking |= from.launch_blocking;
  options.strict |= from.strict;
  if (from.max_connections > 0 && options.max_connections == 0) options.max_connections = from.max_connections;
  if (options.max_connections < 0 || options.max_connections > 32)
    base::fail(ErrorCode::kInvalidValue, here, "max_connections is {}: must be 0 (the default) to 32",
               options.max_connections);
  if (options.compute_workers < 0 || options.compute_workers > kMaxWorkers)
    base::fail(ErrorCode::kInvalidValue, here, "compute_workers is {}: must be 0 (the default) to {}",
               options.compute_workers, kMaxWorkers);
  if (from.policy.empty()) return options;
  if (from.policy == "concurrent") {
    options.policy = CpuPolicy::kConcurrent;
  } else if (from.policy == "single") {
    options.policy = CpuPolicy::kSingle;
  } else if (from.policy.rfind("random", 0) == 0) {
    options.policy = CpuPolicy::kRandom;
    const std::string seed = from.policy.size() > 7 && from.policy[6] == ':' ? from.policy.substr(7) : "";
    const auto [end, error] = std::from_chars(seed.data(), seed.data() + seed.size(), options.seed);
    if (from.policy != "random" && (error != std::errc() || end != seed.data() + seed.size()))
      base::fail(ErrorCode::kInvalidValue, here, "SLIP_POLICY={}: must be random or random:SEED", from.policy);
  } else {
    base::fail(ErrorCode::kInvalidValue, here, "SLIP_POLICY={}: must be concurrent, single or random[:SEED]",
               from.policy);
  }
  return options;
}

const runtime::BackendEntry& entry_for(std::string_view prefix, std::string_view name, Here here) {
  std::string known;
  for (const runtime::BackendEntry& entry : runtime::backends()) {
    if (entry.prefix == prefix) return entry;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.prefix);
  }
  base::fail(ErrorCode::kInvalidDevice, here, "no device '{}': this build has {}", name, known);
}

// The per-thread default streams of a thread, one for each device it used. Closed when the thread ends, if the device
// is still open.
struct PerThread {
  struct Entry {
    std::weak_ptr<runtime::DeviceCore> core;
    runtime::StreamState* state;
    std::uint64_t id;
  };
  std::unordered_map<std::uint32_t, Entry> streams;
  ~PerThread() {
    for (auto& [device, entry] : streams) {
      const auto core = entry.core.lock();
      if (core && entry.state->id.load(std::memory_order_acquire) == entry.id) runtime::close_stream(*entry.state);
    }
  }
};

// The deleter of a core. A thread that runs an op cannot wait for the end of the device's work. Then the core is
// leaked, because the device's threads still use it.
void close_core(DeviceCore* core) {
  if (core->forked || (detail::inside_op == 0 && detail::cannot_wait == 0)) {
    delete core;
    return;
  }
  base::log_line(fmt::format(
      "the last handle of device '{}' was destroyed inside a kernel or host function: the device stays open, "
      "because its thread cannot wait for itself",
      core->info.label));
}

}  // namespace

Device Device::open(std::string_view name, const DeviceOptions& options, Here here) {
  return open_all(name, 1, options, here).front();
}

std::vector<Device> Device::open_all(std::string_view name, int count, const DeviceOptions& options, Here here) {
  const std::size_t colon = name.find(':');
  const std::string_view rest = colon == std::string_view::npos ? std::string_view() : name.substr(colon + 1);
  const auto open = [&](std::span<runtime::DeviceCore* const> cores) {
    return entry_for(name.substr(0, colon), name, here).open(rest, cores);
  };
  return runtime::DeviceCore::open_all(std::string(name), count, options, open, here);
}

std::vector<Device> DeviceCore::open_all(const std::string& name, int count, const DeviceOptions& options,
                                         const Opener& opener, Here here) {
  if (detail::inside_op != 0)
    throw Error(ErrorCode::kNotPermitted, "a kernel or host function may not open a device (rule 78)", here);
  start_observers();  // first: exit handlers run in reverse order, and the observers must end last
  if (count < 1 || count > 4096)
    base::fail(ErrorCode::kInvalidValue, here, "{} devices were requested: must be 1 to 4096", count);
  std::vector<std::shared_ptr<DeviceCore>> cores;
  std::vector<DeviceCore*> raw;
  for (int i = 0; i < count; ++i) {
    cores.emplace_back(new DeviceCore, close_core);
    raw.push_back(cores.back().get());
    raw.back()->options = with_environment(options, here);
    raw.back()->info.name = name;
  }
  Backends made = opener(raw);
  std::vector<Device> devices;
  for (std::size_t i = 0; i < cores.size(); ++i) {
    DeviceCore& core = *cores[i];
    core.backend = std::move(made[i]);
    core.info.label = core.info.name;
    if (options.name)
      core.info.label = count == 1 ? options.name.c_str() : fmt::format("{} {}", options.name.text(), i);
    core.staging = std::make_unique<Staging>(*core.backend);
    if (core.options.memory_limit > 0)
      core.info.memory_bytes = std::min(core.info.memory_bytes, core.options.memory_limit);
    core.memory.set_total(core.info.memory_bytes);
    if (!core.native) core.pool = std::make_unique<StreamPool>(core);
    core.legacy = runtime::open_stream(core, {.legacy = true});
    register_device(core);
    devices.push_back(Device(cores[i]));
  }
  return devices;
}

Stream Device::stream(StreamFlags flags, int priority, Here here) const {
  return stream(StreamOptions{.flags = flags, .priority = priority}, here);
}

Stream Device::stream(Name name, StreamFlags flags, int priority, Here here) const {
  return stream(StreamOptions{name, flags, priority}, here);
}

Stream Device::stream(const StreamOptions& options, Here here) const {
  const auto& [name, flags, priority] = options;
  require_usable(*core_, here);
  if (flags != StreamFlags::kBlocking && flags != StreamFlags::kNonBlocking)
    base::fail(ErrorCode::kInvalidValue, here, "unknown stream flags {} (rule 17)", static_cast<int>(flags));
  const int clamped = std::clamp(priority, core_->info.max_priority, core_->info.min_priority);
  StreamState* state = open_stream(*core_, {.flags = flags, .priority = clamped, .name = name});
  return Stream(StreamRef(state, state->last_id), core_);
}

Stream Device::adopt(CUstream_st* native, Here here) const { return adopt(native, Name(), here); }

Stream Device::adopt(CUstream_st* native, Name name, Here here) const {
  return adopt(native, name, NativeLifetime::kOutlives, here);
}

Stream Device::adopt(CUstream_st* native, Name name, NativeLifetime lifetime, Here here) const {
  require_usable(*core_, here);
  if (!native) throw Error(ErrorCode::kInvalidHandle, "adopt of a null stream: use legacy_stream()", here);
  StreamState* state =
      open_stream(*core_, {.name = name, .adopted = native, .adopted_may_end = lifetime == NativeLifetime::kMayEnd});
  return Stream(StreamRef(state, state->last_id), core_);
}

Stream Stream::adopt(const Device& device, CUstream_st* native, Here here) { return device.adopt(native, here); }

StreamRef Device::legacy_stream() const { return {core_->legacy, core_->legacy->last_id}; }

StreamRef Device::per_thread_stream() const {
  require_usable(*core_, {});
  thread_local PerThread t_opened;
  auto found = t_opened.streams.find(core_->id);
  if (found == t_opened.streams.end()) {
    StreamState* const state = open_stream(*core_, {});  // may throw, so the entry is added afterwards
    found = t_opened.streams.emplace(core_->id, PerThread::Entry{core_, state, state->last_id}).first;
  }
  return {found->second.state, found->second.id};
}

StreamRef Device::default_stream() const {
  return core_->options.default_stream == DefaultStream::kLegacy ? legacy_stream() : per_thread_stream();
}

Buffer Device::alloc(std::size_t bytes, MemoryKind kind, Name name, Here here) const {
  require_usable(*core_, here);
  if (bytes == 0) throw Error(ErrorCode::kInvalidValue, "alloc of 0 bytes", here);
  if (core_->options.legacy_implicit_sync && kind != MemoryKind::kPageable)
    wait_for(*core_, nullptr, kEverything, 0, here);
  const bool counted = kind == MemoryKind::kDevice;
  bool fits = !counted || core_->memory.reserve(bytes);
  if (!fits && core_->pool) {
    core_->pool->trim(0);  // first returns the memory that the pool keeps unused
    fits = core_->memory.reserve(bytes);
  }
  if (!fits) raise_out_of_memory(*core_, bytes, name, here);
  Block* block = nullptr;
  try {
    block = take_block(core_.get(), kind, nullptr, bytes, name);
    block->data = static_cast<std::byte*>(core_->backend->allocate(kind, bytes));
  } catch (...) {
    if (block) drop_block(block);
    if (counted) core_->memory.release(bytes);
    throw;
  }
  if (counted) core_->memory.use(static_cast<std::ptrdiff_t>(bytes));
  Buffer buffer(core_, block);
  if (observed_by(block->audience)) notify_memory(RecordKind::kAlloc, buffer.range(), nullptr, here);
  return buffer;
}

Buffer Device::wrap(void* data, std::size_t bytes, MemoryKind kind, Name name, Here here) const {
  if (!data || bytes == 0)
    base::fail(ErrorCode::kInvalidValue, here, "cannot wrap {} bytes at address {}", bytes, data);
  Block* block = take_block(core_.get(), kind, data, bytes, name);
  block->owned = false;
  return Buffer(core_, block);
}

void Device::copy(Range to, Range from, Here here) const { copy_sync(*default_stream().state(here), to, from, here); }

void Device::fill(Range to, unsigned char value, Here here) const {
  fill_sync(*default_stream().state(here), to, value, here);
}

void Device::sync(Here here) const { wait_for(*core_, nullptr, kEverything, 0, here); }

bool Device::sync_for(std::chrono::nanoseconds limit, Here here) const {
  return wait_for(*core_, nullptr, kEverything, deadline_of(limit), here);
}

bool Device::can_access_peer(const Device& peer) const {
  if (core_->native && peer.core_->native) {
    const auto& reachable = core_->native->reachable;
    return core_ != peer.core_ && std::ranges::find(reachable, peer.core_->native->ordinal) != reachable.end();
  }
  const std::string_view own = core_->info.name, other = peer.core_->info.name;
  return core_ != peer.core_ && own.substr(0, own.find(':')) == other.substr(0, other.find(':'));
}

void Device::enable_peer_access(const Device& peer, Here here) const {
  require_usable(*core_, here);
  if (!can_access_peer(peer))
    base::fail(ErrorCode::kInvalidDevice, here, "'{}' cannot access '{}'", core_->info.label, peer.info().label);
  if (!core_->peers.add(peer.id()))
    base::fail(ErrorCode::kPeerAccessAlreadyEnabled, here, "from device {} to device {}", id(), peer.id());
}

void Device::disable_peer_access(const Device& peer, Here here) const {
  require_usable(*core_, here);
  if (!core_->peers.remove(peer.id()))
    base::fail(ErrorCode::kPeerAccessNotEnabled, here, "from device {} to device {}", id(), peer.id());
}

MemoryInfo Device::memory() const { return core_->memory.info(); }
void Device::reset_peak_memory() const { core_->memory.reset_peak(); }
const DeviceInfo& Device::info() const { return core_->info; }
const DeviceOptions& Device::options() const { return core_->options; }
std::uint32_t Device::id() const { return core_->id; }

Picos Device::now() const {
  if (core_->forked) raise(core_->fault.value(), {});  // a child of fork(): the lock of the clock may be held for ever
  return core_->backend->now();
}

}  // namespace slip
