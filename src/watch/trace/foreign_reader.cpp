// ForeignReader: Chrome traces of other programs.
#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <string>

#include "watch/trace/trace_data.hpp"
#include "watch/trace/trace_reader.hpp"

namespace slip::watch {
namespace {

// If the first time is larger than this, in microseconds, all times are counted from the first event. Such times count
// from 1970, and would overflow Picos.
constexpr std::int64_t kFarMicros = 1'000'000'000'000;

// Whether the event only labels other events: steps, ranges that the program marks, the profiler itself, Python stack
// frames.
bool is_annotation(std::string_view category, std::string_view name) {
  return category == "user_annotation" || category == "gpu_user_annotation" || category == "python_function" ||
         category == "Trace" || name.starts_with("ProfilerStep#");
}

// Whether the event is a call of the CUDA runtime or driver, which launches work on a device.
bool is_call(std::string_view category) {
  return category == "cuda_runtime" || category == "cuda_driver" || category == "Runtime";
}

// Returns the engine by PyTorch's categories. An event of any other category is work of the host.
Engine engine_by(std::string_view category, std::string_view name) {
  if (is_annotation(category, name)) return Engine::kNone;
  if (category == "kernel" || category == "Kernel")
    return name.starts_with("nccl") ? Engine::kCommunication : Engine::kCompute;
  if (category == "gpu_memset" || category == "Memset") return Engine::kCompute;
  if (category != "gpu_memcpy" && category != "Memcpy") return Engine::kHost;
  if (name.find("HtoD") != std::string_view::npos) return Engine::kCopyIn;
  if (name.find("DtoH") != std::string_view::npos) return Engine::kCopyOut;
  return Engine::kCompute;
}

// By start. Of runs with the same start, the enclosing run comes first.
bool starts_before(const TraceRecord& a, const TraceRecord& b) {
  return a.started != b.started ? a.started < b.started : a.ended > b.ended;
}

constexpr std::size_t kNoRun = ~std::size_t{0};

// The runs of each stream that are not annotations, in the order of starts_before().
class Tracks {
 public:
  explicit Tracks(const std::vector<TraceRecord>& records) : records_(records) {
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (records[i].kind == RecordKind::kRun && !records[i].annotation) runs_[records[i].stream].push_back(i);
    }
    for (auto& [stream, runs] : runs_) {
      std::stable_sort(runs.begin(), runs.end(),
                       [&](std::size_t a, std::size_t b) { return starts_before(records[a], records[b]); });
    }
  }

  // Returns the innermost run that contains the time.
  std::size_t at(std::uint64_t stream, Picos at) {
    const std::vector<std::size_t>& runs = runs_[stream];
    auto next = std::ranges::partition_point(runs, [&](std::size_t run) { return records_[run].started <= at; });
    for (int tries = 0; next != runs.begin() && tries < kMaxNested; ++tries) {
      if (records_[*--next].ended >= at) return *next;
    }
    return kNoRun;
  }
  // Returns the first run that starts at the time or later.
  std::size_t from(std::uint64_t stream, Picos at) {
    const std::vector<std::size_t>& runs = runs_[stream];
    const auto next = std::ranges::partition_point(runs, [&](std::size_t run) { return records_[run].started < at; });
    return next == runs.end() ? kNoRun : *next;
  }

 private:
  static constexpr int kMaxNested = 64;
  const std::vector<TraceRecord>& records_;
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> runs_;
};

}  // namespace

void ForeignReader::read() {
  Event event;
  read_fields(event);
  switch (event.phase) {
    case 0: json_.fail("an event without its phase (\"ph\"): not a trace");
    case 'M': return note_name(event);
    case 'X': {
      const Picos started = time_of(event);
      return add_run(track_of(event), {event.name, event.category, event.correlation, started},
                     sum(started, std::max<Picos>(event.lasts, 0)));
    }
    case 'B': {
      const Picos at = time_of(event);
      tracks_[track_of(event)].open.push_back({event.name, event.category, event.correlation, at});
      return;
    }
    case 's':
    case 'f': {
      if (event.id.empty() || !event.at) return;
      // An id is unique only within its category.
      const std::string_view id = texts_.keep(fmt::format("{} {}", event.category, event.id));
      arrows_.push_back({event.phase == 's', event.enclosed, id, {event.pid.data(), event.tid.data()}, time_of(event)});
      return;
    }
    case 'E': {
      const Picos at = time_of(event);
      const std::size_t track = track_of(event);
      if (tracks_[track].open.empty()) return;  // it began before the trace
      const Begin begin = tracks_[track].open.back();
      tracks_[track].open.pop_back();
      return add_run(track, begin, std::max(begin.at, at));
    }
    default: return;  // marks, counters and events without a thread
  }
}

