// Lab host: how long the calls of two small programs block the host, alone and behind a long kernel.
#include <algorithm>
#include <utility>

#include "cli/lab/bench.hpp"

namespace slip::cli {
namespace {

// One call, measured on the host.
struct CallTime {
  std::string call;
  Picos took = 0;
  bool pending = false;  // the default stream still had work when the call returned
};

struct Program {
  std::string title;
  std::vector<CallTime> calls;
  Picos kernel = 0;
  bool ok = false;

  void call(const Device& device, std::string text, const std::function<void()>& body) {
    const Picos start = device.now();
    body();
    const Picos took = device.now() - start;
    calls.push_back({std::move(text), took, !device.default_stream().query()});
  }
};

// increment: copy up, kernel, copy down, all in the default stream with pageable memory.
Program increment(const Bench& bench, std::size_t size, Picos kernel) {
  const Device device = bench.open();
  const Work work = bench.work(kernel);
  Buffer a = device.alloc(size, MemoryKind::kPageable, "a");
  const Buffer d_a = device.alloc(size, MemoryKind::kDevice, "d_a");
  Program program{fmt::format("increment, {}", base::format_bytes(size)), {}, kernel, false};
  for (int i = 0; i < (bench.virtual_time() ? 1 : 2); ++i) {  // on cpu the first run maps the pages
    std::ranges::fill(a.host_write<float>(), 1.0F);
    program.calls.clear();
    program.call(device, "copy(d_a, a)", [&] { device.copy(d_a, a); });
    program.call(device, "launch increment", [&] {
      device.default_stream().launch(kScale, {{d_a}, {d_a}, {work.pace, 1.0F, 1.0F}}, work.cost);
    });
    program.call(device, "copy(a, d_a)", [&] { device.copy(a, d_a); });
  }
  program.ok = std::ranges::all_of(a.host_read<float>(), [](float value) { return value == 2.0F; });
  return program;
}

// saxpy: two copies up, kernel, copy down.
Program saxpy(const Bench& bench, std::size_t size, Picos kernel) {
  const Device device = bench.open();
  const Work work = bench.work(kernel);
  Buffer x = device.alloc(size, MemoryKind::kPageable, "x"), y = device.alloc(size, MemoryKind::kPageable, "y");
  const Buffer d_x = device.alloc(size, MemoryKind::kDevice, "d_x"),
               d_y = device.alloc(size, MemoryKind::kDevice, "d_y");
  Program program{fmt::format("saxpy, {}", base::format_bytes(size)), {}, kernel, false};
  for (int i = 0; i < (bench.virtual_time() ? 1 : 2); ++i) {
    std::ranges::fill(x.host_write<float>(), 1.0F);
    std::ranges::fill(y.host_write<float>(), 2.0F);
    program.calls.clear();
    program.call(device, "copy(d_x, x)", [&] { device.copy(d_x, x); });
    program.call(device, "copy(d_y, y)", [&] { device.copy(d_y, y); });
    program.call(device, "launch saxpy", [&] {
      device.default_stream().launch(kSaxpy, {{d_x, d_y}, {d_y}, {work.pace, 2.0F}}, work.cost);
    });
    program.call(device, "copy(y, d_y)", [&] { device.copy(y, d_y); });
  }
  program.ok = std::ranges::all_of(y.host_read<float>(), [](float value) { return value == 4.0F; });
  return program;
}

Table program_table(const Program& program) {
  Table table(fmt::format("{}, a kernel of {}", program.title, base::format_time(program.kernel)),
              {"call", "held the host=took_ps", "work left in the stream=pending", "result=ok"});
  for (const CallTime& seen : program.calls)
    table.row({word(seen.call), time(seen.took), yes_no(seen.pending),
               &seen == &program.calls.back() ? result(program.ok) : none()});
  return table;
}

// The buffers of the calls below.
struct Things {
  Device device;
  Stream stream, beside;
  Buffer memory, other, pinned, pageable, small;
  Event event;

