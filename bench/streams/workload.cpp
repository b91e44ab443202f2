#include "workload.hpp"

#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/timing.hpp"

namespace slip::bench {
namespace {

// One counter per thread, so that counting costs no shared cache line.
struct alignas(64) Counter {
  std::atomic<std::size_t> count{0};
  std::thread::id thread = std::this_thread::get_id();
};

std::mutex g_mutex;
std::vector<Counter*> g_counters;  // of all threads that ever counted; never freed, because a thread may end earlier

Counter& own_counter() {
  thread_local Counter* t_counter = [] {
    auto* counter = new Counter;
    const std::lock_guard lock(g_mutex);
    g_counters.push_back(counter);
    return counter;
  }();
  return *t_counter;
}

void count_one(const Args&) {
  std::atomic<std::size_t>& count = own_counter().count;
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // one writer
}

// A kernel that runs until the host sets g_gate_open, so the ops behind it in the stream wait.
std::atomic<bool> g_gate_open{false};
const Kernel kGate{"gate", [](const Args&) {
                     while (!g_gate_open.load(std::memory_order_acquire)) std::this_thread::yield();
                   }};

void expect(std::size_t ops) {
  if (total_count() != ops) throw std::runtime_error(fmt::format("{} ops were to run, {} did", ops, total_count()));
}

}  // namespace

const Kernel kEmpty{"empty", count_one};

void reset_count() {
  const std::lock_guard lock(g_mutex);
  for (Counter* counter : g_counters) counter->count.store(0, std::memory_order_relaxed);
}

std::size_t total_count() {
  const std::lock_guard lock(g_mutex);
  std::size_t total = 0;
  for (const Counter* counter : g_counters) total += counter->count.load(std::memory_order_relaxed);
  return total;
}

std::string threads_text() {
  const std::size_t total = total_count();
  const std::lock_guard lock(g_mutex);
  std::size_t host = 0, workers = 0, on_workers = 0;
  for (const Counter* counter : g_counters) {
    const std::size_t count = counter->count.load(std::memory_order_relaxed);
    if (counter->thread == std::this_thread::get_id()) host += count;
    else if (count > 0) ++workers, on_workers += count;
  }
  const auto share = [total](std::size_t part) {
    return total ? 100.0 * static_cast<double>(part) / static_cast<double>(total) : 0;
  };
  return fmt::format("ops ran on: host thread {:.0f} %, {} worker(s) {:.0f} %", share(host), workers,
                     share(on_workers));
}

double chain_ns(const Device& device, std::size_t ops) {
  const Stream stream = device.stream();
  reset_count();
  const Timer timer;
  for (std::size_t i = 0; i < ops; ++i) stream.launch(kEmpty);
  stream.sync();
  const double elapsed = timer.elapsed_ns();
  expect(ops);
  return elapsed / static_cast<double>(ops);
}

double gated_chain_ns(const Device& device, std::size_t ops, std::size_t depth) {
  const Stream stream = device.stream();
  reset_count();
  g_gate_open.store(false, std::memory_order_release);
  const Timer timer;
  stream.launch(kGate);
  for (std::size_t i = 0; i < ops; ++i) {
    if (i == depth) g_gate_open.store(true, std::memory_order_release);
    stream.launch(kEmpty);
  }
  g_gate_open.store(true, std::memory_order_release);
  stream.sync();
  const double elapsed = timer.elapsed_ns();
  expect(ops);
  return elapsed / static_cast<double>(ops);
}

double ping_pong_ns(const Device& device, std::size_t hops) {
  const Stream ping = device.stream(), pong = device.stream();
  reset_count();
  const Timer timer;
  for (std::size_t i = 0; i < hops / 2; ++i) {
    ping.launch(kEmpty);
    pong.wait(ping.record());
    pong.launch(kEmpty);
    ping.wait(pong.record());
  }
  ping.sync();
  const double elapsed = timer.elapsed_ns();
  expect(hops / 2 * 2);
  return elapsed / static_cast<double>(hops / 2 * 2);
}

double fan_ns(const Device& device, std::size_t rounds) {
  constexpr int kWidth = 8;
  const Stream root = device.stream();
  std::vector<Stream> leaves;
  for (int i = 0; i < kWidth; ++i) leaves.push_back(device.stream());
  reset_count();
  const Timer timer;
  for (std::size_t round = 0; round < rounds; ++round) {
    root.launch(kEmpty);
    const Event begun = root.record();
    for (const Stream& leaf : leaves) {
      leaf.wait(begun);
      leaf.launch(kEmpty);
      root.wait(leaf.record());
    }
  }
  root.sync();
  const double elapsed = timer.elapsed_ns();
  expect(rounds * (kWidth + 1));
  return elapsed / static_cast<double>(rounds);
}

}  // namespace slip::bench
