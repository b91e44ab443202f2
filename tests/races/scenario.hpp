// The corpus of races: numbered programs, one a file, half of them racy and half correct. Ops declare accesses and
// touch nothing, so racy programs are safe to run. Each runs on every device, and once more in a process of its own: a
// stream that reuses the slot of an earlier one has other positions, which could hide a defect of the checker.
#pragma once

#include <atomic>
#include <vector>

#include "slip/slip.hpp"
#include "support/kernels.hpp"

namespace slip::races {

inline constexpr std::size_t kBytes = 4096;

// What a program is given: a fresh device (a second one if it asks for two), and streams that the legacy stream does
// not order.
struct Setting {
  Device device;
  Device second;
  Stream a = device.stream(StreamFlags::kNonBlocking);
  Stream b = device.stream(StreamFlags::kNonBlocking);

  Buffer memory(Name name) const { return device.alloc(kBytes, MemoryKind::kDevice, name); }
  Buffer pinned(Name name) const { return device.alloc(kBytes, MemoryKind::kPinned, name); }
};

// An op that reads and writes these.
inline void work(StreamRef stream, Name name, std::vector<Range> reads, std::vector<Range> writes,
                 Here here = Here::at()) {
  stream.launch(test::idle_kernel(), {.reads = reads, .writes = writes, .name = name}, {}, here);
}

// A stream of its own writes the data, records the event and is closed. Waits until it has ended, without a sync.
inline void write_and_close(Setting& s, const Buffer& data, Event& written) {
  std::atomic<bool> ended{false};
  {
    const Stream stream = s.device.stream(StreamFlags::kNonBlocking);
    work(stream, "writer", {}, {data});
    stream.record(written);
    stream.host([&ended] { ended.store(true); }, "end");
  }
  while (!ended.load()) {  // time goes on, also simulated time
    s.a.host([] {}, "other");
    s.a.sync();
  }
}

struct Scenario {
  int number;
  const char* title;
  void (*program)(Setting&);
  // Of a racy one: the two that race, in the order issued; "the host" is one, too. Of a clean one: nothing.
  const char* first = nullptr;
  const char* second = nullptr;
  int devices = 1;
  bool on_cuda = true;  // false: the driver's own barriers, or those that the runtime adds there, order more
};

// By number. Made by the scenarios' files, each of which adds its own.
std::vector<Scenario>& corpus();
struct InCorpus {
  explicit InCorpus(const Scenario& scenario) { corpus().push_back(scenario); }
};

}  // namespace slip::races
