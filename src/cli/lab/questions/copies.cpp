// Questions about copies: what they order, when they block the host, and how many run at a time.
#include <algorithm>

#include "cli/lab/questions/questions.hpp"

namespace slip::cli {
namespace {

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
          fmt::format("uploads: {}; up and down: {}; the device has {} copy engine{}", how(same_together),
                      how(opposite_together), device.info().copy_engines, one_engine ? "" : "s"),
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
    {"Must a copy in a created stream be the asynchronous one?", "37, 38, 42", must_be_asynchronous},
    {"Is a data transfer a way to synchronise?", "6, 24, 34, 35", is_a_copy_a_sync},
    {"Only one copy in a direction at a time: is that the bus?", "46, 47", one_at_a_time},
    {"Must work that depends on other work be in the same stream?", "1, 57", must_share_a_stream},
    {"If the streams must be synchronised anyway, why have two?", "57, 60", why_two_streams},
};

}  // namespace

std::span<const Question> copy_questions() { return kQuestions; }

}  // namespace slip::cli