void ForeignReader::read_fields(Event& event) {
  json_.members([&](std::string_view key) {
    if (key == "ph") event.phase = first_letter(json_.text());
    else if (key == "name") event.name = read_identity();
    else if (key == "cat") event.category = read_identity();
    else if (key == "pid") event.pid = read_identity();
    else if (key == "tid") event.tid = read_identity();
    else if (key == "ts") event.at = json_.long_micros();
    else if (key == "dur") event.lasts = json_.micros();
    else if (key == "id") event.id = read_identity();
    else if (key == "bp") event.enclosed = read_identity() == "e";
    else if (key == "args" && json_.next_is('{')) read_args(event);
    else json_.skip();
  });
}

void ForeignReader::read_args(Event& event) {
  json_.members([&](std::string_view key) {
    if (key == "name") event.given = read_identity();
    else if (key == "labels") event.labels = read_identity();
    else if (key == "correlation") event.correlation = read_identity();
    else json_.skip();
  });
}

// Returns a string or a number: tools use both as process ids. Any other value gives an empty string.
std::string_view ForeignReader::read_identity() {
  if (json_.next_is('"') || json_.next_is_number()) return texts_.keep(json_.scalar());
  json_.skip();
  return {};
}

std::size_t ForeignReader::track_of(const Event& event) {
  const ThreadKey key{event.pid.data(), event.tid.data()};
  if (key == last_key_ && !tracks_.empty()) return last_track_;
  const auto [found, fresh] = track_index_.try_emplace(key, tracks_.size());
  if (fresh) {
    const auto device = devices_.try_emplace(event.pid.data(), static_cast<std::uint32_t>(devices_.size() + 1)).first;
    tracks_.push_back({event.pid, event.tid, device->second, {}});
    records_.push_back(
        {.kind = RecordKind::kStreamOpen, .device = device->second, .stream = tracks_.size(), .thread = 1});
  }
  last_key_ = key;
  return last_track_ = found->second;
}

Picos ForeignReader::time_of(const Event& event) {
  if (!event.at) json_.fail("an event without its time (\"ts\")");
  if (!clock_.started) {
    clock_.started = true;
    if (std::abs(event.at->micros) > kFarMicros) clock_.base = event.at->micros;
  }
  std::int64_t micros = 0;
  Picos picos = 0;
  if (__builtin_sub_overflow(event.at->micros, clock_.base, &micros) ||
      __builtin_mul_overflow(micros, 1'000'000, &picos))
    json_.fail("a time more than 106 days from the first");
  picos = sum(picos, event.at->rest);
  clock_.latest = std::max(clock_.latest, picos);
  return picos;
}

void ForeignReader::add_run(std::size_t track, const Begin& begin, Picos ended) {
  if (records_.size() >= kMaxRecords) json_.fail(fmt::format("more than {} records", kMaxRecords));
  clock_.latest = std::max(clock_.latest, ended);
  const Engine engine = engine_by(begin.category, begin.name);
  if (!begin.correlation.empty() && is_call(begin.category)) calls_.emplace(begin.correlation.data(), records_.size());
  else if (!begin.correlation.empty() && engine != Engine::kHost && engine != Engine::kNone)
    launched_.push_back({begin.correlation.data(), records_.size()});
  records_.push_back({.kind = RecordKind::kRun,
                      .engine = engine,
                      .annotation = is_annotation(begin.category, begin.name),
                      .device = tracks_[track].device,
                      .stream = track + 1,
                      .thread = 1,
                      .started = begin.at,
                      .ended = ended,
                      .name = begin.name});
}

// By record: the run of the host call that launched it, or kNoRun. Ops without a correlation id follow flow arrows.
std::vector<std::size_t> ForeignReader::find_launches() const {
  std::vector<std::size_t> result(records_.size(), kNoRun);
  for (const Launched& launched : launched_) {
    const auto call = calls_.find(launched.correlation);
    if (call != calls_.end()) result[launched.run] = call->second;
  }
  follow_arrows(result);
  return result;
}

// Runs of the host are calls; all other runs may have been launched.
void ForeignReader::follow_arrows(std::vector<std::size_t>& launches) const {
  if (arrows_.empty()) return;
  Tracks tracks(records_);
  std::unordered_map<const char*, std::size_t> calls;  // by id of the arrow: the run at its last beginning
  const auto stream_of = [this](const ArrowEnd& end) -> std::uint64_t {
    const auto track = track_index_.find(end.thread);
    return track == track_index_.end() ? 0 : track->second + 1;  // 0: no event ran on this thread
  };
  for (const ArrowEnd& end : arrows_) {
    const std::uint64_t stream = stream_of(end);
    if (end.begins && stream != 0) calls[end.id.data()] = tracks.at(stream, end.at);
  }
  for (const ArrowEnd& end : arrows_) {
    const std::uint64_t stream = stream_of(end);
    const auto call = calls.find(end.id.data());
    if (end.begins || stream == 0 || call == calls.end()) continue;
    const std::size_t launched = end.enclosed ? tracks.at(stream, end.at) : tracks.from(stream, end.at);
    if (launched == kNoRun || launches[launched] != kNoRun || records_[launched].engine == Engine::kHost) continue;
    if (call->second != kNoRun && records_[call->second].engine == Engine::kHost) launches[launched] = call->second;
  }
}

