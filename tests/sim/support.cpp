#include "sim/support.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

namespace slip::test {

std::string exact_text(const Exact& changes) {
  return fmt::format(R"({{"name": "exact", "memory": "1 GB", "queues": {},
    "compute": {{"flops": "1 GFLOP/s", "bandwidth": "1 GB/s"{}}},
    "copies": {{"in": "1 GB/s", "out": "1 GB/s"{}}},
    "host": {{{}}}{}{}}})",
                     changes.queues, changes.compute, changes.copies, changes.host,
                     changes.peers.empty() ? "" : ", \"peers\": ", changes.peers);
}

std::string sim_file(const std::string& text) {
  static std::atomic<int> counter{0};
  const std::string path = fmt::format("{}slip_sim_{}_{}.json", testing::TempDir(), getpid(), ++counter);
  std::ofstream(path) << text;
  return "sim:" + path;
}

std::vector<Device> open_exact_all(int count, const Exact& changes, const DeviceOptions& options) {
  const std::string name = sim_file(exact_text(changes));
  std::vector<Device> devices = Device::open_all(name, count, options);
  unlink(name.c_str() + 4);
  return devices;
}

Device open_exact(const Exact& changes, const DeviceOptions& options) {
  return open_exact_all(1, changes, options).front();
}

DeviceOptions with_connections(int count) {
  DeviceOptions options;
  options.max_connections = count;
  return options;
}

const Kernel& idle_kernel() {
  static const Kernel kIdle{"idle", [](const Args&) {}, nullptr};
  return kIdle;
}

void run_for(StreamRef stream, Name name, Picos nanos, double width) {
  stream.launch(idle_kernel(), {.name = name}, {.width = width, .time = nanos * kNano});
}

void Recorder::on(const Record& record) {
  const std::lock_guard lock(mutex_);
  if (record.kind == RecordKind::kBarrier)
    barriers_.push_back({record.stream, record.position, record.other_stream, record.other_position});
  if (record.kind != RecordKind::kRun) return;
  runs_.push_back({std::string(record.name.text()), record.engine, record.device, record.queue, record.stream,
                   record.position, record.started / kNano, record.ended / kNano, record.started, record.ended});
}

OpRun Recorder::run(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  OpRun found;
  int count = 0;
  for (const OpRun& run : runs_) {
    if (run.name == name) found = run, ++count;
  }
  EXPECT_EQ(count, 1) << "ops named " << name;
  return found;
}

std::vector<OpRun> Recorder::runs() const {
  const std::lock_guard lock(mutex_);
  return runs_;
}

std::vector<Edge> Recorder::barriers() const {
  const std::lock_guard lock(mutex_);
  return barriers_;
}

std::string span(const OpRun& run) { return fmt::format("[{}, {}]", run.start, run.end); }

}  // namespace slip::test
