// `slip devices`: the devices of this machine. It measures the cpu device and the first GPU, and prints the
// descriptions of simulated devices. A build without CUDA says so.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "backend/sim/description.hpp"
#include "base/clock.hpp"
#include "cli/commands.hpp"
#include "cli/lab/cuda_kernels.hpp"
#include "cli/text.hpp"
#include "slip/device.hpp"

namespace slip::cli {
namespace {

struct DevicesOptions {
  bool quick = false;
  std::string json;
};

// The fastest of several runs: other programs can only make a run slower.
double best_seconds(int runs, const std::function<void()>& body) {
  std::int64_t best = INT64_MAX;
  for (int i = 0; i < runs; ++i) {
    const std::int64_t start = base::now_ns();
    body();
    best = std::min(best, std::max<std::int64_t>(base::now_ns() - start, 1));
  }
  return static_cast<double>(best) * 1e-9;
}

// One of the copies that run concurrently; each has its own stream.
struct Transfer {
  Range to, from;
};

// Bytes per second of each transfer when all run concurrently.
double copy_rate(const Device& device, const std::vector<Transfer>& transfers, int runs) {
  const std::size_t size = transfers.front().to.bytes;
  const int copies = size < (1 << 20) ? 8 : 2;  // several copies per run, so that launch overhead counts little
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < transfers.size(); ++i) streams.push_back(device.stream(StreamFlags::kNonBlocking));
  const auto run = [&] {
    for (int i = 0; i < copies; ++i) {
      for (std::size_t k = 0; k < transfers.size(); ++k) streams[k].copy(transfers[k].to, transfers[k].from);
    }
    for (const Stream& stream : streams) stream.sync();
  };
  run();  // warm-up: wakes the worker threads
  return static_cast<double>(size) * copies / best_seconds(runs, run);
}

Table copy_table(const Device& device, std::size_t max_bytes, bool quick) {
  const int runs = quick ? 3 : 7;
  Buffer memory = device.alloc(max_bytes), other = device.alloc(max_bytes);
  Buffer pinned = device.alloc(max_bytes, MemoryKind::kPinned), back = device.alloc(max_bytes, MemoryKind::kPinned);
  Buffer pageable = device.alloc(max_bytes, MemoryKind::kPageable);
  for (Buffer* host : {&pinned, &back, &pageable}) std::ranges::fill(host->host_write<unsigned char>(), 1);
  device.copy(memory, pinned);  // maps all pages
  device.copy(other, pinned);
  Table table("copies (both ways: each way's rate; within: bytes copied on the device)",
              {"size=bytes", "pinned up=pinned_up", "pinned down=pinned_down", "both ways=both_ways",
               "pageable up=pageable_up", "pageable down=pageable_down", "within"});
  for (std::size_t size = 64 << 10; size <= max_bytes; size *= size < (1 << 20) ? 16 : 4) {
    const Range near = memory.slice(0, size), aside = other.slice(0, size);
    const Range up = pinned.slice(0, size), down = back.slice(0, size), plain = pageable.slice(0, size);
    const auto measured = [&](const std::vector<Transfer>& transfers) {
      return rate(copy_rate(device, transfers, runs));
    };
    table.row({bytes(size), measured({{near, up}}), measured({{down, near}}), measured({{near, up}, {down, aside}}),
               measured({{near, plain}}), measured({{plain, near}}), measured({{near, aside}})});
  }
  return table;
}

// Multiply-adds in registers, with 16 independent sums so that the processor can overlap them.
void flops_kernel(const Args& args) {
  const auto rounds = args.scalar<std::uint64_t>(0);
  std::array<float, 16> sums{};
  for (std::uint64_t i = 0; i < rounds; ++i) {
    for (float& sum : sums) sum = sum * 0.999F + 1.0F;
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  if (total < 0)
    throw DeviceFault("sums of positive numbers are positive");  // uses the result, so that the compiler keeps the loop
}

void nothing_kernel(const Args&) {}

const Kernel kFlops{"flops", flops_kernel, cuda::flops};
const Kernel kNothing{"nothing", nothing_kernel, cuda::nothing};

// Floating-point operations per second of `streams` concurrent kernels, each with `threads` threads.
double flops_rate(const Device& device, int streams, double threads, bool quick) {
  const std::uint64_t rounds = quick ? 200'000 : 1'000'000;
  std::vector<Stream> used;
  for (int i = 0; i < streams; ++i) used.push_back(device.stream(StreamFlags::kNonBlocking));
  const double seconds = best_seconds(quick ? 2 : 4, [&] {
    for (const Stream& stream : used) stream.launch(kFlops, {{}, {}, {rounds}});
    device.sync();
  });
  return 2.0 * 16.0 * static_cast<double>(rounds) * threads * streams / seconds;
}

// Nanoseconds per call: host time only, and until the work is done.
struct CallCost {
  double issue, whole;
};

CallCost call_cost(const Stream& stream, int count, const std::function<void()>& call) {
  CallCost best{1e18, 1e18};
  for (int run = 0; run < 3; ++run) {
    const std::int64_t start = base::now_ns();
    for (int i = 0; i < count; ++i) call();
    const std::int64_t issued = base::now_ns();
    stream.sync();
    const std::int64_t done = base::now_ns();
    best.issue = std::min(best.issue, static_cast<double>(issued - start) / count);
    best.whole = std::min(best.whole, static_cast<double>(done - start) / count);
  }
  return best;
}

Table calls_table(const Device& device, bool quick) {
  const Stream stream = device.stream(), other = device.stream();
  const int count = quick ? 20'000 : 100'000;
  Event event;
  const auto cost = [](double ns) { return Cell{fmt::format("{:.0f} ns", ns), ns}; };
  Table table("calls", {"call", "host=host_ns", "and done=done_ns"});
  const auto add = [&](const char* name, const std::function<void()>& call) {
    const CallCost seen = call_cost(stream, count, call);
    table.row({word(name), cost(seen.issue), cost(seen.whole)});
  };
  add("launch of an empty kernel", [&] { stream.launch(kNothing); });
  add("record", [&] { stream.record(event); });
  other.record(event);
  add("timed record", [&] { static_cast<void>(stream.record_timed()); });
  add("wait for a point that is reached", [&] { stream.wait(event); });
  add("query", [&] { static_cast<void>(stream.query()); });
  return table;
}

// The tables of a device in real time. Each of its kernels has `threads` threads.
Json show_measured(const Device& device, const char* name, int kernels, double threads, bool quick) {
  const DeviceInfo& info = device.info();
  fmt::print("{}: {}, {} of memory\n\n", name, info.description, base::format_bytes(info.memory_bytes));
  const bool gpu = device.stream().native() != nullptr;
  const Table copies = copy_table(device, quick ? 16 << 20 : gpu ? 256 << 20 : 64 << 20, quick);
  fmt::print("{}\n", copies.text());
  Table compute("compute (multiply-adds in registers)", {"kernels side by side=kernels", "rate=flops"});
  for (int streams = 1; streams <= kernels; streams *= 2) {
    const double rate = flops_rate(device, streams, threads, quick);
    compute.row({number(streams), {base::format_flops(rate), rate}});
  }
  fmt::print("{}\n", compute.text());
  const Table calls = calls_table(device, quick);
  fmt::print("{}\n", calls.text());
  return {{"copies", json_of(copies)}, {"compute", json_of(compute)}, {"calls", json_of(calls)}};
}

Json show_sim() {
  fmt::print("sim: virtual time, exact and repeatable; kernels take what they declare or what these rates give\n\n");
  Table table("", {"device=name", "memory=memory_bytes", "flops", "bandwidth", "copies=in", "=out", "pageable",
                   "copy engines=engines", "queues", "launch=launch_ps"});
  std::string names;
  for (const base::EmbeddedFile& file : sim::embedded_devices()) {
    const sim::Description device = sim::parse_description(file.text, file.name);
    const auto of = [](std::uint64_t value) { return rate(static_cast<double>(value)); };
    table.row(
        {word(fmt::format("sim:{}", file.name)),
         {fmt::format("{} GB", device.memory / 1'000'000'000), static_cast<std::int64_t>(device.memory)},
         {base::format_flops(static_cast<double>(device.compute.flops)), static_cast<double>(device.compute.flops)},
         of(device.compute.bandwidth),
         of(device.copies.in),
         of(device.copies.out),
         device.copies.pageable > 0 ? of(device.copies.pageable) : none(),
         number(device.copies.engines),
         number(device.queues),
         time(device.host.launch)});
    names += paragraph(fmt::format("{}: {}", device.name, device.source), 15,
                       fmt::format("  {:<13}", fmt::format("sim:{}", file.name)));
  }
  fmt::print("{}\n{}\n", table.text(), names);
  return json_of(table);
}

// The first GPU, or a text that says why there is none.
Json show_cuda(bool quick) {
  std::string missing = "not in this build";
  if (has_backend("cuda")) {
    try {
      const Device device = Device::open("cuda:0", {}, {});
      return show_measured(device, "cuda:0", 1, cuda::flops_threads(), quick);  // one kernel fills the GPU
    } catch (const Error& error) {
      missing = error.what();
    }
  }
  fmt::print("cuda: {}\n", missing);
  return missing;
}

int run_devices(const DevicesOptions& options) {
  Json found = {{"slip", SLIP_VERSION}};
  const Device cpu = Device::open("cpu");
  found["cpu"] = show_measured(cpu, "cpu", cpu.info().compute_workers, 1, options.quick);
  found["sim"] = show_sim();
  found["cuda"] = show_cuda(options.quick);
  write_json(options.json, found);
  return kSuccess;
}

}  // namespace

std::function<int()> add_devices(CLI::App& app) {
  auto options = std::make_shared<DevicesOptions>();
  CLI::App* devices = app.add_subcommand("devices", "List the devices of this machine, with measured rates");
  add_output(*devices, "--json", options->json, "Write the figures as JSON");
  devices->add_flag("--quick", options->quick, "Smaller sizes and fewer runs");
  return [options] { return run_devices(*options); };
}

}  // namespace slip::cli
