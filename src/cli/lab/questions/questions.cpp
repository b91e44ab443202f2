// Lab questions: each question is answered by an experiment that runs at once. Here are the questions about streams:
// what default streams, queues and copies order, and what overlaps.
#include <algorithm>
#include <array>

#include "base/thread.hpp"
#include "cli/lab/bench.hpp"

namespace slip::cli {
namespace {

// --- Order: default streams, queues, concurrency ---

const DeviceOptions kFourWorkers{.compute_workers = 4};
const DeviceOptions kOneQueue{.compute_workers = 4, .max_connections = 1};

Work quarter(const Bench& bench) { return bench.work(bench.kernel_time(), 0.25); }

Finding does_it_serialise(const Bench& bench) {
  const Device device = bench.open(kFourWorkers);
  const Stream a = device.stream(), b = device.stream();
  const Work work = quarter(bench);
  const Run run = bench.measure(device, {a, b, device.legacy_stream()}, [&] {
    busy(a, "a1", work);
    busy(b, "b1", work);
    busy(device.legacy_stream(), "k", work);
    busy(a, "a2", work);
    busy(b, "b2", work);
  });
  const bool before = together(run.span("a1"), run.span("b1")), after = together(run.span("a2"), run.span("b2"));
  const bool apart = run.span("a1").ended <= run.span("k").started && run.span("k").ended <= run.span("b2").started;
  return {"kernels a1 and b1 in two blocking streams, k in the default stream, then a2 and b2", kernel_order(run),
          "No. The default stream is a barrier: work issued before k ends before k starts, and work issued after k "
          "starts when k has ended. Kernels on one side of it can still overlap.",
          before && after && apart};
}

Finding does_it_wait_for_all(const Bench& bench) {
  const Device device = bench.open(kFourWorkers);
  const Stream blocking = device.stream(), free = device.stream(kNonBlocking);
  const Work work = quarter(bench), longer = bench.work(2 * bench.kernel_time(), 0.25);
  const Run run = bench.measure(device, {blocking, free, device.legacy_stream()}, [&] {
    busy(blocking, "blocking", work);
    busy(free, "free", longer);
    busy(device.legacy_stream(), "default", work);
  });
  return {"a kernel in a blocking stream, one twice as long in a non-blocking one, then one in the default stream",
          kernel_order(run),
          "No: it waits for blocking streams only. It does not wait for a stream created as non-blocking, nor does "
          "that stream wait for it.",
          !together(run.span("blocking"), run.span("default")) && together(run.span("free"), run.span("default"))};
}

// Two host threads launch into their default streams.
Run two_threads(const Bench& bench, DefaultStream mode, const Work& work) {
  DeviceOptions options = kFourWorkers;
  options.default_stream = mode;
  const Device device = bench.open(options);
  return bench.measure(device, {device.legacy_stream()}, [&] {
    for (const char* name : {"thread1", "thread2"}) {
      base::Thread thread;
      thread.start("slip lab", [&] { busy(device.default_stream(), name, work); });
      thread.join();
    }
  });
}

Finding per_thread(const Bench& bench) {
  const Work work = quarter(bench);
  const Run legacy = two_threads(bench, DefaultStream::kLegacy, work);
  const Run own = two_threads(bench, DefaultStream::kPerThread, work);
  return {
      "two host threads, each launches a kernel into the default stream; in both modes",
      fmt::format("legacy: {}; per-thread: {}", kernel_order(legacy), kernel_order(own)),
      "Each host thread gets a default stream of its own, an ordinary blocking stream. Here it is an option of the "
      "device; in CUDA nvcc --default-stream per-thread, or CUDA_API_PER_THREAD_DEFAULT_STREAM defined before the "
      "first CUDA header (in a .cu file a #define is too late).",
      !together(legacy.span("thread1"), legacy.span("thread2")) && together(own.span("thread1"), own.span("thread2"))};
}

Finding without_kernel2(const Bench& bench) {
  const Device device = bench.open(kFourWorkers);
  const Stream s1 = device.stream(), s2 = device.stream();
  const Work work = quarter(bench);
  const Run run = bench.measure(device, {s1, s2}, [&] { busy(s1, "k1", work), busy(s2, "k3", work); });
  const Device old = bench.open(kOneQueue);
  const Stream o1 = old.stream(), o2 = old.stream(), o3 = old.stream();
  const Run held = bench.measure(old, {o1, o2, o3}, [&] {
    busy(o1, "k1", work);
    o2.wait(o1.record());
    busy(o2, "k2", work);
    busy(o3, "k3", work);
  });
  return {"k1 and k3 in two streams; then with one hardware queue and, between them, a k2 that waits for k1",
          fmt::format("{}; one queue: {}", kernel_order(run), kernel_order(held)),
          "No, nothing orders them. On old GPUs with one hardware queue it could happen: k3 is behind k2 in the queue, "
          "and k2 still waits.",
          together(run.span("k1"), run.span("k3")) && !together(held.span("k1"), held.span("k3"))};
}

Finding always_concurrent(const Bench& bench) {
  const auto run_with = [&](const DeviceOptions& options, double width) {
    const Device device = bench.open(options);
    const std::array<Stream, 3> streams = {device.stream(kNonBlocking), device.stream(kNonBlocking),
                                           device.stream(kNonBlocking)};
    const Work work = bench.work(bench.kernel_time(), width);
    return bench.measure(device, {streams[0], streams[1], streams[2]}, [&] {
      busy(streams[0], "k1", work);
      busy(streams[1], "k2", work);
      busy(streams[2], "k3", work);
    });
  };
  const Run small = run_with(kFourWorkers, 0.25), large = run_with({.compute_workers = 1}, 1.0);
  return {"three kernels in three non-blocking streams: each a quarter of the device, then each all of it",
          fmt::format("small: {}; large: {}", kernel_order(small), kernel_order(large)),
          "They may be, if the device has room. Streams permit overlap and never promise it.",
          together(small.span("k1"), small.span("k3")) && !together(large.span("k1"), large.span("k2"))};
}

Finding one_queue(const Bench& bench) {
  const Device device = bench.open(kOneQueue);
  const Stream a = device.stream(kNonBlocking), b = device.stream(kNonBlocking), c = device.stream(kNonBlocking);
  const Work work = quarter(bench);
  const Run ready = bench.measure(device, {a, b, c}, [&] { busy(a, "k1", work), busy(b, "k2", work); });
  const Run waiting = bench.measure(device, {a, b, c}, [&] {
    busy(a, "k1", work);
    b.wait(a.record());
    busy(b, "waits", work);
    busy(c, "free", work);
  });
  return {
      "one hardware queue: two kernels that are ready; then one that waits, with an independent one issued behind it",
      fmt::format("ready: {}; waiting: {}", kernel_order(ready), kernel_order(waiting)),
      "No: the streams are still independent, and ready kernels overlap. But the queue starts work in order, so one "
      "kernel that waits delays all behind it. This delays the backward pass in the lab `hook`.",
      together(ready.span("k1"), ready.span("k2")) && !together(waiting.span("k1"), waiting.span("free"))};
}

Finding event_times(const Bench& bench) {
  const Device device = bench.open(kFourWorkers);
  const Stream a = device.stream(kNonBlocking), b = device.stream(kNonBlocking);
  const Work work = quarter(bench);
  TimedEvent start, end;
  const auto elapsed = [&](bool beside) {
    const Run run = bench.measure(device, {a, b}, [&] {
      if (beside) busy(b, "other", work);
      a.record(start);
      if (beside) a.wait(b.record());
      busy(a, "op", work);
      a.record(end);
    });
    return std::pair<Picos, Picos>((end - start).count() * 1000, run.span("op").ended - run.span("op").started);
  };
  const auto [alone, op_alone] = elapsed(false);
  const auto [beside, op_beside] = elapsed(true);
  return {"an event, a kernel, an event; alone, then with a wait for another stream's kernel in front of it",
          fmt::format("alone {} for an op of {}; with the wait {} for an op of {}", base::format_time(alone),
                      base::format_time(op_alone), base::format_time(beside), base::format_time(op_beside)),
          "Only when nothing else comes between: the events measure the time from one point of the stream to the "
          "other, and waiting, for another stream or for room on the device, counts.",
          beside > alone + bench.kernel_time() / 2};
}

// --- Copies: what they order, when they block the host, and how many run at a time ---

Finding must_be_asynchronous(const Bench& bench) {
  const Device device = bench.open();
  const CopyMemory memory(device, bench.copy_bytes());
  const Stream stream = device.stream(kNonBlocking);
  const Work work = bench.work(2 * bench.kernel_time());
  Picos took = 0;
  const Run run = bench.measure(device, {}, [&] {
    busy(stream, "kernel", work);
    device.copy(memory.device[0], memory.host[0]);
    const Picos start = device.now();
    stream.copy(memory.device[1], memory.host[1], "in the stream");
    took = device.now() - start;
  });
  const TraceSpan& sync = run.span("copy");
  const TraceSpan& async = run.span("in the stream");
  const bool in_default = sync.stream == device.legacy_stream().id();
  return {"a kernel in a non-blocking stream; device.copy beside it; stream.copy of pinned memory behind it",
          fmt::format(
              "device.copy ran in the {} stream and {} the kernel; stream.copy returned after {} and ran {} the kernel",
              in_default ? "default" : "created", together(sync, run.span("kernel")) ? "beside" : "apart from",
              base::format_time(took), async.started >= run.span("kernel").ended ? "after" : "beside"),
          "Yes. The synchronous copy has no stream to choose and always uses the default stream; only stream.copy goes "
          "into a created one. It is really asynchronous with pinned memory only.",
          in_default && async.started >= run.span("kernel").ended && took < bench.kernel_time() / 2};
}

Finding is_a_copy_a_sync(const Bench& bench) {
  const Device device = bench.open({.compute_workers = 4});
  const CopyMemory memory(device, bench.copy_bytes());
  const Stream blocking = device.stream(), free = device.stream(kNonBlocking);
  const Work work = bench.work(bench.kernel_time(), 0.25), longer = bench.work(8 * bench.kernel_time(), 0.25);
  busy(blocking, "blocking", work);
  device.copy(memory.device[0], memory.device[1]);
  const bool within_left = !blocking.query();
  device.sync();
  busy(blocking, "blocking", work);
  busy(free, "free", longer);
  device.copy(memory.host[0], memory.device[0]);
  const bool blocking_left = !blocking.query(), free_left = !free.query();
  device.sync();
  const auto left = [](bool value) { return value ? "still at work" : "done"; };
  return {
      "a kernel in a blocking stream, and device.copy within the device; then with a long kernel in a non-blocking "
      "stream as well, and device.copy to the host",
      fmt::format("after the first the blocking stream was {}; after the second the blocking stream was {}, the "
                  "non-blocking one {}",
                  left(within_left), left(blocking_left), left(free_left)),
      "Only by accident. A copy to the host returns when it is done, and as work of the default stream it waits for "
      "blocking streams, not for others. A copy within the device waits for nothing. Synchronise with sync() or "
      "events.",
      within_left && !blocking_left && free_left};
}

Finding one_at_a_time(const Bench& bench) {
  const Device device = bench.open();
  const CopyMemory memory(device, bench.copy_bytes());
  const Stream a = device.stream(kNonBlocking), b = device.stream(kNonBlocking);
  const Run same = bench.measure(device, {a, b}, [&] {
    a.copy(memory.device[0], memory.host[0], "first");
    b.copy(memory.device[1], memory.host[1], "second");
  });
  const Run opposite = bench.measure(device, {a, b}, [&] {
    a.copy(memory.device[0], memory.host[0], "first");
    b.copy(memory.host[1], memory.device[1], "second");
  });
  const bool one_engine = device.info().copy_engines == 1;
  const bool same_together = together(same.span("first"), same.span("second"));
  const bool opposite_together = together(opposite.span("first"), opposite.span("second"));
  const auto how = [](bool value) { return value ? "side by side" : "one after the other"; };
  return {"two uploads in two streams; then an upload and a download",
          fmt::format("uploads: {}; up and down: {}; the device has {}", how(same_together), how(opposite_together),
                      counted(static_cast<std::size_t>(device.info().copy_engines), "copy engine")),
          one_engine
              ? "No, it is the copy engine: this device has one for both directions, so not even up and down overlap. "
                "The bus carries both at once."
              : "No, it is the copy engine: one for each direction, and it serves one copy at a time. The bus carries "
                "both directions at once. How long a copy takes and what holds the host are two different things.",
          !same_together && opposite_together == !one_engine};
}

Finding must_share_a_stream(const Bench& bench) {
  const int seeds = bench.quick() ? 30 : 60;
  const auto wrong = [&](bool edge) {
    return wrong_in_random_orders(seeds, [edge](const Device& device) {
      Buffer host = device.alloc(4096, MemoryKind::kPinned, "host");
      const Buffer memory = device.alloc(4096, MemoryKind::kDevice, "device");
      std::ranges::fill(host.host_write<float>(), 1.0F);
      device.fill(memory, 0);
      device.sync();
      const Stream load = device.stream(kNonBlocking), compute = device.stream(kNonBlocking);
      load.copy(memory, host);
      if (edge) compute.wait(load.record());
      compute.launch(kScale, {{memory}, {memory}, {std::int64_t{0}, 2.0F, 0.0F}});
      device.sync();
      device.copy(host, memory);
      return host.host_read<float>()[0] == 2.0F;
    });
  };
  const int without = wrong(false), with = wrong(true);
  return {fmt::format("a copy in one stream, the kernel that needs it in another, in {} random orders (on cpu)", seeds),
          fmt::format("wrong results: {} without an event between them, {} with one", without, with),
          "No. One stream orders them, and so does an event across two streams. With neither the result is a matter of "
          "luck.",
          without > 0 && with == 0};
}

Finding why_two_streams(const Bench& bench) {
  constexpr int kPieces = 8;
  const Device device = bench.open({.compute_workers = 1});
  const CopyMemory memory(device, bench.copy_bytes());
  const std::size_t size = bench.copy_bytes() / kPieces;
  const Picos load_time = bench.upload_time(size);
  const Work work = bench.work(load_time);
  const Stream load = device.stream(kNonBlocking), compute = device.stream(kNonBlocking);
  const auto piece = [&](const Buffer& buffer, std::size_t i) { return buffer.slice(i * size, size); };
  const auto run_in = [&](StreamRef loading) {
    return bench
        .measure(device, {load, compute},
                 [&] {
                   for (std::size_t i = 0; i < kPieces; ++i) {
                     loading.copy(piece(memory.device[0], i), piece(memory.host[0], i), "load");
                     if (!(loading == compute)) compute.wait(loading.record());
                     compute.launch(kBusy, {{piece(memory.device[0], i)}, {}, {work.pace}}, work.cost);
                   }
                 })
        .figures.total;
  };
  const Picos one = run_in(compute), two = run_in(load);
  return {fmt::format("{} pieces, each copied and then used by a kernel that takes as long ({}): in one stream, then "
                      "in two with an event for each piece",
                      kPieces, base::format_time(load_time)),
          fmt::format("one stream {}, two streams {}", base::format_time(one), base::format_time(two)),
          "Because the event orders one piece, not all: while piece i is computed, piece i+1 is copied. A piece costs "
          "the longer of copy and kernel instead of their sum.",
          static_cast<double>(two) < 0.85 * static_cast<double>(one)};
}

constexpr Question kQuestions[] = {
    {"The default stream synchronises with the others: is everything serial then?", "3, 4, 5", does_it_serialise},
    {"Does the default stream wait for every stream?", "6", does_it_wait_for_all},
    {"What does a per-thread default stream change, and how is it chosen?", "12, 13, 14, 15", per_thread},
    {"kernel1 and kernel3 are in two streams; without kernel2 in the default stream, must kernel3 wait?", "2, 93, 95",
     without_kernel2},
    {"Are kernels in non-blocking streams always concurrent?", "2, 7", always_concurrent},
    {"Does one hardware queue mean one stream?", "92, 93, 94", one_queue},
    {"Do two events around an op give its time?", "64", event_times},
    {"Must a copy in a created stream be the asynchronous one?", "37, 38, 42", must_be_asynchronous},
    {"Is a data transfer a way to synchronise?", "6, 24, 34, 35", is_a_copy_a_sync},
    {"Only one copy in a direction at a time: is that the bus?", "46, 47", one_at_a_time},
    {"Must work that depends on other work be in the same stream?", "1, 57", must_share_a_stream},
    {"If the streams must be synchronised anyway, why have two?", "57, 60", why_two_streams},
};

// --- The lab ---

std::string block(std::size_t number, const Question& question, const Finding& finding) {
  const std::string answer =
      finding.shown ? finding.answer : fmt::format("(this run did not show it) {}", finding.answer);
  return fmt::format(
      "\n{}{}{}{}",
      paragraph(fmt::format("{} [rules {}]", question.text, question.rules), 4, fmt::format("{:>2}. ", number)),
      paragraph(finding.ran, 12, "    ran     "), paragraph(finding.seen, 12, "    seen    "),
      paragraph(answer, 12, "    answer  "));
}

Finding run_question(const Bench& bench, const Question& question) {
  try {
    return question.run(bench);
  } catch (const Error& error) {
    const bool refused = error.code() == ErrorCode::kInvalidDevice || error.code() == ErrorCode::kInvalidValue;
    if (!bench.on_gpu() || !refused) throw;
    return {"nothing: this GPU cannot be opened as the experiment needs it", error.what(), "Ask it on cpu or sim.",
            false};
  }
}

}  // namespace

void lab_questions(const Bench& bench, Report& report) {
  report.ask(
      "Questions that come up when one learns about streams, each with an experiment that runs now. Read `ran` first, "
      "guess, then look at `seen`. The numbers are those of the rules in docs/semantics.md.");
  Table table("questions", {"question", "ran", "seen", "answer", "rules", "shown"});
  std::size_t number = 0, shown = 0;
  for (const auto& group : {std::span<const Question>(kQuestions), slot_questions(), several_device_questions()}) {
    for (const Question& question : group) {
      const Finding finding = run_question(bench, question);
      shown += finding.shown ? 1 : 0;
      report.print(block(++number, question, finding));
      table.row({word(question.text), word(finding.ran), word(finding.seen), word(finding.answer), word(question.rules),
                 yes_no(finding.shown)});
    }
  }
  report.keep(std::move(table));
  report.conclude(fmt::format("This run showed {} of {} answers.", shown, number));
}

}  // namespace slip::cli
