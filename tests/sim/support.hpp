// Helpers of the sim tests: a device whose times can be worked out by hand, and a recorder of what ran when.
//
// On the exact device a byte takes a nanosecond on every way and so does a floating-point operation; calls cost the
// host nothing.
#pragma once

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "slip/device.hpp"
#include "slip/observer.hpp"

namespace slip::test {

inline constexpr Picos kNano = 1000;
inline constexpr Picos kMicro = 1'000'000;

// What to change in the exact description; each text is put into the object of that name.
struct Exact {
  std::string compute = "";  // e.g. R"(, "launch": "2 us")"
  std::string copies = "";
  std::string host = R"("record": "0 ps")";
  std::string peers = "";  // the whole object
  int queues = 8;
};
std::string exact_text(const Exact& changes = {});

// Writes a description into the test's scratch folder; returns the name to open it by.
std::string sim_file(const std::string& text);
Device open_exact(const Exact& changes = {}, const DeviceOptions& options = {});
std::vector<Device> open_exact_all(int count, const Exact& changes = {}, const DeviceOptions& options = {});

DeviceOptions with_connections(int count);

// A kernel that does nothing.
const Kernel& idle_kernel();
// Launches one that takes `nanos` on `width` of the device.
void run_for(StreamRef stream, Name name, Picos nanos, double width = 1.0);

struct OpRun {
  std::string name;
  Engine engine = Engine::kNone;
  std::uint32_t device = 0;
  std::int32_t queue = -1;
  std::uint64_t stream = 0, position = 0;
  Picos start = 0, end = 0;  // nanoseconds; exact_ps() when they are not whole
  Picos start_ps = 0, end_ps = 0;
};

struct Edge {
  std::uint64_t stream, position, other_stream, other_position;
};

class Recorder : public Observer {
 public:
  Recorder() { attach_observer(*this); }
  ~Recorder() override { detach_observer(*this); }
  void on(const Record& record) override;

  // The op of this name, which must have run once.
  OpRun run(const std::string& name) const;
  std::vector<OpRun> runs() const;
  std::vector<Edge> barriers() const;

 private:
  mutable std::mutex mutex_;
  std::vector<OpRun> runs_;
  std::vector<Edge> barriers_;
};

// "[start, end]" in nanoseconds.
std::string span(const OpRun& run);

}  // namespace slip::test
