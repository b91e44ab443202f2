// Random programs of API calls, valid and invalid: each call works or throws slip::Error, and each program ends.
//
// usage: fuzz_programs SECONDS SEED. A program is made from one seed alone, so that a failure can be run again; the
// seed of each program is printed when it fails. An alarm ends hangs and names the seed.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "slip/device.hpp"
#include "slip/plan.hpp"

namespace slip {
namespace {

constexpr unsigned kProgramSeconds = 60;  // for one program; a tenth of a second is usual
char g_now[64] = "no program";

void on_alarm(int) {
  [[maybe_unused]] ssize_t written = write(2, g_now, std::strlen(g_now));
  written = write(2, " hangs\n", 7);
  _exit(1);
}

const Kernel kNothing{"nothing", [](const Args&) {}, nullptr};
const Kernel kTouch{"touch",
                    [](const Args& args) {
                      for (std::size_t i = 0; i < args.writes(); ++i) {
                        for (unsigned char& byte : args.out<unsigned char>(i))
                          byte = static_cast<unsigned char>(byte + 1);
                      }
                    },
                    nullptr};
const Kernel kThrow{"throw", [](const Args&) { throw std::runtime_error("on purpose"); }, nullptr};
const Kernel kFault{"fault", [](const Args&) { throw DeviceFault("on purpose"); }, nullptr};
const Kernel kGreedy{"greedy", [](const Args& args) { static_cast<void>(args.in<int>(99)); }, nullptr};
const Kernel kHollow{"hollow", nullptr, nullptr};

class Program {
 public:
  explicit Program(std::uint64_t seed) : random_(seed) {
    const int count = 1 + pick(2);
    DeviceOptions options{.policy = static_cast<CpuPolicy>(pick(3)),
                          .seed = seed,
                          .compute_workers = pick(3),
                          .queue_depth = std::size_t{16} << pick(5),
                          .max_connections = pick(3) == 0 ? 1 + pick(4) : 0,
                          .memory_limit = std::size_t{1} << (16 + pick(8)),
                          .strict = pick(10) == 0,
                          .launch_blocking = pick(12) == 0,
                          .legacy_implicit_sync = pick(12) == 0,
                          .pageable = static_cast<PageableCopy>(pick(3)),
                          .default_stream = static_cast<DefaultStream>(pick(2)),
                          .pool = {.follow_event_dependencies = pick(2) == 0,
                                   .opportunistic = pick(2) == 0,
                                   .internal_dependencies = pick(2) == 0,
                                   .release_threshold = pick(2) == 0 ? std::size_t{0} : std::size_t{1} << 20}};
    gated_ = !options.launch_blocking && !options.legacy_implicit_sync;
    for (int i = 0; i < count; ++i) devices_.push_back(Device::open("cpu", options));
    for (int i = 0; i < 4; ++i) {
      streams_.push_back(device().stream(static_cast<StreamFlags>(pick(2))));
      buffers_.push_back(device().alloc(256 << pick(3), static_cast<MemoryKind>(pick(3))));
      refs_.emplace_back(streams_.back());
      ranges_.push_back(buffers_.back());
    }
    word_ = devices_[0].alloc(16, MemoryKind::kPinned, "words");
    std::memset(word_.native(), 0, 16);
  }

  void run(int calls) {
    for (int i = 0; i < calls; ++i) {
      try {
        call();
        ++worked_;
      } catch (const Error& error) {
        ++refused_;
        if (std::strlen(error.what()) == 0) throw std::logic_error("an error without words");
      }
    }
    open_gate();
    captured_.clear();
    streams_.clear();
    for (const Device& device : devices_) {
      try {
        captured_.push_back(device.per_thread_stream().end_capture());
      } catch (const Error&) {}
    }
    captured_.clear();
    settle();
    buffers_.clear();
    for (const Device& device : devices_) check_memory(device);
  }

  std::uint64_t worked() const { return worked_; }
  std::uint64_t refused() const { return refused_; }

 private:
  int pick(int choices) { return static_cast<int>(random_() % static_cast<std::uint64_t>(choices)); }
  Device& device() { return devices_[static_cast<std::size_t>(pick(static_cast<int>(devices_.size())))]; }

  void new_stream() {
    streams_.push_back(device().stream(static_cast<StreamFlags>(pick(20) == 0 ? 7 : pick(2)), pick(6) - 3));
    refs_.emplace_back(streams_.back());
  }

  void new_buffer() {
    const auto kind = static_cast<MemoryKind>(pick(3));
    const std::size_t bytes = pick(30) == 0   ? 0
                              : pick(40) == 0 ? ~std::size_t{0} >> pick(20)
                                              : std::size_t{1} << pick(14);
    // A sanitizer's allocator stops the program at sizes that a plain one refuses.
    if (bytes > (std::size_t{1} << 30) && bytes <= ~std::size_t{0} / 2) return;
    buffers_.push_back(device().alloc(bytes, kind, fmt::format("buffer {}", pick(50))));
    ranges_.push_back(buffers_.back());
  }

