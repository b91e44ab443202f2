// Questions about order: default streams, queues, concurrency.
#include <array>

#include "base/thread.hpp"
#include "cli/lab/questions/questions.hpp"

namespace slip::cli {
namespace {

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

constexpr Question kQuestions[] = {
    {"The default stream synchronises with the others: is everything serial then?", "3, 4, 5", does_it_serialise},
    {"Does the default stream wait for every stream?", "6", does_it_wait_for_all},
    {"What does a per-thread default stream change, and how is it chosen?", "12, 13, 14, 15", per_thread},
    {"kernel1 and kernel3 are in two streams; without kernel2 in the default stream, must kernel3 wait?", "2, 93, 95",
     without_kernel2},
    {"Are kernels in non-blocking streams always concurrent?", "2, 7", always_concurrent},
    {"Does one hardware queue mean one stream?", "92, 93, 94", one_queue},
    {"Do two events around an op give its time?", "64", event_times},
};

}  // namespace

std::span<const Question> order_questions() { return kQuestions; }

}  // namespace slip::cli
