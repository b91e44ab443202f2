// SimBackend: one simulated device of a World. Opens the devices of the sim backend, see description.hpp.
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "backend/sim/description.hpp"
#include "backend/sim/world.hpp"
#include "base/fail.hpp"

namespace slip::sim {
namespace {

// Small buffers come from the heap, because Linux limits a process to about 65,000 mappings (vm.max_map_count).
constexpr std::size_t kSmall = std::size_t{64} << 10;
constexpr std::size_t kAlignment = 64;

// Zeroed address space whose pages are allocated on first access, so that a device of 141 GB uses no memory by itself.
// `untouched`: no thread will read or write it, so it is mapped without access (PROT_NONE).
void* map_memory(std::size_t bytes, bool untouched) {
  if (bytes <= kSmall) {
    void* data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (!data) base::fail(ErrorCode::kOutOfMemory, {}, "the host has no {} bytes", bytes);
    // Zeroed like fresh pages: a program that reads uninitialised memory still gives the same result in each run.
    std::memset(data, 0, bytes);
    return data;
  }
  const int access = untouched ? PROT_NONE : PROT_READ | PROT_WRITE;
  void* data = mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) base::fail(ErrorCode::kOutOfMemory, {}, "the host has no address space for {} bytes", bytes);
  return data;
}

class SimBackend : public runtime::Backend {
 public:
  SimBackend(std::shared_ptr<World> world, int index, bool run_functions)
      : world_(std::move(world)), index_(index), run_functions_(run_functions) {}
  ~SimBackend() override { world_->close_device(index_); }

  void* allocate(MemoryKind kind, std::size_t bytes) override {
    return map_memory(bytes, kind == MemoryKind::kDevice && !run_functions_);
  }
  void deallocate(MemoryKind, void* data, std::size_t bytes) noexcept override {
    if (bytes <= kSmall) std::free(data);
    else munmap(data, bytes);
  }

  runtime::StreamState* open_stream(const runtime::StreamSpec& spec) override {
    runtime::require_own_stream(spec, "sim");
    return world_->open_stream(index_, spec);
  }
  void close_stream(runtime::StreamState& stream) noexcept override {
    world_->close_stream(static_cast<SimStream&>(stream));
  }

  std::uint64_t submit(runtime::StreamState& stream, const Op& op) override {
    return world_->submit(static_cast<SimStream&>(stream), op);
  }
  bool reached(runtime::StreamState& stream, std::uint64_t position) override {
    return world_->reached(index_, static_cast<SimStream*>(&stream), position);
  }
  bool wait(runtime::StreamState* stream, std::uint64_t position, std::int64_t deadline_ns) override {
    return world_->wait(index_, static_cast<SimStream*>(stream), position, deadline_ns);
  }
  Picos now() override { return world_->now(); }

 private:
  const std::shared_ptr<World> world_;
  const int index_;
  const bool run_functions_;
};

// Makes the backends for `cores`. They share one World.
runtime::Backends make_backends(const Description& description, runtime::Cores cores) {
  const auto world = std::make_shared<World>(description, cores);
  static std::atomic<std::uint64_t> worlds{0};
  const std::uint64_t number = worlds.fetch_add(1, std::memory_order_relaxed) + 1;  // relaxed: only a unique number
  runtime::Backends result;
  for (runtime::DeviceCore* core : cores) {
    DeviceInfo& info = core->info;
    info.description = description.name;
    info.memory_bytes = description.memory;
    info.compute_workers = 0;
    info.copy_engines = description.copies.engines;
    info.queues = core->options.max_connections > 0 ? core->options.max_connections : description.queues;
    info.min_priority = 0;
    info.max_priority = description.max_priority;
    info.virtual_time = true;
    info.world = number;
    result.push_back(std::make_unique<SimBackend>(world, static_cast<int>(result.size()), core->options.run_functions));
  }
  return result;
}

}  // namespace

runtime::Backends open_sim(std::string_view rest, runtime::Cores cores) {
  const Description description = load_description(rest);
  // Name the device after the description. Otherwise errors would quote the whole JSON text.
  if (is_description_text(rest)) {
    for (runtime::DeviceCore* core : cores) core->info.name = "sim:" + description.name;
  }
  return make_backends(description, cores);
}

Device open_device(const Description& description, const DeviceOptions& options, Here here) {
  return open_devices(description, 1, options, here).front();
}

std::vector<Device> open_devices(const Description& description, int count, const DeviceOptions& options, Here here) {
  validate(description);
  return runtime::DeviceCore::open_all(
      "sim:" + description.name, count, options,
      [&](std::span<runtime::DeviceCore* const> cores) { return make_backends(description, cores); }, here);
}

}  // namespace slip::sim
