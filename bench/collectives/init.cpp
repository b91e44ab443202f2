// The cost of a communicator before its first call: the time of init, and memory. The ranks are threads of this
// process; their total is divided by their number.
#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "bars.hpp"
#include "slip/communicator.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::vector<Device> devices_for(std::size_t ranks) {
  return std::vector<Device>(ranks, Device::open("cpu", {.compute_workers = 2}));
}

Measure init_time(std::size_t ranks) {
  return [=](Context&) -> std::optional<double> {
    const std::vector<Device> devices = devices_for(ranks);
    const Timer timer;
    const std::vector<Communicator> comms = Communicator::init_all(devices);
    return timer.elapsed_ns();
  };
}

Measure split_time(std::size_t ranks) {
  return [=](Context&) -> std::optional<double> {
    std::vector<Communicator> comms = Communicator::init_all(devices_for(ranks));
    std::vector<std::optional<Communicator>> halves(ranks);
    std::vector<std::thread> threads;
    const Timer timer;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { halves[rank] = comms[rank].split(static_cast<int>(rank % 2)); });
    for (std::thread& thread : threads) thread.join();
    return timer.elapsed_ns();
  };
}

// The proportional set size of this process (shared pages divided by their users).
double memory_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == "Pss:" && file >> kilobytes) return kilobytes * 1024;
  }
  throw std::runtime_error("no Pss in /proc/self/smaps_rollup");
}

// Must be measured first: later communicators reuse memory that earlier ones have touched.
Measure idle_memory(std::size_t ranks) {
  return [=](Context&) -> std::optional<double> {
    const std::vector<Device> devices = devices_for(ranks);
    const double before = memory_bytes();
    const std::vector<Communicator> comms = Communicator::init_all(devices);
    return std::max(1.0, memory_bytes() - before) / static_cast<double>(ranks);
  };
}

Bar limited(const char* name, Unit unit, Measure measure, double limit) {
  return {.area = "collectives", .name = name, .unit = unit, .ours = std::move(measure), .limit = limit};
}

}  // namespace

void add_init_bars(Harness& harness) {
  Bar memory = limited("memory_per_rank_of_8", Unit::kBytes, idle_memory(8), 4.0 * kMiB);
  memory.warmups = 0;
  memory.max_repeat = 1;
  harness.add(memory);
  memory.name = "memory_of_1_rank";
  memory.ours = idle_memory(1);
  memory.limit = kMiB / 4.0;
  harness.add(memory);
  harness.add(limited("init_8_ranks", Unit::kNanoseconds, init_time(8), 100e6));
  harness.add(limited("init_1_rank", Unit::kNanoseconds, init_time(1), 10e6));
  harness.add(limited("split_8_ranks_in_two", Unit::kNanoseconds, split_time(8), 100e6));
}

}  // namespace slip::bench