  StreamRef stream() {
    const int which = pick(20);
    if (which == 0) return device().legacy_stream();
    if (which == 1) return device().per_thread_stream();
    if (which == 2 && !refs_.empty()) return refs_[static_cast<std::size_t>(pick(static_cast<int>(refs_.size())))];
    if (streams_.empty()) return device().legacy_stream();
    return streams_[static_cast<std::size_t>(pick(static_cast<int>(streams_.size())))];
  }

  // A live range, a part of one, a stale one, none at all, or one that was tampered with.
  Range range() {
    const int which = pick(25);
    if (which == 0) return {};
    Range result = ranges_[static_cast<std::size_t>(pick(static_cast<int>(ranges_.size())))];
    if (which == 1) result.offset += static_cast<std::size_t>(pick(1 << 15));
    if (which == 2) result.bytes = ~std::size_t{0} >> pick(60);
    if (which > 15 && result.bytes > 8) return result.slice(static_cast<std::size_t>(pick(4)) * 4, 4);
    return result;
  }

  Event& event() {
    if (events_.size() < 6) events_.emplace_back();
    return events_[static_cast<std::size_t>(pick(static_cast<int>(events_.size())))];
  }
  TimedEvent& timed() {
    if (timed_.size() < 4) timed_.emplace_back();
    return timed_[static_cast<std::size_t>(pick(static_cast<int>(timed_.size())))];
  }

  const Kernel& kernel() {
    switch (pick(60)) {
      case 0: return kThrow;
      case 1: return kGreedy;
      case 2: return kHollow;
      case 3: return pick(10) == 0 && devices_.size() == 1 ? kFault : kThrow;  // a lost device cannot be waited for
      default: return pick(2) == 0 ? kNothing : kTouch;
    }
  }

  void open_gate() {
    std::atomic_ref(*static_cast<std::uint32_t*>(word_.native())).store(++turn_, std::memory_order_release);
  }

  void launch() {
    std::vector<Range> reads;
    std::vector<Range> writes;
    std::vector<Scalar> scalars;
    for (int i = pick(4); i > 0; --i) reads.push_back(range());
    for (int i = pick(3); i > 0; --i) writes.push_back(range());
    for (int i = pick(30) == 0 ? pick(200) : pick(6); i > 0; --i) scalars.emplace_back(i);
    stream().launch(kernel(), {.reads = reads, .writes = writes, .scalars = scalars, .name = pick(2) ? "op" : ""},
                    {.width = pick(20) == 0 ? 0.0 : 1.0});
  }

  // A gate, which the next gate op or the end of the program opens. Only if no later call could wait for it.
  void hold() {
    if (!gated_) return;
    const StreamRef held = stream();
    held.wait_value(word_.slice(0, 4), turn_ + 1);
    open_gate();
  }

  void synchronise() {
    switch (pick(6)) {
      case 0: stream().sync(); break;
      case 1: event().sync(); break;
      case 2: device().sync(); break;
      case 3: static_cast<void>(stream().query()); break;
      case 4: static_cast<void>(event().query()); break;
      default: static_cast<void>(stream().sync_for(std::chrono::microseconds(pick(300) - 50)));
    }
  }

  void capture() {
    const StreamRef origin = stream();
    switch (pick(4)) {
      case 0: origin.begin_capture(); break;
      case 1: captured_.push_back(origin.end_capture()); break;
      default:
        if (captured_.empty()) return;
        Plan& plan = captured_[static_cast<std::size_t>(pick(static_cast<int>(captured_.size())))];
        if (pick(3) == 0)
          origin.launch(plan, Bindings().buffer(range(), range()).scalar("op", static_cast<std::size_t>(pick(9)), 5));
        else if (pick(8) == 0) captured_.push_back(std::move(plan));
        else origin.launch(plan);
    }
  }

  void build_plan() {
    Plan plan;
    for (int i = pick(5); i > 0; --i) {
      PlanNode node{.stream = static_cast<std::uint32_t>(pick(20) == 0 ? pick(1 << 30) : pick(3)),
                    .kind = static_cast<OpKind>(pick(10)),
                    .engine = static_cast<Engine>(pick(5)),
                    .kernel = pick(5) == 0 ? nullptr : &kernel(),
                    .name = "op"};
      for (int n = pick(2); n > 0; --n) node.reads.push_back(range());
      for (int n = pick(2); n > 0; --n) node.writes.push_back(range());
      if (pick(2) == 0) node.host = [] {};
      if (pick(3) == 0) node.waits.push_back(static_cast<std::uint32_t>(pick(5)));
      if (node.kind == OpKind::kWaitValue) {  // for a flag that stays 0: nothing else would end the wait
        node.reads = {word_.slice(4, pick(4) == 0 ? 8 : 4)};
        node.value = 0;
      }
      plan.add(std::move(node));
    }
    stream().launch(plan);
    if (captured_.size() < 8) captured_.push_back(std::move(plan));
  }

