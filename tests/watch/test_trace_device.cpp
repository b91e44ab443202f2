// Traces of real runs, and SLIP_TRACE in processes of their own.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "runtime/observers.hpp"
#include "slip/device.hpp"
#include "support.hpp"
#include "support/child.hpp"

namespace slip {

namespace {

using watch_test::contents;
using watch_test::expect_same;
using watch_test::Folder;

constexpr std::size_t kBytes = std::size_t{1} << 16;

void add_one(const Args& args) {
  const std::span<const float> in = args.in<float>(0);
  const std::span<float> out = args.out<float>(0);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = in[i] + 1.0F;
}
const Kernel kAddOne{"add one", add_one};

// An upload in one stream, a kernel in another after an event, a download, and a read by the host.
void pipeline(const Device& device) {
  const Stream load = device.stream(StreamFlags::kNonBlocking), compute = device.stream(StreamFlags::kNonBlocking);
  Buffer source = device.alloc(kBytes, MemoryKind::kPinned, "source");
  const Buffer in = device.alloc(kBytes, MemoryKind::kDevice, "in");
  const Buffer out = device.alloc(kBytes, MemoryKind::kDevice, "out");
  const Buffer result = device.alloc(kBytes, MemoryKind::kPinned, "result");
  for (float& value : source.host_write<float>()) value = 41.0F;
  load.copy(in, source, "upload");
  const Event loaded = load.record();
  compute.wait(loaded);
  compute.launch(kAddOne, {.reads = {in}, .writes = {out}}, {.bytes = 2 * kBytes, .flops = kBytes / 4});
  compute.copy(result, out, "download");
  compute.sync();
  EXPECT_EQ(result.host_read<float>()[7], 42.0F);
}

void expect_pipeline(const TraceData& data) {
  EXPECT_EQ(data.dropped, 0U);
  const std::vector<TraceSpan> spans = data.spans();
  std::map<std::string_view, const TraceSpan*> by_name;
  for (const TraceSpan& span : spans) {
    EXPECT_NE(span.submit, nullptr) << span.name;
    ASSERT_NE(span.run, nullptr) << span.name;
    EXPECT_LE(span.queued, span.started);
    EXPECT_LE(span.started, span.ended);
    by_name[span.name] = &span;
  }
  ASSERT_TRUE(by_name.count("upload") && by_name.count("add one") && by_name.count("download"));
  const TraceSpan &upload = *by_name["upload"], &add = *by_name["add one"], &download = *by_name["download"];
  EXPECT_EQ(upload.engine, Engine::kCopyIn);
  EXPECT_EQ(add.engine, Engine::kCompute);
  EXPECT_EQ(download.engine, Engine::kCopyOut);
  EXPECT_NE(std::string(upload.file).find("test_trace_device.cpp"), std::string::npos);
  EXPECT_LE(upload.ended, add.started);
  EXPECT_LE(add.ended, download.started);
  ASSERT_EQ(add.reads.size(), 1U);
  ASSERT_NE(data.buffer(add.reads[0].buffer), nullptr);
  EXPECT_EQ(data.buffer(add.reads[0].buffer)->name, "in");
  EXPECT_EQ(data.buffer(add.reads[0].buffer)->bytes, kBytes);

  const std::vector<TraceEdge> edges = data.edges();
  ASSERT_EQ(edges.size(), 1U);
  EXPECT_EQ(edges[0].from_stream, upload.stream);
  EXPECT_GE(edges[0].from_position, upload.position);
  EXPECT_EQ(edges[0].to_stream, add.stream);
  EXPECT_LT(edges[0].sequence, add.submit->sequence);

  EXPECT_EQ(data.of({RecordKind::kAlloc}).size(), 4U);
  EXPECT_EQ(data.of({RecordKind::kFree}).size(), 4U);
  const auto host = data.of({RecordKind::kHostWrite, RecordKind::kSync, RecordKind::kHostRead});
  ASSERT_EQ(host.size(), 3U);
  EXPECT_EQ(host[0]->kind, RecordKind::kHostWrite);
  EXPECT_EQ(host[1]->kind, RecordKind::kSync);
  EXPECT_EQ(host[1]->other_stream, download.stream);
  EXPECT_GE(host[1]->other_position, download.position);
  EXPECT_EQ(host[2]->kind, RecordKind::kHostRead);

  const Figures figures = slip::figures(spans);
  EXPECT_GT(figures.copy, 0);
  EXPECT_EQ(figures.overlapped, 0);  // a chain
}

class TraceDevice : public ::testing::TestWithParam<const char*> {};

TEST_P(TraceDevice, PipelineIsRecordedWholeAndReadBack) {
  const Folder folder;
  Trace trace;
  pipeline(Device::open(GetParam()));
  trace.stop();
  const TraceData data = trace.data();
  expect_pipeline(data);
  trace.write(folder.file("t.json"));
  expect_same(data, read_trace(folder.file("t.json")));
}

INSTANTIATE_TEST_SUITE_P(Devices, TraceDevice, ::testing::Values("cpu", "sim:h200"),
                         [](const auto& device) { return std::string(device.param).substr(0, 3); });

// --- SLIP_TRACE ---

constexpr const char* kChildVariable = "SLIP_TEST_TRACE_CHILD";

// Starts this program again with SLIP_TRACE set; what it prints goes to `log`.
int run_child(const std::string& trace, const std::string& what, const std::string& log) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = fmt::format("{}={} SLIP_TRACE='{}' '{}' --child=TraceProcess.Child >'{}' 2>&1",
                                          kChildVariable, what, trace, self, log);
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// What run_child() runs.
SLIP_CHILD(TraceProcess, Child) {
  const char* what = std::getenv(kChildVariable);
  ASSERT_NE(what, nullptr);
  runtime::start_observers();
  runtime::start_observers();
  Trace trace;
  pipeline(Device::open("cpu"));
  EXPECT_FALSE(trace.data().records.empty());
  if (std::string(what) != "fork") return;
  const pid_t child = ::fork();
  // The exit handlers of the child must leave the parent's file alone. A thread of the parent may have held a lock of
  // the trace, so the child must not read its records.
  if (child == 0) std::exit(trace.data().records.empty() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(TraceProcess, VariableWritesAFileAtExit) {
  const Folder folder;
  ASSERT_EQ(run_child(folder.file("t.json"), "plain", folder.file("log")), 0) << contents(folder.file("log"));
  expect_pipeline(read_trace(folder.file("t.json")));
  EXPECT_EQ(contents(folder.file("log")).find("slip:"), std::string::npos);
}

TEST(TraceProcess, ForkDoesNotOverwriteIt) {
  const Folder folder;
  ASSERT_EQ(run_child(folder.file("t_%p.json"), "fork", folder.file("log")), 0) << contents(folder.file("log"));
  const std::vector<std::string> names = folder.names();
  ASSERT_EQ(names.size(), 2U);  // the log and one trace, with a process id in its name
  const std::string& name = names[names[0] == "log" ? 1 : 0];
  EXPECT_EQ(name.find('%'), std::string::npos);
  expect_pipeline(read_trace(folder.file(name)));
}

TEST(TraceProcess, FailureIsOneLineAndTheExitCodeStays) {
  const Folder folder;
  EXPECT_EQ(run_child("/dev/full", "plain", folder.file("log")), 0);
  const std::string log = contents(folder.file("log"));
  EXPECT_NE(log.find("slip: SLIP_TRACE: input/output error: cannot write '/dev/full': No space left"),
            std::string::npos)
      << log;
}

}  // namespace
}  // namespace slip
