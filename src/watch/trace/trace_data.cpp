#include "watch/trace/trace_data.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/stream_text.hpp"
#include "watch/trace/containers.hpp"

namespace slip::watch {
namespace {

// Finds the submission of a run by stream and position. Positions are nearly always in order, both when submissions are
// added and when they are looked up.
class Submissions {
 public:
  void add(const TraceRecord& submit, std::size_t number) {
    StreamItems& stream = streams_[submit.stream];
    stream.sorted = stream.sorted && (stream.items.empty() || stream.items.back().position <= submit.position);
    stream.items.push_back({submit.position, number});
  }

  static constexpr std::size_t kNone = ~std::size_t{0};
  // Returns the number that was added for the run's op. Of several ops at one position, returns the first.
  std::size_t find(const TraceRecord& run) {
    StreamItems& stream = streams_[run.stream];
    std::vector<Item>& items = stream.items;
    if (!stream.sorted) {
      std::stable_sort(items.begin(), items.end(), earlier);
      stream.sorted = true;
    }
    std::size_t at = stream.next;
    if (at >= items.size() || items[at].position != run.position ||
        (at > 0 && items[at - 1].position == run.position)) {
      const auto item = std::lower_bound(items.begin(), items.end(), Item{run.position, 0}, earlier);
      if (item == items.end() || item->position != run.position) return kNone;
      at = static_cast<std::size_t>(item - items.begin());
    }
    stream.next = at + 1;
    return items[at].number;
  }

 private:
  struct Item {
    std::uint64_t position;
    std::size_t number;
  };
  struct StreamItems {
    std::vector<Item> items;
    std::size_t next = 0;  // index of the item that find() probably needs next
    bool sorted = true;
  };
  static bool earlier(const Item& a, const Item& b) { return a.position < b.position; }
  CachedMap<StreamItems> streams_;
};

// For each index in the sorted list, returns the index of the record in `records`. Sequence numbers nearly always fill
// their range, so a table indexed by them replaces the sort.
std::vector<std::uint32_t> order_of(const std::vector<TraceRecord>& records) {
  constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::uint64_t min = ~std::uint64_t{0}, max = 0;
  for (const TraceRecord& record : records) {
    min = std::min(min, record.sequence);
    max = std::max(max, record.sequence);
  }
  std::vector<std::uint32_t> order;
  if (max - min < 2 * records.size()) {
    order.resize(max - min + 1, kNone);
    bool once = true;
    for (std::size_t i = 0; i < records.size() && once; ++i) {
      std::uint32_t& place = order[records[i].sequence - min];
      once = place == kNone;
      place = static_cast<std::uint32_t>(i);
    }
    if (once) {
      std::erase(order, kNone);
      return order;
    }
  }
  order.resize(records.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, {}, [&records](std::uint32_t i) { return records[i].sequence; });
  return order;
}

void sort_records(std::vector<TraceRecord>& records) {
  if (std::ranges::is_sorted(records, {}, &TraceRecord::sequence)) return;
  // Records are large: a second list of them would cost more than the sort. So the records are permuted in place, cycle
  // by cycle of the permutation.
  std::vector<std::uint32_t> order = order_of(records);
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    if (order[i] == i) continue;
    const TraceRecord moved = records[i];
    std::uint32_t hole = i;
    while (order[hole] != i) {
      const std::uint32_t from = std::exchange(order[hole], hole);
      records[hole] = records[from];
      hole = from;
    }
    records[hole] = moved;
    order[hole] = hole;
  }
}

void name_runs(std::vector<TraceRecord>& records) {
  Submissions submissions;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].kind == RecordKind::kSubmit) submissions.add(records[i], i);
  }
  for (TraceRecord& run : records) {
    if (run.kind != RecordKind::kRun) continue;
    const std::size_t i = submissions.find(run);
    if (i == Submissions::kNone) continue;
    run.name = records[i].name;
    run.file = records[i].file;
    run.line = records[i].line;
  }
}