  // Waits for all work, so that no stream still uses memory that is freed next: the program must ensure that, not the
  // runtime. False if a device cannot be waited for.
  bool settle() {
    for (const Device& device : devices_) {
      try {
        device.sync();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kLaunchFailed && error.code() != ErrorCode::kUndeclaredAccess) return false;
      }
    }
    return true;
  }

  void memory() {
    switch (pick(5)) {
      case 0: new_buffer(); break;
      case 1:
        if (buffers_.size() > 2 && settle()) buffers_.erase(buffers_.begin() + pick(static_cast<int>(buffers_.size())));
        break;
      case 2:
        buffers_.push_back(stream().alloc(static_cast<std::size_t>(pick(1 << 14))));
        ranges_.push_back(buffers_.back());
        break;
      case 3: {
        Buffer& buffer = buffers_[static_cast<std::size_t>(pick(static_cast<int>(buffers_.size())))];
        if (settle()) stream().free(std::move(buffer));
        break;
      }
      default:
        buffers_.push_back(device().wrap(pick(9) == 0 ? nullptr : memory_, static_cast<std::size_t>(pick(64)),
                                         static_cast<MemoryKind>(1 + pick(2))));
        ranges_.push_back(buffers_.back());
    }
    if (buffers_.empty()) new_buffer();
  }

  void call() {
    switch (pick(20)) {
      case 0: streams_.size() < 12 ? new_stream() : streams_.clear(); break;
      case 1:
        if (!streams_.empty()) streams_.erase(streams_.begin() + pick(static_cast<int>(streams_.size())));
        break;
      case 2:
      case 3: memory(); break;
      case 4: stream().record(event()); break;
      case 5: stream().wait(event()); break;
      case 6: pick(2) == 0 ? stream().record(timed()) : stream().record(static_cast<Event&>(timed())); break;
      case 7: static_cast<void>(timed() - timed()); break;
      case 8: stream().copy(range(), range()); break;
      case 9: pick(2) == 0 ? device().copy(range(), range()) : device().fill(range(), 3); break;
      case 10: stream().fill(range(), static_cast<unsigned char>(pick(256))); break;
      case 11: host_function(); break;
      case 12: stream().write_value(range(), 1); break;
      case 13: hold(); break;
      case 14: synchronise(); break;
      case 15: capture(); break;
      case 16: build_plan(); break;
      case 17: peers(); break;
      default: launch();
    }
  }

  void host_function() {
    switch (pick(4)) {
      case 0: stream().host({}); break;
      case 1: stream().host([] { throw 1; }); break;
      case 2: {
        // The runtime refuses calls from inside a host function; the refusal only poisons the stream.
        stream().host([inner = devices_[0].legacy_stream()] { inner.launch(kNothing); });
        break;
      }
      default: stream().host([] {});
    }
  }

  void peers() {
    switch (pick(3)) {
      case 0: device().enable_peer_access(device()); break;
      case 1: device().disable_peer_access(device()); break;
      default: {
        const Range on_host = range();
        if (on_host.block == nullptr || buffers_.empty()) return;
        Buffer& buffer = buffers_[static_cast<std::size_t>(pick(static_cast<int>(buffers_.size())))];
        static_cast<void>(buffer.host_read<int>().size());
      }
    }
  }

  void check_memory(const Device& device) {
    if (device.memory().used != 0)
      throw std::logic_error(fmt::format("{} bytes of device memory are still counted as used", device.memory().used));
  }

  std::mt19937_64 random_;
  alignas(64) unsigned char memory_[128] = {};
  std::vector<Device> devices_;
  Buffer word_;
  std::uint32_t turn_ = 0;
  bool gated_ = true;
  std::vector<Stream> streams_;
  std::vector<StreamRef> refs_;
  std::vector<Buffer> buffers_;
  std::vector<Range> ranges_;
  std::deque<Event> events_;
  std::deque<TimedEvent> timed_;
  std::deque<Plan> captured_;
  std::uint64_t worked_ = 0;
  std::uint64_t refused_ = 0;
};

int fuzz(double seconds, std::uint64_t first) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::uint64_t worked = 0;
  std::uint64_t refused = 0;
  std::uint64_t seed = first;
  do {
    std::snprintf(g_now, sizeof(g_now), "fuzz_programs 0 %llu", static_cast<unsigned long long>(seed));
    alarm(kProgramSeconds);
    try {
      Program program(seed);
      program.run(300);
      worked += program.worked();
      refused += program.refused();
    } catch (const std::exception& error) {
      fmt::print(stderr, "seed {}: {}\n", seed, error.what());
      return 1;
    }
    ++seed;
  } while (std::chrono::steady_clock::now() < end);
  alarm(0);
  fmt::print("seeds {} to {}: {} calls worked, {} were refused\n", first, seed - 1, worked, refused);
  return worked > 0 && refused > 0 ? 0 : 1;
}

}  // namespace
}  // namespace slip

int main(int argc, char** argv) {
  std::signal(SIGALRM, slip::on_alarm);
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  fmt::print("fuzz_programs: {} seconds from seed {}\n", seconds, seed);
  std::fflush(stdout);
  return slip::fuzz(seconds, seed);
}
