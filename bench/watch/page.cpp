#include "page.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "slip/page.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kOps = 1'000'000;
constexpr std::uint64_t kStreams = 8;
constexpr int kSkipped = 77;

constexpr std::array<std::string_view, 10> kNames = {"load",      "attention", "gemm",    "norm",  "gather",
                                                     "allreduce", "softmax",   "scatter", "store", "rope"};

// A trace like that of a model in eight streams: ops are submitted ahead, each runs after the one before it in its
// stream, and every eighth waits for another stream. Ops have source lines, ranges and costs.
class MadeTrace {
 public:
  explicit MadeTrace(std::size_t ops) {
    data_.records.reserve(2 * ops + ops / 8);
    data_.ranges.reserve(2 * ops);
    for (std::uint64_t i = 0; i < 64; ++i) data_.buffers.push_back({i + 1, 1, MemoryKind::kDevice, 1 << 20, "buffer"});
    for (std::size_t i = 0; i < ops; ++i) add_op(i);
  }
  const TraceData& data() const { return data_; }

 private:
  TraceRecord& record(RecordKind kind, std::uint64_t stream) {
    TraceRecord& made = data_.records.emplace_back();
    made.kind = kind;
    made.device = 1;
    made.stream = stream;
    made.thread = 1;
    made.sequence = ++sequence_;
    return made;
  }
  // A random generator of its own, so that the trace is the same on every machine.
  std::uint64_t random() { return state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL, state_ >> 33; }

  void add_op(std::size_t i) {
    const std::uint64_t stream = 1 + i % kStreams;
    const Picos queued = static_cast<Picos>(i) * 500'000;
    Picos ready = std::max(queued, ended_[stream]);
    if (random() % 8 == 0) {
      const std::uint64_t other = 1 + (stream + random() % (kStreams - 1)) % kStreams;
      TraceRecord& wait = record(RecordKind::kEventWait, stream);
      wait.position = position_[stream];
      wait.other_stream = other;
      wait.other_position = position_[other];
      ready = std::max(ready, ended_[other]);
    }
    const Engine engine = stream == 1 ? Engine::kCopyIn : stream == 2 ? Engine::kCopyOut : Engine::kCompute;
    TraceRecord& submit = record(RecordKind::kSubmit, stream);
    submit.op = stream <= 2 ? OpKind::kCopy : OpKind::kKernel;
    submit.engine = engine;
    submit.position = ++position_[stream];
    submit.queued = queued;
    submit.name = kNames[random() % kNames.size()];
    submit.file = "model.cpp";
    submit.line = static_cast<std::int32_t>(1 + random() % 500);
    submit.cost.bytes = 1 << 20;
    submit.first_range = data_.ranges.size();
    submit.reads = submit.writes = 1;
    // Each stream uses its own buffers, so there are no races.
    for (const std::uint64_t k : {random() % 4, 4 + random() % 4})
      data_.ranges.push_back({1 + (stream - 1) * 8 + k, 0, 1 << 20});
    const TraceRecord asked = submit;
    TraceRecord& run = record(RecordKind::kRun, stream);
    run.engine = engine;
    run.position = asked.position;
    run.queue = static_cast<std::int32_t>(stream);
    run.name = asked.name;
    run.file = asked.file;
    run.line = asked.line;
    run.started = ready + static_cast<Picos>(random() % 200'000);
    run.ended = ended_[stream] = run.started + 500'000 + static_cast<Picos>(random() % 6'000'000);
  }

  TraceData data_;
  std::uint64_t sequence_ = 0, state_ = 1;
  std::array<std::uint64_t, kStreams + 1> position_{};
  std::array<Picos, kStreams + 1> ended_{};
};

// Removed at the end.
class PageFile {
 public:
  PageFile()
      : path_(fmt::format("{}/slip_page_{}.html", std::filesystem::temp_directory_path().string(), ::getpid())) {}
  ~PageFile() { std::filesystem::remove(path_); }
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Output {
  int status = -1;
  std::string text;
};

Output output_of(const std::string& command) {
  Output result;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (!pipe) return result;
  std::array<char, 4096> piece{};
  for (std::size_t count; (count = std::fread(piece.data(), 1, piece.size(), pipe)) > 0;)
    result.text.append(piece.data(), count);
  const int status = ::pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

// The browser's measurements, made once for both bars. `missing`: why there are none.
struct Measured {
  std::string missing;
  nlohmann::json json;
  std::vector<std::string> notes;
};

Measured measure(const Context& context) {
  Measured result;
  const PageFile page;
  {
    const MadeTrace trace(kOps);
    const Timer timer;
    write_page(trace.data(), page.path(), {.title = "a million ops"});
    result.notes.push_back(fmt::format("written in {} by write_page, {}", format_ns(timer.elapsed_ns()),
                                       format_bytes(static_cast<double>(std::filesystem::file_size(page.path())))));
  }
  const int repeat = context.quick() ? 1 : std::min(5, context.repeat());
  const Output output = output_of(
      fmt::format("bash '{0}/tests/page/run.sh' measure.js '{1}' {2} 2", SLIP_SOURCE_DIR, page.path(), repeat));
  if (output.status == kSkipped) {
    result.missing = output.text.substr(0, output.text.find('\n'));
  } else if (output.status != 0) {
    throw std::runtime_error(fmt::format("measuring the page failed with status {}: {}", output.status, output.text));
  } else {
    result.json = nlohmann::json::parse(output.text);
  }
  return result;
}

const Measured& measured(const Context& context) {
  static const Measured kMeasured = measure(context);
  return kMeasured;
}

Recorded open_times(Context& context) {
  const Measured& found = measured(context);
  Recorded result{{.name = "slip", .samples = {}, .unavailable = found.missing}, {}};
  for (const std::string& note : found.notes) context.note(note);
  if (!found.missing.empty()) return result;
  for (const auto& ms : found.json.at("open_ms")) result.ours.samples.push_back(ms.get<double>() * 1e6);
  return result;
}

// Of the ways to move the view, the slowest of each round counts.
Recorded frame_rates(Context& context) {
  const Measured& found = measured(context);
  Recorded result{{.name = "slip", .samples = {}, .unavailable = found.missing}, {}};
  if (!found.missing.empty()) return result;
  for (const auto& [way, rates] : found.json.at("fps").items()) {
    std::vector<double> samples = rates.get<std::vector<double>>();
    if (result.ours.samples.empty()) result.ours.samples = samples;
    for (std::size_t i = 0; i < samples.size(); ++i)
      result.ours.samples[i] = std::min(result.ours.samples[i], samples[i]);
    context.note(fmt::format("{}: {:.1f} frames a second", way, median(samples)));
  }
  return result;
}

}  // namespace

void add_page_bars(Harness& harness) {
  harness.add(
      {.area = "watch", .name = "page_open_1m", .limit = 5e9, .record = open_times, .warmups = 0, .max_repeat = 5});
  harness.add({.area = "watch",
               .name = "page_pan_fps",
               .unit = Unit::kPerSecond,
               .better = Better::kHigher,
               .limit = 30,
               .record = frame_rates,
               .warmups = 0,
               .max_repeat = 5});
}

}  // namespace slip::bench