  Things(const Device& on, std::size_t size)
      : device(on),
        stream(on.stream()),
        beside(on.stream()),
        memory(on.alloc(size, MemoryKind::kDevice, "memory")),
        other(on.alloc(size, MemoryKind::kDevice, "other")),
        pinned(on.alloc(size, MemoryKind::kPinned, "pinned")),
        pageable(on.alloc(size, MemoryKind::kPageable, "pageable")),
        small(on.alloc(4096, MemoryKind::kPageable, "small")) {
    std::ranges::fill(pinned.host_write<unsigned char>(), 1);
    std::ranges::fill(pageable.host_write<unsigned char>(), 1);
    std::ranges::fill(small.host_write<unsigned char>(), 1);
  }
};

struct Call {
  const char* text;
  const char* rule;
  void (*body)(Things& things);
};

constexpr Call kCalls[] = {
    {"stream.launch(kernel)", "29",
     [](Things& t) {
       t.stream.launch(kBusy, {{}, {}, {std::int64_t{0}}}, {.time = 1'000'000});
     }},
    {"stream.copy, pinned, up", "37", [](Things& t) { t.stream.copy(t.memory, t.pinned); }},
    {"stream.copy, pinned, down", "37", [](Things& t) { t.stream.copy(t.pinned, t.memory); }},
    {"stream.copy, pageable 4 KiB, up", "38", [](Things& t) { t.stream.copy(t.memory.slice(0, 4096), t.small); }},
    {"stream.copy, pageable, up", "38", [](Things& t) { t.stream.copy(t.memory, t.pageable); }},
    {"stream.copy, pageable, down", "38", [](Things& t) { t.stream.copy(t.pageable, t.memory); }},
    {"device.copy, within the device", "35", [](Things& t) { t.device.copy(t.other, t.memory); }},
    {"device.copy, pinned, up", "33", [](Things& t) { t.device.copy(t.memory, t.pinned); }},
    {"device.copy, pinned, down", "34", [](Things& t) { t.device.copy(t.pinned, t.memory); }},
    {"stream.record(event)", "53", [](Things& t) { t.stream.record(t.event); }},
    {"wait(event) in another stream", "58", [](Things& t) { t.beside.wait(t.event); }},
    {"stream.query()", "25", [](Things& t) { static_cast<void>(t.stream.query()); }},
    {"stream.sync()", "23", [](Things& t) { t.stream.sync(); }},
};

Table calls_table(const Bench& bench, std::size_t size, Picos kernel, std::vector<std::string>& waited) {
  Table table(fmt::format("behind a kernel of {}, {} each", base::format_time(kernel), base::format_bytes(size)),
              {"call", "held the host=took_ps", "waited for the kernel=held", "rule"});
  const Work work = bench.work(kernel);
  for (const Call& call : kCalls) {
    Things things(bench.open(), size);
    Picos took = 0;
    for (int i = 0; i < (bench.virtual_time() ? 1 : 2); ++i) {
      things.stream.launch(kBusy, {{}, {}, {work.pace}}, work.cost);
      things.stream.record(things.event);
      const Picos start = things.device.now();
      call.body(things);
      took = things.device.now() - start;
      things.device.sync();
    }
    const bool held = took >= kernel / 2;
    if (held) waited.push_back(call.text);
    table.row({word(call.text), time(took), yes_no(held), word(call.rule)});
  }
  return table;
}

Picos longest(const Program& program, bool launches) {
  Picos max = 0;
  for (const CallTime& seen : program.calls) {
    if (seen.call.starts_with("launch") == launches) max = std::max(max, seen.took);
  }
  return max;
}

}  // namespace

void lab_host(const Bench& bench, Report& report) {
  const std::size_t size = bench.quick() ? 4 << 20 : 16 << 20;
  const Picos kernel = bench.kernel_time();
  report.ask(
      "Which calls hold the host? A launch returns before the kernel has run; a copy of ordinary memory does not "
      "return before the data has left or arrived, and so waits for the kernel in front of it. Look at `held the host` "
      "beside the kernel's time: the last copy of each program pays for the kernel.");
  const Program programs[] = {increment(bench, size, kernel), saxpy(bench, size, kernel)};
  for (const Program& program : programs) report.show(program_table(program));
  std::vector<std::string> waited;
  report.show(calls_table(bench, size, kernel, waited));
  const Picos launch = std::max(longest(programs[0], true), longest(programs[1], true));
  const Picos copy = std::max(longest(programs[0], false), longest(programs[1], false));
  report.conclude(
      fmt::format("{}; {}. The launches held the host for at most {}, the copies for up to {} with a kernel of {} in "
                  "front of the last one. Of {} kinds of call behind a kernel {} waited for it: {}.",
                  borne_out("A launch returns before its kernel is done", launch < kernel / 2),
                  borne_out("a copy of pageable memory waits for the kernel in front of it", copy >= kernel / 2),
                  base::format_time(launch), base::format_time(copy), base::format_time(kernel), std::size(kCalls),
                  waited.size(), waited.empty() ? "none" : fmt::format("{}", fmt::join(waited, "; "))));
}

}  // namespace slip::cli
