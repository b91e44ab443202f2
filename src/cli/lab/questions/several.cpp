// Questions about several devices and about communication.
#include <algorithm>

#include "cli/lab/bench.hpp"

namespace slip::cli {
namespace {

// Name of the error's code, or "allowed" without an error.
std::string outcome_of(const std::function<void()>& call) {
  try {
    call();
    return "allowed";
  } catch (const Error& error) {
    return fmt::format("refused ({})", code_name(error.code()));
  }
}

Finding across_devices(const Bench& bench) {
  const std::vector<Device> devices = Device::open_all(bench.options().device, 2);
  const Stream first = devices[0].stream(kNonBlocking), second = devices[1].stream(kNonBlocking);
  const Work work = bench.work(bench.kernel_time());
  const Run run = bench.measure(devices[1], {first}, [&] {
    busy(first, "on 0", work);
    second.wait(first.record());
    busy(second, "on 1", work);
  });
  const bool ordered = run.span("on 0").ended <= run.span("on 1").started;
  Event tied(devices[0]);
  const std::string record = outcome_of([&] { second.record(tied); });
  const TimedEvent a = first.record_timed(), b = second.record_timed();
  first.sync();
  second.sync();
  const std::string elapsed = outcome_of([&] { static_cast<void>(b - a); });
  return {"an event of device 0: waited for on device 1, recorded on device 1, subtracted from one of device 1",
          fmt::format("wait: allowed, the kernels ran {}; record: {}; subtract: {}",
                      ordered ? "one after the other" : "at once", record, elapsed),
          "Waiting may cross devices, and orders them. An event is recorded in streams of its own device only, and "
          "times of two devices cannot be compared.",
          ordered && record != "allowed" && elapsed != "allowed"};
}

// A hand-written ring all_reduce. In each step a device sends to its right neighbour, which adds.
class Ring {
 public:
  static constexpr std::size_t kRanks = 4, kBytes = 8 << 20;

  explicit Ring(const Bench& bench) : devices_(Device::open_all(bench.options().device, kRanks)) {
    for (const Device& device : devices_) {
      data_.push_back(device.alloc(kBytes, MemoryKind::kDevice, "data"));
      arrived_.push_back(device.alloc(kBytes, MemoryKind::kDevice, "arrived"));
      streams_.push_back(device.stream(kNonBlocking));
    }
  }

  void prepare() const {
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      Buffer host = devices_[rank].alloc(kBytes, MemoryKind::kPinned, "host");
      std::ranges::fill(host.host_write<float>(), static_cast<float>(rank + 1));
      devices_[rank].copy(data_[rank], host);
      devices_[rank].copy(arrived_[rank], host);
    }
    sync();
  }

  // In n pieces: 2 (n - 1) steps of one piece each. The first half reduces, the second half distributes the sums.
  void in_pieces() {
    constexpr std::size_t kPiece = kBytes / kRanks;
    for (std::size_t step = 0; step < 2 * (kRanks - 1); ++step) {
      const auto part_of = [&](std::size_t rank) { return Part{(rank + 2 * kRanks - step) % kRanks * kPiece, kPiece}; };
      const bool add = step < kRanks - 1;
      std::vector<Event> sent;
      for (std::size_t rank = 0; rank < kRanks; ++rank) sent.push_back(send(rank, part_of(rank), add));
      for (std::size_t rank = 0; rank < kRanks; ++rank) receive(right(rank), part_of(rank), sent[rank], add);
    }
  }
  // In one piece: the data is added from rank to rank, then the sum goes round.
  void in_one_piece() {
    for (std::size_t step = 0; step < 2 * (kRanks - 1); ++step) {
      const std::size_t sender = step % kRanks;
      const bool add = step < kRanks - 1;
      receive(right(sender), {0, kBytes}, send(sender, {0, kBytes}, add), add);
    }
  }

  void sync() const {
    for (const Device& device : devices_) device.sync();
  }
  const Device& device() const { return devices_[0]; }
  bool ok() const {
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      Buffer host = devices_[rank].alloc(kBytes, MemoryKind::kPinned, "host");
      devices_[rank].copy(host, data_[rank]);
      if (!std::ranges::all_of(host.host_read<float>(), [](float value) { return value == 10.0F; })) return false;
    }
    return true;
  }

 private:
  struct Part {
    std::size_t offset, bytes;
  };
  static std::size_t right(std::size_t rank) { return (rank + 1) % kRanks; }

  // Sends a rank's part to its neighbour: to be added, or in place of the neighbour's own.
  Event send(std::size_t rank, Part part, bool add) const {
    const Range landing = (add ? arrived_ : data_)[right(rank)].slice(part.offset, part.bytes);
    streams_[rank].copy(landing, data_[rank].slice(part.offset, part.bytes), "send");
    return streams_[rank].record();
  }
  void receive(std::size_t rank, Part part, const Event& sent, bool add) const {
    streams_[rank].wait(sent);
    if (!add) return;
    const Range to = data_[rank].slice(part.offset, part.bytes);
    streams_[rank].launch(kVectorAdd, {{to, arrived_[rank].slice(part.offset, part.bytes)}, {to}, {std::int64_t{0}}},
                          {.bytes = 3 * part.bytes});
  }