void identify(TraceSpan& span, const TraceRecord& record) {
  span.name = record.name;
  span.file = record.file;
  span.line = record.line;
  span.device = record.device;
  span.stream = record.stream;
  span.position = record.position;
}

void fill_from_submit(TraceSpan& span, const TraceData& data, const TraceRecord& submit) {
  span.submit = &submit;
  identify(span, submit);
  span.kind = submit.op;
  span.engine = submit.engine;
  span.queued = submit.queued;
  span.reads = data.reads(submit);
  span.writes = data.writes(submit);
}

void fill_from_run(TraceSpan& span, const TraceRecord& run) {
  span.run = &run;
  span.engine = run.engine;
  span.queue = run.queue;
  span.started = run.started;
  span.ended = run.ended;
  span.annotation = run.annotation;
  if (!span.submit) identify(span, run);
}

// If the first time of a device is at least this (1000 s), its clock is taken to count from the boot of the machine.
// A virtual clock starts at zero.
constexpr Picos kShiftFrom = 1'000'000'000'000'000;

// Adds the arrows from a host call to the op that it launched, in traces of other programs.
void add_launches(std::span<const TraceSpan> spans, std::vector<Arrow>& result) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> calls;
  for (std::uint32_t i = 0; i < spans.size(); ++i) {
    if (spans[i].run && !spans[i].submit) calls.emplace(std::pair(spans[i].stream, spans[i].position), i);
  }
  for (std::uint32_t i = 0; i < spans.size(); ++i) {
    const TraceRecord* submit = spans[i].submit;
    if (!submit || !spans[i].run || submit->other_stream == 0) continue;
    const auto call = calls.find({submit->other_stream, submit->other_position});
    if (call != calls.end()) result.push_back({call->second, i, false});
  }
}

bool replace_all(std::string& text, std::string_view what, const std::string& by) {
  bool found = false;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
    found = true;
  }
  return found;
}

// By RecordKind.
constexpr const char* kRecordKindNames[] = {"stream open", "stream close", "submit", "run",   "event record",
                                            "event wait",  "barrier",      "sync",   "query", "host read",
                                            "host write",  "host end",     "alloc",  "free",  "error"};
static_assert(std::size(kRecordKindNames) == kRecordKinds);

// The enumerators are few, so a linear search is enough.
template <class Enum, std::size_t kCount, const char* (*kNameOf)(Enum)>
std::optional<Enum> find(std::string_view name) {
  static const auto kNames = [] {
    std::array<std::string_view, kCount> names;
    for (std::size_t i = 0; i < kCount; ++i) names[i] = kNameOf(static_cast<Enum>(i));
    return names;
  }();
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Enum>(found - kNames.begin());
}

}  // namespace

void normalise(TraceData& data, RunNames names) {
  sort_records(data.records);
  std::ranges::stable_sort(data.buffers, {}, &TraceBuffer::id);
  const auto same_id = [](const TraceBuffer& a, const TraceBuffer& b) { return a.id == b.id; };
  data.buffers.erase(std::unique(data.buffers.begin(), data.buffers.end(), same_id), data.buffers.end());
  if (names == RunNames::kFromOps) name_runs(data.records);
}

bool TimeLimits::add(const TraceRecord& record) {
  const auto fits = [](Picos time) { return -kMaxTime <= time && time <= kMaxTime; };
  if (!fits(record.queued) || !fits(record.started) || !fits(record.ended)) return false;
  if (record.kind == RecordKind::kRun) sum_ += record.ended - record.started;
  return fits(sum_);
}

std::map<std::uint32_t, Picos> clock_origins(const TraceData& trace) {
  std::map<std::uint32_t, Picos> origins;
  for (const TraceRecord& record : trace.records) {
    Picos& origin = origins.try_emplace(record.device, 0).first->second;
    for (const Picos time : {record.queued, record.started}) {
      if (time > 0) origin = origin == 0 ? time : std::min(origin, time);
    }
  }
  Picos start = 0;
  for (const auto& [device, origin] : origins) {
    if (origin >= kShiftFrom) start = start == 0 ? origin : std::min(start, origin);
  }
  for (auto& [device, origin] : origins) origin = origin >= kShiftFrom ? start : 0;
  return origins;
}

