// The same program gives the same records, to the picosecond.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>

#include "sim/support.hpp"

namespace slip::test::test_determinism {
namespace {

// Figures that divide badly.
const Exact kOdd = {
    .compute = R"(, "launch": "517 ns", "copy_slowdown_ppm": 70001)",
    .copies = R"(, "both": "1777 MB/s", "pageable": "313 MB/s", "latency": "2711 ns")",
    .host = R"("launch": "3907 ns", "copy": "2203 ns", "fill": "1301 ns", "function": "3011 ns", "record": "199 ns",
               "wait": "233 ns", "query": "307 ns", "sync": "4201 ns", "callback": "8009 ns")",
    .peers = R"({"form": "ring", "bandwidth": "3701 MB/s", "latency": "1501 ns", "shared": true})",
    .queues = 3,
};

// A random program over several devices, streams, copies, events and the legacy stream; its records as text, with
// streams and positions counted from their first use.
std::string records_of(unsigned seed, bool functions) {
  std::mt19937 random(seed);
  DeviceOptions options;
  options.run_functions = functions;
  std::vector<Device> devices = open_exact_all(3, kOdd, options);
  std::vector<Stream> streams;
  std::vector<Buffer> memory, host;
  for (const Device& device : devices) {
    for (int i = 0; i < 5; ++i)
      streams.push_back(device.stream(i % 2 ? StreamFlags::kBlocking : StreamFlags::kNonBlocking, -i));
    memory.push_back(device.alloc(1 << 20));
    memory.push_back(device.alloc(1 << 20));
    host.push_back(device.alloc(1 << 20, MemoryKind::kPinned));
  }
  Recorder recorder;
  std::vector<Event> events(8);
  for (int step = 0; step < 400; ++step) {
    const std::size_t s = random() % streams.size();
    const std::size_t device = s / 5;
    const std::size_t bytes = 1 + random() % 300'000;
    const auto nanos = static_cast<Picos>(random() % 50'000);
    const std::size_t event = random() % events.size();
    const double width = 0.07 * static_cast<double>(1 + random() % 14);
    StreamRef stream = random() % 20 == 0 ? devices[device].legacy_stream() : StreamRef(streams[s]);
    switch (random() % 8) {
      case 0: stream.copy(memory[2 * device].slice(0, bytes), host[device].slice(0, bytes)); break;
      case 1: stream.copy(host[device].slice(0, bytes), memory[2 * device].slice(0, bytes)); break;
      case 2:
        stream.copy(memory[2 * ((device + 1) % 3) + 1].slice(0, bytes), memory[2 * device].slice(0, bytes));
        break;
      case 3: events[event] = stream.record(); break;
      case 4: stream.wait(events[event]); break;
      case 5: stream.host([] {}); break;
      case 6: stream.fill(memory[2 * device].slice(0, bytes), 1); break;
      default: run_for(stream, "k", nanos, width); break;
    }
    if (random() % 40 == 0) stream.sync();
    if (random() % 25 == 0) static_cast<void>(stream.query());
  }
  for (const Device& device : devices) device.sync();
  std::map<std::uint64_t, std::pair<std::size_t, std::uint64_t>> first;
  std::string text;
  for (const OpRun& run : recorder.runs()) {
    const auto [at, fresh] = first.emplace(run.stream, std::pair(first.size(), run.position));
    text +=
        fmt::format("{} {} {} {} {} {} {} {}\n", at->second.first, run.position - at->second.second, run.name,
                    static_cast<int>(run.engine), run.device - devices[0].id(), run.queue, run.start_ps, run.end_ps);
  }
  return text + fmt::format("end {}\n", devices[0].now());
}

TEST(SimDeterminism, SameProgramSameRecords) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const std::string first = records_of(seed, true);
    EXPECT_EQ(first, records_of(seed, true));
    EXPECT_EQ(first, records_of(seed, false));  // functions take no virtual time
    EXPECT_GT(std::count(first.begin(), first.end(), '\n'), 200);
  }
}

// Golden: equal on every machine and in every build, because nothing is computed in floating point.
TEST(SimDeterminism, TimesDoNotDependOnTheMachine) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : records_of(7, false)) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  EXPECT_EQ(hash, 14293925675598766493u);
}

}  // namespace
}  // namespace slip::test::test_determinism
