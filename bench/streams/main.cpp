// `make bench ONLY=streams`: the stream runtime beside oneTBB and plain memcpy, and the simulator's speed.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "peers_tbb.hpp"
#include "simulated.hpp"
#include "support/harness.hpp"
#include "workload.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kChain = 1'000'000;
constexpr std::size_t kHops = 500'000;
constexpr std::size_t kRounds = 100'000;
constexpr std::size_t kCopyBytes = std::size_t{64} << 20;

// The forms of oneTBB nodes whose body runs as a task of its own. A lightweight body runs in the thread that puts the
// message: that is a call, not a queue, so it is no peer of a stream.
std::vector<Peer> queueing(std::vector<Peer> peers) {
  std::erase_if(peers, [](const Peer& peer) { return peer.name.find("lightweight") != std::string::npos; });
  return peers;
}

const Device& device() {
  static const Device kDevice = Device::open("cpu");
  return kDevice;
}

Measure with_threads(double (*measure)(const Device&, std::size_t), std::size_t count) {
  return [=](Context& context) -> std::optional<double> {
    const double ns = measure(device(), context.iterations(count));
    context.note(threads_text());
    return ns;
  };
}

double gated(const Device& on, std::size_t count) { return gated_chain_ns(on, count, kGateDepth); }

// Bytes of memory that a queued op takes: a kernel with two ranges and a scalar, in a stream that waits for a flag.
std::optional<double> bytes_per_queued_op(Context& context) {
  const std::size_t ops = context.iterations(200'000);
  const Device on = Device::open("cpu", {.queue_depth = 4 * ops});
  Buffer word = on.alloc(4, MemoryKind::kPinned);
  word.host_write<std::uint32_t>()[0] = 0;
  const Buffer data = on.alloc(4096);
  const Stream stream = on.stream();
  stream.wait_value(word, 1);
  const std::size_t before = current_rss_bytes().value_or(0);
  for (std::size_t i = 0; i < ops; ++i)
    stream.launch(kEmpty, {.reads = {data.slice(0, 1024)}, .writes = {data.slice(1024, 1024)}, .scalars = {i}});
  const std::size_t after = current_rss_bytes().value_or(0);
  reinterpret_cast<std::atomic<std::uint32_t>*>(word.native())->store(1);
  stream.sync();
  return static_cast<double>(after - before) / static_cast<double>(ops);
}

// How much the process grew between the first 100,000 ops and the last of 10,000,000.
std::optional<double> soak_growth(Context& context) {
  const std::size_t ops = context.iterations(10'000'000);
  const Stream a = device().stream(), b = device().stream();
  std::size_t early = 0;
  for (std::size_t i = 0; i < ops; ++i) {
    if (i == 100'000) a.sync(), b.sync(), early = current_rss_bytes().value_or(0);
    const Stream& stream = i % 2 ? a : b;
    stream.launch(kEmpty);
    if (i % 16 == 0) (i % 2 ? b : a).wait(stream.record());
  }
  a.sync(), b.sync();
  const std::size_t late = current_rss_bytes().value_or(0);
  context.note("resident after 100,000 ops " + format_bytes(static_cast<double>(early)) + ", at the end " +
               format_bytes(static_cast<double>(late)));
  return late > early ? static_cast<double>(late - early) : 0.0;
}

struct CopyBuffers {
  Buffer host = device().alloc(kCopyBytes, MemoryKind::kPinned);
  Buffer on_device = device().alloc(kCopyBytes);
  CopyBuffers() {
    std::memset(host.native(), 1, kCopyBytes);
    device().fill(on_device, 2);
    device().sync();
  }
};

CopyBuffers& copy_buffers() {
  static CopyBuffers buffers;
  return buffers;
}

std::optional<double> copy_rate(Context&) {
  CopyBuffers& buffers = copy_buffers();
  const Stream stream = device().stream();
  const Timer timer;
  for (int i = 0; i < 8; ++i) stream.copy(buffers.on_device, buffers.host);
  stream.sync();
  return 8.0 * static_cast<double>(kCopyBytes) / timer.elapsed_ns() * 1e9;
}

std::optional<double> memcpy_rate(Context&) {
  CopyBuffers& buffers = copy_buffers();
  const Timer timer;
  for (int i = 0; i < 8; ++i) {
    std::memcpy(buffers.on_device.native(), buffers.host.native(), kCopyBytes);
    clobber_memory();
  }
  return 8.0 * static_cast<double>(kCopyBytes) / timer.elapsed_ns() * 1e9;
}

void add_memory_bars(Harness& harness) {
  harness.add({.area = "streams",
               .name = "bytes_per_queued_op",
               .unit = Unit::kBytes,
               .ours = bytes_per_queued_op,
               .limit = 256,
               .max_repeat = 3});
  harness.add({.area = "streams",
               .name = "soak_10m_ops_growth",
               .unit = Unit::kBytes,
               .ours = soak_growth,
               .limit = 64 << 10,
               .warmups = 0,
               .max_repeat = 3});
}

void add_task_bars(Harness& harness) {
  harness.add({.area = "streams", .name = "chain_ungated", .ours = with_threads(chain_ns, kChain), .limit = 100});
  harness.add({.area = "streams", .name = "chain_gated", .ours = with_threads(gated, kChain), .limit = 100});
  harness.add({.area = "streams",
               .name = "chain_ungated_vs_tbb_function_node",
               .ours = with_threads(chain_ns, kChain),
               .peers = queueing(tbb_function_node_peers(kChain)),
               .target = 2});
  harness.add({.area = "streams",
               .name = "chain_gated_vs_tbb_function_node",
               .ours = with_threads(gated, kChain),
               .peers = queueing(tbb_function_node_gated_peers(kChain, kGateDepth)),
               .target = 2});
  harness.add({.area = "streams",
               .name = "chain_vs_tbb_continue_nodes",
               .ours = with_threads(chain_ns, kChain / 10),
               .peers = queueing(tbb_continue_chain_peers(kChain / 10)),
               .target = 2});
  harness.add({.area = "streams",
               .name = "ping_pong_vs_tbb",
               .ours = with_threads(ping_pong_ns, kHops),
               .peers = queueing(tbb_ping_pong_peers(kHops)),
               .target = 1});
  harness.add({.area = "streams",
               .name = "fan8_vs_tbb",
               .ours = with_threads(fan_ns, kRounds),
               .peers = queueing(tbb_fan_peers(kRounds)),
               .target = 1});
}

// The same beside one busy process per core. Target: at least as fast as oneTBB in the same run.
void add_busy_bars(Harness& harness) {
  const auto add = [&](const char* name, Measure ours, std::vector<Peer> peers) {
    harness.add({.area = "streams",
                 .name = name,
                 .ours = std::move(ours),
                 .peers = queueing(std::move(peers)),
                 .target = 1,
                 .beside_busy = true});
  };
  add("beside_busy_chain_vs_tbb_function_node", with_threads(chain_ns, kChain), tbb_function_node_peers(kChain));
  add("beside_busy_chain_vs_tbb_continue_nodes", with_threads(chain_ns, kChain / 10),
      tbb_continue_chain_peers(kChain / 10));
  add("beside_busy_ping_pong_vs_tbb", with_threads(ping_pong_ns, kHops), tbb_ping_pong_peers(kHops));
  add("beside_busy_fan8_vs_tbb", with_threads(fan_ns, kRounds), tbb_fan_peers(kRounds));
}

void add_other_bars(Harness& harness) {
  harness.add({.area = "streams",
               .name = "copy_64MiB_vs_memcpy",
               .unit = Unit::kBytesPerSecond,
               .better = Better::kHigher,
               .ours = copy_rate,
               .peers = {{.name = "memcpy", .measure = memcpy_rate}},
               .target = 0.95});
  harness.add({.area = "streams",
               .name = "sim_chain",
               .unit = Unit::kPerSecond,
               .better = Better::kHigher,
               .ours = simulated_chain_rate,
               .limit = 1e6,
               .max_repeat = 5});
  harness.add({.area = "streams",
               .name = "sim_ring_64_devices",
               .unit = Unit::kPerSecond,
               .better = Better::kHigher,
               .ours = simulated_ring_rate,
               .limit = 1e6,
               .max_repeat = 5});
}

}  // namespace
}  // namespace slip::bench

int main(int argc, char** argv) {
  slip::bench::Harness harness;
  slip::bench::add_memory_bars(harness);  // before the peers' memory pools grow the process
  slip::bench::add_task_bars(harness);
  slip::bench::add_busy_bars(harness);
  slip::bench::add_other_bars(harness);
  return harness.run(argc, argv);
}
