#include "watch/spans.hpp"

#include <algorithm>
#include <unordered_map>

namespace slip {
namespace {

// Submissions by stream and position.
class Submissions {
 public:
  explicit Submissions(const std::vector<TraceRecord>& records) {
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (records[i].kind == RecordKind::kSubmit) of_stream(records[i].stream).push_back({records[i].position, i});
    }
    for (auto& [stream, list] : streams_) {
      // In order already, unless the file says otherwise.
      if (!std::is_sorted(list.begin(), list.end(), earlier)) std::stable_sort(list.begin(), list.end(), earlier);
    }
  }

  static constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t find(const TraceRecord& run) {
    const std::vector<Item>& list = of_stream(run.stream);
    const auto item = std::lower_bound(list.begin(), list.end(), Item{run.position, 0}, earlier);
    return item != list.end() && item->position == run.position ? item->record : kNone;
  }

 private:
  struct Item {
    std::uint64_t position;
    std::size_t record;
  };
  static bool earlier(const Item& a, const Item& b) { return a.position < b.position; }
  std::vector<Item>& of_stream(std::uint64_t stream) {
    if (!last_ || stream != last_stream_) {
      last_ = &streams_[stream];  // nodes stay where they are
      last_stream_ = stream;
    }
    return *last_;
  }
  std::unordered_map<std::uint64_t, std::vector<Item>> streams_;
  std::vector<Item>* last_ = nullptr;
  std::uint64_t last_stream_ = 0;
};

void sort_records(std::vector<TraceRecord>& records) {
  const auto before = [](const TraceRecord& a, const TraceRecord& b) { return a.sequence < b.sequence; };
  if (std::is_sorted(records.begin(), records.end(), before)) return;
  // Records are large, and a second list of them would cost more than the sorting: sort small keys, then move each
  // record to its place, cycle by cycle.
  std::vector<std::pair<std::uint64_t, std::size_t>> order;
  order.reserve(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) order.emplace_back(records[i].sequence, i);
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i].second == i) continue;
    const TraceRecord moved = records[i];
    std::size_t hole = i;
    while (order[hole].second != i) {
      const std::size_t from = order[hole].second;
      records[hole] = records[from];
      order[hole].second = hole;
      hole = from;
    }
    records[hole] = moved;
    order[hole].second = hole;
  }
}

void fill_from_submit(TraceSpan& span, const TraceData& data, const TraceRecord& submit) {
  span.submit = &submit;
  span.name = submit.name;
  span.file = submit.file;
  span.line = submit.line;
  span.kind = submit.op;
  span.engine = submit.engine;
  span.device = submit.device;
  span.stream = submit.stream;
  span.position = submit.position;
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
  if (span.submit) return;
  span.name = run.name;
  span.file = run.file;
  span.line = run.line;
  span.device = run.device;
  span.stream = run.stream;
  span.position = run.position;
}

}  // namespace

void tidy(TraceData& data) {
  sort_records(data.records);
  const auto by_id = [](const TraceBuffer& a, const TraceBuffer& b) { return a.id < b.id; };
  const auto same_id = [](const TraceBuffer& a, const TraceBuffer& b) { return a.id == b.id; };
  std::stable_sort(data.buffers.begin(), data.buffers.end(), by_id);
  data.buffers.erase(std::unique(data.buffers.begin(), data.buffers.end(), same_id), data.buffers.end());
  Submissions submissions(data.records);
  for (TraceRecord& run : data.records) {
    if (run.kind != RecordKind::kRun) continue;
    const std::size_t i = submissions.find(run);
    if (i == Submissions::kNone) continue;
    run.name = data.records[i].name;
    run.file = data.records[i].file;
    run.line = data.records[i].line;
  }
}

std::span<const TraceRange> TraceData::reads(const TraceRecord& record) const {
  return std::span(ranges).subspan(record.first_range, record.reads);
}

std::span<const TraceRange> TraceData::writes(const TraceRecord& record) const {
  return std::span(ranges).subspan(record.first_range + record.reads, record.writes);
}

std::vector<TraceSpan> TraceData::spans() const {
  std::vector<TraceSpan> result;
  result.reserve(static_cast<std::size_t>(std::count_if(
      records.begin(), records.end(), [](const TraceRecord& record) { return record.kind == RecordKind::kSubmit; })));
  std::vector<std::uint32_t> span_of(records.size());  // of a submission, by its index
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].kind != RecordKind::kSubmit) continue;
    span_of[i] = static_cast<std::uint32_t>(result.size());
    fill_from_submit(result.emplace_back(), *this, records[i]);
  }
  Submissions submissions(records);
  for (const TraceRecord& run : records) {
    if (run.kind != RecordKind::kRun) continue;
    const std::size_t i = submissions.find(run);
    // A second run of one op, which only a damaged file has, is a span of its own.
    const bool known = i != Submissions::kNone && result[span_of[i]].run == nullptr;
    fill_from_run(known ? result[span_of[i]] : result.emplace_back(), run);
  }
  return result;
}

std::vector<TraceEdge> TraceData::edges() const {
  std::vector<TraceEdge> result;
  for (const TraceRecord& record : records) {
    if (record.kind != RecordKind::kEventWait && record.kind != RecordKind::kBarrier) continue;
    result.push_back({record.other_stream, record.other_position, record.stream, record.position, record.sequence,
                      record.kind == RecordKind::kBarrier});
  }
  return result;
}

std::vector<TraceStream> TraceData::streams() const {
  std::vector<TraceStream> result;
  std::unordered_map<std::uint64_t, std::size_t> index;
  for (const TraceRecord& record : records) {
    if (record.stream == 0) continue;
    const auto [found, fresh] = index.try_emplace(record.stream, result.size());
    if (fresh) result.push_back({record.stream, record.device, {}});
    if (record.kind == RecordKind::kStreamOpen) result[found->second].name = record.name;
  }
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
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
  const auto found = std::lower_bound(buffers.begin(), buffers.end(), id,
                                      [](const TraceBuffer& buffer, std::uint64_t key) { return buffer.id < key; });
  return found != buffers.end() && found->id == id ? &*found : nullptr;
}

}  // namespace slip