// Unsigned, because times of a damaged file must not overflow a signed number.
Picos since_origin(const std::map<std::uint32_t, Picos>& origins, std::uint32_t device, Picos time) {
  const auto found = origins.find(device);
  const Picos origin = found == origins.end() ? 0 : found->second;
  return static_cast<Picos>(static_cast<std::uint64_t>(time) - static_cast<std::uint64_t>(origin));
}

StreamNames::StreamNames(std::span<const TraceRecord* const> opened) {
  for (const TraceRecord* record : opened) open(record->stream, record->name);
}

void StreamNames::open(std::uint64_t stream, std::string_view name) {
  const std::string_view given = base::given_stream_name(name);
  if (!given.empty()) names_[stream] = given;
}

void StreamNames::close(std::uint64_t stream) {
  if (!names_.contains(stream)) return;
  closed_.push_back(stream);
  if (closed_.size() <= kMaxClosed) return;
  names_.erase(closed_.front());
  closed_.pop_front();
}

OpsOfStreams::OpsOfStreams(std::span<const TraceSpan> spans, SpanChoice choice) {
  for (const TraceSpan& span : spans) {
    if (span.submit && (span.run || choice == SpanChoice::kSubmitted)) streams_[span.stream].ops.push_back(&span);
  }
}

// Sets `last` to the number of the stream's ops for which before(op) is true; these come first. Callers search in the
// order of the trace, so it tries the ops around the last result first: in a long trace, each step of a search of the
// whole stream misses the cache. Null: the stream has no ops.
template <class Before>
const OpsOfStreams::OpsOfStream* OpsOfStreams::count_first(std::uint64_t stream, const Before& before) const {
  constexpr std::size_t kNear = 16;
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return nullptr;
  const OpsOfStream& result = found->second;
  const std::vector<const TraceSpan*>& ops = result.ops;
  std::size_t first = result.last - std::min(result.last, kNear), end = std::min(result.last + kNear, ops.size());
  if ((first > 0 && !before(ops[first - 1])) || (end < ops.size() && before(ops[end]))) first = 0, end = ops.size();
  const auto place = std::partition_point(ops.begin() + static_cast<std::ptrdiff_t>(first),
                                          ops.begin() + static_cast<std::ptrdiff_t>(end), before);
  result.last = static_cast<std::size_t>(place - ops.begin());
  return &result;
}

const TraceSpan* OpsOfStreams::last_until(std::uint64_t stream, std::uint64_t position) const {
  const OpsOfStream* const found = count_first(stream, [&](const TraceSpan* op) { return op->position <= position; });
  return found && found->last > 0 ? found->ops[found->last - 1] : nullptr;
}

const TraceSpan* OpsOfStreams::first_after(std::uint64_t stream, std::uint64_t sequence) const {
  const OpsOfStream* const found =
      count_first(stream, [&](const TraceSpan* op) { return op->submit->sequence <= sequence; });
  return found && found->last < found->ops.size() ? found->ops[found->last] : nullptr;
}

std::vector<Arrow> arrows(const TraceData& trace, std::span<const TraceSpan> spans) {
  const OpsOfStreams ops(spans, SpanChoice::kSubmittedAndRun);
  const auto index_of = [&](const TraceSpan* span) { return static_cast<std::uint32_t>(span - spans.data()); };
  std::vector<Arrow> result;
  for (const TraceEdge& edge : trace.edges()) {
    const TraceSpan* from = ops.last_until(edge.from_stream, edge.from_position);
    const TraceSpan* to = ops.first_after(edge.to_stream, edge.sequence);
    if (from && to) result.push_back({index_of(from), index_of(to), edge.barrier});
  }
  if (trace.foreign) add_launches(spans, result);
  return result;
}

