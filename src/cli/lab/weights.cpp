// Lab weights: a stack of vector_adds, its weights all in device memory or passing through two slots.
//
// A layer needs only its own weight. While it computes, the next layer's weight is loaded into the other slot; an event
// says when a weight is there, another when a slot may be overwritten.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/lab/bench.hpp"

namespace slip::cli {
namespace {

struct Model {
  const Bench& bench;
  std::size_t bytes;  // of the input and of each weight
  std::size_t layers;
  Work add;
};

// A model's host side: input, weights and the output it should have.
struct HostSide {
  Buffer input, output;
  std::vector<Buffer> weights;

  HostSide(const Device& device, const Model& model)
      : input(device.alloc(model.bytes, MemoryKind::kPinned, "input")),
        output(device.alloc(model.bytes, MemoryKind::kPinned, "output")) {
    std::ranges::fill(input.host_write<float>(), 1.0F);
    std::ranges::fill(output.host_write<float>(), 0.0F);
    for (std::size_t k = 0; k < model.layers; ++k) {
      weights.push_back(device.alloc(model.bytes, MemoryKind::kPinned, fmt::format("weight {}", k)));
      std::ranges::fill(weights.back().host_write<float>(), static_cast<float>(k + 1));
    }
  }
  bool ok() const {
    const auto layers = static_cast<float>(weights.size());
    const float wanted = 1.0F + layers * (layers + 1) / 2;
    return std::ranges::all_of(output.host_read<float>(), [&](float value) { return value == wanted; });
  }
};

struct Outcome {
  Run run;
  Picos compute = 0;  // from the first layer's start to the last one's end
  Picos add = 0;      // the longest one
  bool ok = false;
};

// Activations go back and forth between two buffers, so that a deeper model needs no more of them.
struct Activations {
  Buffer one, two;
  Activations(const Device& device, const Model& model)
      : one(device.alloc(model.bytes, MemoryKind::kDevice, "input")),
        two(device.alloc(model.bytes, MemoryKind::kDevice, "output")) {}
  const Buffer& in(std::size_t layer) const { return layer % 2 == 0 ? one : two; }
  const Buffer& out(std::size_t layer) const { return layer % 2 == 0 ? two : one; }
};

void launch_add(StreamRef stream, const Model& model, const Activations& data, const Buffer& weight,
                std::size_t layer) {
  stream.launch(kVectorAdd,
                {{data.in(layer), weight}, {data.out(layer)}, {model.add.pace}, fmt::format("add {}", layer)},
                model.add.cost);
}

Outcome finish(const Model& model, const HostSide& host, Run run) {
  const Picos start = run.span("add 0").started;
  const Picos end = run.span(fmt::format("add {}", model.layers - 1)).ended;
  Picos add = 0;
  for (const TraceSpan& span : run.spans) {
    if (span.run && span.kind == OpKind::kKernel) add = std::max(add, span.ended - span.started);
  }
  return {std::move(run), end - start, add, host.ok()};
}

// Everything is loaded, then computed.
Outcome run_resident(const Model& model) {
  const Device device = model.bench.open({.compute_workers = 1});
  const HostSide host(device, model);
  const Activations data(device, model);
  std::vector<Buffer> weights;
  for (std::size_t k = 0; k < model.layers; ++k)
    weights.push_back(device.alloc(model.bytes, MemoryKind::kDevice, "weight"));
  const Stream stream = device.stream();
  return finish(model, host, model.bench.measure(device, {stream}, [&] {
    stream.copy(data.one, host.input, "input");
    for (std::size_t k = 0; k < model.layers; ++k) stream.copy(weights[k], host.weights[k], fmt::format("load {}", k));
    for (std::size_t k = 0; k < model.layers; ++k) launch_add(stream, model, data, weights[k], k);
    stream.copy(host.output, data.out(model.layers - 1), "output");
  }));
}

// One slot and one stream: a load waits for the layer before, a layer for its load.
Outcome run_on_demand(const Model& model) {
  const Device device = model.bench.open({.compute_workers = 1});
  const HostSide host(device, model);
  const Activations data(device, model);
  const Buffer slot = device.alloc(model.bytes, MemoryKind::kDevice, "slot");
  const Stream stream = device.stream();
  return finish(model, host, model.bench.measure(device, {stream}, [&] {
    stream.copy(data.one, host.input, "input");
    for (std::size_t k = 0; k < model.layers; ++k) {
      stream.copy(slot, host.weights[k], fmt::format("load {}", k));
      launch_add(stream, model, data, slot, k);
    }
    stream.copy(host.output, data.out(model.layers - 1), "output");
  }));
}

// Two slots: layers in the default stream, loads in a non-blocking one, which the default stream does not hold back.
Outcome run_two_slots(const Model& model) {
  const Device device = model.bench.open({.compute_workers = 1});
  const HostSide host(device, model);
  const Activations data(device, model);
  const std::array<Buffer, 2> slots = {device.alloc(model.bytes, MemoryKind::kDevice, "slot 0"),
                                       device.alloc(model.bytes, MemoryKind::kDevice, "slot 1")};
  const StreamRef compute = device.legacy_stream();
  const Stream load = device.stream(StreamFlags::kNonBlocking);
  return finish(model, host, model.bench.measure(device, {load, compute}, [&] {
    std::array<Event, 2> used;  // the layer that reads this slot is done; never recorded: nothing to wait for
    load.copy(data.one, host.input, "input");
    for (std::size_t k = 0; k < model.layers; ++k) {
      load.wait(used[k % 2]);
      load.copy(slots[k % 2], host.weights[k], fmt::format("load {}", k));
      compute.wait(load.record());
      launch_add(compute, model, data, slots[k % 2], k);
      compute.record(used[k % 2]);
    }
    compute.copy(host.output, data.out(model.layers - 1), "output");
  }));
}

}  // namespace

void lab_weights(const Bench& bench, Report& report) {
  const std::size_t size = bench.bytes(4 << 20);
  const std::size_t layers = bench.options().layers > 0 ? static_cast<std::size_t>(bench.options().layers) : 4;
  const Picos load = bench.upload_time(size);
  report.ask(
      fmt::format("Must all weights be in device memory? A model of {} vector_adds with weights of {} runs with all "
                  "weights resident, with one weight slot, and with two slots: the next weight is loaded while a layer "
                  "computes. A load takes {}; the slow kernel is made three times that, the fast one a quarter if the "
                  "device can. Look at `memory` and at `compute`, from the first layer's start to the last one's end.",
                  layers, format_bytes(size), format_time(load)));
  Table table("", {{"kernel", "kernel"},
                   {"one add", "add_ps"},
                   {"weights", "case"},
                   {"time", "time_ps"},
                   {"compute", "compute_ps"},
                   {"overlap", "overlap_percent"},
                   {"exposed copy", "exposed_ps"},
                   {"memory", "peak_bytes"},
                   {"result", "ok"}});
  struct Speed {
    const char* name;
    Picos add;
  };
  struct Way {
    const char* name;
    Outcome (*run)(const Model&);
  };
  const Speed speeds[] = {{"slow", 3 * load}, {"fast", load / 4}};
  static constexpr Way kWays[] = {
      {"all resident", run_resident}, {"one slot", run_on_demand}, {"two slots", run_two_slots}};
  std::vector<Outcome> seen;
  for (const Speed& speed : speeds) {
    const Model model{bench, size, layers, bench.work(speed.add)};
    for (const Way& way : kWays) {
      seen.push_back(way.run(model));
      const Outcome& outcome = seen.back();
      const Figures& figures = outcome.run.figures;
      table.row({word(speed.name), time(outcome.add), word(way.name), time(figures.total), time(outcome.compute),
                 percent(figures.overlap_percent()), time(figures.exposed), bytes(outcome.run.peak_bytes),
                 result(outcome.ok)});
    }
  }
  report.show(table);
  report.conclude(fmt::format(
      "Two slots need {} of device memory instead of {} and give {} results. From first layer to last they took {} of "
      "the resident time with slow kernels and {} with fast ones; loading included, {} and {}.",
      format_bytes(seen[2].run.peak_bytes), format_bytes(seen[0].run.peak_bytes),
      std::ranges::all_of(seen, &Outcome::ok) ? "the same" : "WRONG",
      format_times(ratio(seen[2].compute, seen[0].compute)), format_times(ratio(seen[5].compute, seen[3].compute)),
      format_times(ratio(seen[2].run.figures.total, seen[0].run.figures.total)),
      format_times(ratio(seen[5].run.figures.total, seen[3].run.figures.total))));
}

}  // namespace slip::cli
