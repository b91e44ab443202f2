#include "backend/sim/sim.hpp"

#include <atomic>

#include "backend/sim/memory.hpp"
#include "backend/sim/world.hpp"

namespace slip {
namespace {

class SimBackend : public Backend {
 public:
  SimBackend(std::shared_ptr<sim::World> world, int index, bool run_functions)
      : world_(std::move(world)), index_(index), run_functions_(run_functions) {}
  ~SimBackend() override { world_->close_device(index_); }

  void* allocate(MemoryKind kind, std::size_t bytes) override {
    return sim::map_memory(bytes, kind == MemoryKind::kDevice && !run_functions_);
  }
  void deallocate(MemoryKind, void* data, std::size_t bytes) noexcept override { sim::unmap_memory(data, bytes); }

  StreamState* open_stream(const StreamSpec& spec) override {
    require_own_stream(spec, "sim");
    return world_->open_stream(index_, spec);
  }
  void close_stream(StreamState& stream) noexcept override {
    world_->close_stream(static_cast<sim::SimStream&>(stream));
  }

  std::uint64_t submit(StreamState& stream, const Op& op) override {
    return world_->submit(static_cast<sim::SimStream&>(stream), op);
  }
  bool reached(StreamState* stream, std::uint64_t position) override {
    return world_->reached(index_, static_cast<sim::SimStream*>(stream), position);
  }
  bool wait(StreamState* stream, std::uint64_t position, std::int64_t deadline_ns) override {
    return world_->wait(index_, static_cast<sim::SimStream*>(stream), position, deadline_ns);
  }
  Picos now() override { return world_->now(); }

 private:
  const std::shared_ptr<sim::World> world_;
  const int index_;
  const bool run_functions_;
};

// Makes the backends for `cores`. They share one World.
std::vector<std::unique_ptr<Backend>> make_backends(const sim::Description& description,
                                                    std::span<DeviceCore* const> cores) {
  const auto world = std::make_shared<sim::World>(description, cores);
  static std::atomic<std::uint64_t> worlds{0};
  const std::uint64_t number = worlds.fetch_add(1, std::memory_order_relaxed) + 1;  // relaxed: only a unique number
  std::vector<std::unique_ptr<Backend>> result;
  for (DeviceCore* core : cores) {
    DeviceInfo& info = core->info;
    info.description = description.name;
    info.memory_bytes = description.memory;
    info.compute_workers = 0;
    info.copy_engines = description.copies.engines;
    info.queues = core->options.max_connections > 0 ? core->options.max_connections : description.queues;
    info.min_priority = 0;
    info.greatest_priority = description.greatest_priority;
    info.virtual_time = true;
    info.world = number;
    result.push_back(std::make_unique<SimBackend>(world, static_cast<int>(result.size()), core->options.run_functions));
  }
  return result;
}

}  // namespace

std::vector<std::unique_ptr<Backend>> open_sim(std::string_view rest, std::span<DeviceCore* const> cores) {
  const sim::Description description = sim::load_description(rest);
  // Name the device after the description. Otherwise errors would quote the whole JSON text.
  if (sim::is_description_text(rest)) {
    for (DeviceCore* core : cores) core->info.name = "sim:" + description.name;
  }
  return make_backends(description, cores);
}

namespace sim {

Device open_device(const Description& description, const DeviceOptions& options, Here here) {
  return open_devices(description, 1, options, here).front();
}

std::vector<Device> open_devices(const Description& description, int count, const DeviceOptions& options, Here here) {
  validate(description);
  return DeviceCore::open_all(
      "sim:" + description.name, count, options,
      [&](std::span<DeviceCore* const> cores) { return make_backends(description, cores); }, here);
}

}  // namespace sim
}  // namespace slip