std::string trace_path(const std::string& pattern, std::optional<base::JobRank> rank, int process) {
  std::string path = pattern;
  const std::string number = std::to_string(rank ? rank->rank : 0);
  const bool ranked = replace_all(path, "%r", number);
  const bool apart = replace_all(path, "%p", std::to_string(process));
  if (ranked || apart || !rank || rank->ranks < 2) return path;
  const std::size_t folder = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  std::size_t dot = path.rfind('.');
  if (dot == std::string::npos || dot <= folder) dot = path.size();  // a name may begin with a dot
  return path.insert(dot, "." + number);
}

const char* record_kind_name(RecordKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < kRecordKinds ? kRecordKindNames[index] : "unknown";
}

std::optional<RecordKind> record_kind_of(std::string_view name) {
  return find<RecordKind, kRecordKinds, record_kind_name>(name);
}
std::optional<OpKind> op_kind_of(std::string_view name) { return find<OpKind, kOpKinds, op_kind_name>(name); }
std::optional<Engine> engine_of(std::string_view name) { return find<Engine, kEngines, engine_name>(name); }
std::optional<MemoryKind> memory_kind_of(std::string_view name) {
  return find<MemoryKind, kMemoryKinds, memory_kind_name>(name);
}

}  // namespace slip::watch

namespace slip {
using namespace watch;

std::span<const TraceRange> TraceData::reads(const TraceRecord& record) const {
  return std::span(ranges).subspan(record.first_range, record.reads);
}

std::span<const TraceRange> TraceData::writes(const TraceRecord& record) const {
  return std::span(ranges).subspan(record.first_range + record.reads, record.writes);
}

std::vector<TraceSpan> TraceData::spans() const {
  std::vector<TraceSpan> result;
  result.reserve(records.size() / 2);
  Submissions submissions;
  for (const TraceRecord& record : records) {
    if (record.kind != RecordKind::kSubmit) continue;
    submissions.add(record, result.size());
    fill_from_submit(result.emplace_back(), *this, record);
  }
  for (const TraceRecord& run : records) {
    if (run.kind != RecordKind::kRun) continue;
    const std::size_t i = submissions.find(run);
    // A second run of one op becomes its own span. Such runs are the second half of a copy through host memory, or the
    // file is damaged.
    const bool known = i != Submissions::kNone && result[i].run == nullptr;
    fill_from_run(known ? result[i] : result.emplace_back(), run);
  }
  return result;
}

std::vector<TraceEdge> TraceData::edges() const {
  std::vector<TraceEdge> result;
  for (const TraceRecord& record : records) {
    if (record.kind != RecordKind::kEventWait && record.kind != RecordKind::kBarrier) continue;
    result.push_back({record.other_stream, record.other_position, record.stream, record.sequence,
                      record.kind == RecordKind::kBarrier});
  }
  return result;
}

std::vector<TraceStream> TraceData::streams() const {
  std::vector<TraceStream> result;
  std::unordered_map<std::uint64_t, std::size_t> index;
  std::uint64_t last = 0;  // the stream of the last record looked up; 0 is no stream
  for (const TraceRecord& record : records) {
    if (record.stream == 0 || (record.stream == last && record.kind != RecordKind::kStreamOpen)) continue;
    last = record.stream;
    const auto [found, fresh] = index.try_emplace(record.stream, result.size());
    if (fresh) result.push_back({record.stream, record.device, {}});
    if (record.kind == RecordKind::kStreamOpen) result[found->second].name = record.name;
  }
  std::ranges::sort(result, {}, &TraceStream::id);
  return result;
}

std::vector<const TraceRecord*> TraceData::of(std::initializer_list<RecordKind> kinds) const {
  std::vector<const TraceRecord*> result;
  for (const TraceRecord& record : records) {
    if (std::find(kinds.begin(), kinds.end(), record.kind) != kinds.end()) result.push_back(&record);
  }
  return result;
}

const TraceBuffer* TraceData::buffer(std::uint64_t id) const {
  const auto found = std::ranges::lower_bound(buffers, id, {}, &TraceBuffer::id);
  return found != buffers.end() && found->id == id ? &*found : nullptr;
}

}  // namespace slip