// Adds a submission for each op whose launching call is in the trace, at the time of the call.
void ForeignReader::add_submissions() {
  const std::vector<std::size_t> calls = find_launches();
  const std::size_t runs = records_.size();
  for (std::size_t i = 0; i < runs; ++i) {
    if (calls[i] == kNoRun) continue;
    if (records_.size() >= kMaxRecords) json_.fail(fmt::format("more than {} records", kMaxRecords));
    const TraceRecord call = records_[calls[i]], run = records_[i];
    const bool copies = run.engine == Engine::kCopyIn || run.engine == Engine::kCopyOut;
    records_.push_back({.kind = RecordKind::kSubmit,
                        .engine = run.engine,
                        .op = copies ? OpKind::kCopy : OpKind::kKernel,
                        .opaque = true,
                        .device = run.device,
                        .stream = run.stream,
                        .position = run.position,
                        .other_stream = call.stream,
                        .other_position = call.position,
                        .thread = call.stream,
                        .queued = call.started,
                        .name = run.name});
  }
}

// If times were counted from the first event of the file, shifts them so that the earliest time is zero.
void ForeignReader::move_to_zero() {
  if (clock_.base == 0) return;
  Picos earliest = std::numeric_limits<Picos>::max();
  for (const TraceRecord& record : records_) {
    if (record.kind == RecordKind::kRun) earliest = std::min(earliest, record.started);
  }
  const auto move = [&](Picos& time) {
    if (__builtin_sub_overflow(time, earliest, &time)) json_.fail("times more than 106 days apart");
  };
  for (TraceRecord& record : records_) {
    if (record.kind == RecordKind::kSubmit) move(record.queued);
    if (record.kind != RecordKind::kRun) continue;
    move(record.started);
    move(record.ended);
  }
}

// Numbers the runs of each stream in the order of starts_before().
void ForeignReader::number_positions() {
  std::vector<TraceRecord*> order;
  for (TraceRecord& record : records_) {
    if (record.kind == RecordKind::kRun) order.push_back(&record);
  }
  std::ranges::stable_sort(order, [](const TraceRecord* a, const TraceRecord* b) { return starts_before(*a, *b); });
  std::vector<std::uint64_t> positions(tracks_.size(), 0);
  for (TraceRecord* run : order) run->position = ++positions[run->stream - 1];
}

// Assigns sequence numbers: first tracks, then runs by start and submissions by time, each after the run of its call.
void ForeignReader::put_in_order() {
  const auto time_of = [](const TraceRecord& record) {
    return record.kind == RecordKind::kSubmit ? record.queued : record.started;
  };
  const auto before = [&](const TraceRecord* a, const TraceRecord* b) {
    const bool a_opens = a->kind == RecordKind::kStreamOpen, b_opens = b->kind == RecordKind::kStreamOpen;
    if (a_opens != b_opens) return a_opens;
    if (a_opens) return a->stream < b->stream;
    if (time_of(*a) != time_of(*b)) return time_of(*a) < time_of(*b);
    const bool a_submits = a->kind == RecordKind::kSubmit, b_submits = b->kind == RecordKind::kSubmit;
    if (a_submits != b_submits) return b_submits;
    return !a_submits && a->ended > b->ended;
  };
  std::vector<TraceRecord*> order;
  order.reserve(records_.size());
  for (TraceRecord& record : records_) order.push_back(&record);
  std::stable_sort(order.begin(), order.end(), before);
  std::uint64_t sequence = 0;
  for (TraceRecord* record : order) {
    record->sequence = ++sequence;
    if (record->kind == RecordKind::kStreamOpen) record->name = track_name(tracks_[record->stream - 1]);
  }
}

std::string_view ForeignReader::track_name(const Track& track) {
  const auto given = [](const auto& names, const auto& key) {
    const auto found = names.find(key);
    return found == names.end() ? std::string_view() : found->second;
  };
  const std::string_view process = given(processes_, track.pid.data()), labels = given(labels_, track.pid.data());
  const std::string_view thread = given(threads_, ThreadKey{track.pid.data(), track.tid.data()});
  const std::string process_text = process.empty() ? fmt::format("process {}", track.pid) : std::string(process);
  const std::string thread_text = thread.empty() ? fmt::format("thread {}", track.tid) : std::string(thread);
  return texts_.keep(fmt::format("{}{}{} / {}", process_text, labels.empty() ? "" : " ", labels, thread_text));
}

TraceData ForeignReader::finish() {
  end_open_runs();
  number_positions();
  add_submissions();
  move_to_zero();
  put_in_order();
  TraceData data;
  data.records = std::move(records_);
  data.foreign = true;
  return data;
}

}  // namespace slip::watch