  std::vector<Device> devices_;
  std::vector<Buffer> data_, arrived_;
  std::vector<Stream> streams_;
};

Finding all_reduce(const Bench& bench) {
  bool ok = true;
  const auto measure = [&](void (Ring::*way)()) {
    Ring ring(bench);
    const Run run = bench.measure(
        ring.device(), {}, [&] { (ring.*way)(), ring.sync(); }, [&] { ring.prepare(); });
    ok &= ring.ok();
    return run.figures.total;
  };
  const Picos whole = measure(&Ring::in_one_piece), pieces = measure(&Ring::in_pieces);
  return {fmt::format("an all-reduce of {} over {} devices in a ring, by copies and adds: all at once from one to the "
                      "next, then in {} pieces that go round at the same time",
                      base::format_bytes(Ring::kBytes), Ring::kRanks, Ring::kRanks),
          fmt::format("one piece {}, {} pieces {}; results {}", base::format_time(whole), Ring::kRanks,
                      base::format_time(pieces), ok ? "right" : "WRONG"),
          "Yes, in pieces: every link then works in every step. Libraries cut further, into channels and slices "
          "through a buffer of a few MiB, so that steps overlap too.",
          ok && pieces < whole};
}

// A kernel's queue to a proxy thread: slots, and two counters, each written by one side only.
Finding proxy_queue(const Bench& bench) {
  constexpr std::uint32_t kDepth = 2, kPieces = 8;
  constexpr std::size_t kBytes = 256 << 10;
  const Device device = bench.open();
  const Stream kernel = device.stream(kNonBlocking), proxy = device.stream(kNonBlocking);
  const Buffer slots = device.alloc(kDepth * kBytes, MemoryKind::kDevice, "slots");
  Buffer out = device.alloc(kPieces * kBytes, MemoryKind::kPinned, "out");
  Buffer counters = device.alloc(8, MemoryKind::kPinned, "counters");
  const Range posted = counters.slice(0, 4), sent = counters.slice(4, 4);
  const Work work = bench.work(bench.upload_time(kBytes) / 2);
  const auto prepare = [&] {
    std::ranges::fill(out.host_write<float>(), -1.0F);
    std::ranges::fill(counters.host_write<std::uint32_t>(), 0U);
    device.fill(slots, 0);  // the kernel multiplies the old content by 0, which must not be NaN or infinity
    device.sync();
  };
  const Run run = bench.measure(
      device, {kernel, proxy},
      [&] {
        for (std::uint32_t i = 0; i < kPieces; ++i) {
          const Range slot = slots.slice(i % kDepth * kBytes, kBytes);
          if (i >= kDepth) kernel.wait_value(sent, i - kDepth + 1);
          kernel.launch(kScale, {{slot}, {slot}, {work.pace, 0.0F, static_cast<float>(i)}, fmt::format("post {}", i)},
                        work.cost);
          kernel.write_value(posted, i + 1);
          proxy.wait_value(posted, i + 1);
          proxy.copy(out.slice(i * kBytes, kBytes), slot, fmt::format("send {}", i));
          proxy.write_value(sent, i + 1);
        }
      },
      prepare);
  bool kept = true, ok = true;
  for (std::uint32_t i = kDepth; i < kPieces; ++i)
    kept &= run.span(fmt::format("send {}", i - kDepth)).ended <= run.span(fmt::format("post {}", i)).started;
  const auto view = out.host_read<float>();
  constexpr std::size_t kElements = kBytes / sizeof(float);
  for (std::size_t i = 0; i < view.size(); ++i) ok &= view[i] == static_cast<float>(std::size_t{i / kElements});
  return {fmt::format("{} pieces through {} slots: one stream fills a slot and raises `posted`, another waits for it, "
                      "sends and raises `sent`; both streams wait only for values in memory",
                      kPieces, kDepth),
          fmt::format("{} pieces arrived {}; the filling stream was {} ahead by more than {} slots", kPieces,
                      ok ? "right" : "WRONG", kept ? "never" : "once", kDepth),
          "By two counters, each written by one side: the kernel raises the tail when data lies in the slot, the proxy "
          "raises the head when it is sent. No other thread takes part, and no lock is needed.",
          ok && kept};
}

constexpr Question kQuestions[] = {
    {"With several devices, which event calls may cross them?", "67, 68, 69", across_devices},
    {"Does an all-reduce move the data in one piece?", "N1, N2", all_reduce},
    {"A kernel queues data for a proxy that sends it: how is that queue kept?", "1, 40", proxy_queue},
};

}  // namespace

std::span<const Question> several_device_questions() { return kQuestions; }

}  // namespace slip::cli
