// Merges the traces of the ranks of one job into one trace.
#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/fail.hpp"
#include "slip/trace.hpp"
#include "watch/trace/trace_data.hpp"

namespace slip {
namespace {

// Ranks of one job run at the same time. Traces that are further apart belong to different jobs.
constexpr std::int64_t kMaxApartNs = 60'000'000'000;

// The first and last time of a rank's records, in nanoseconds since 1970.
struct RecordedPeriod {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = std::numeric_limits<std::int64_t>::min();
  bool known() const { return begin <= end; }
};

RecordedPeriod period_of(const TraceData& trace) {
  RecordedPeriod result;
  for (const TraceRecord& record : trace.records) {
    for (const Picos time : {record.queued, record.started, record.ended}) {
      if (time == 0) continue;
      std::int64_t at = 0;
      if (__builtin_add_overflow(time / 1000, trace.process.since_1970_ns, &at)) continue;
      result.begin = std::min(result.begin, at);
      result.end = std::max(result.end, at);
    }
  }
  return result;
}

// Returns the time to add to the times of `process`, so that they are on the clock of `first`. Processes of one boot
// share an exact clock. Between hosts, the result has the error of their wall clocks.
Picos clock_shift(const TraceProcess& first, const TraceProcess& process, Here here) {
  const bool same = !first.boot.empty() && first.boot == process.boot;
  Picos shift = 0;
  if (__builtin_sub_overflow(same ? process.since_boot_ns : process.since_1970_ns,
                             same ? first.since_boot_ns : first.since_1970_ns, &shift) ||
      __builtin_mul_overflow(shift, 1000, &shift) || shift < -watch::kMaxTime || shift > watch::kMaxTime)
    base::fail(ErrorCode::kInvalidValue, here, "the clocks of ranks {} and {} are more than 26 days apart", first.rank,
               process.rank);
  return shift;
}

class Merger {
 public:
  explicit Merger(Here here) : here_(here) {}

  void add(const TraceData& trace, Picos shift) {
    const Bases bases = bases_;
    std::unordered_map<std::uint32_t, std::uint32_t> devices;
    const auto device_of = [&](std::uint32_t id) {
      const auto [found, fresh] = devices.try_emplace(id, static_cast<std::uint32_t>(result_.devices.size() + 1));
      if (fresh) result_.devices.push_back({found->second, trace.process.rank, id});
      return found->second;
    };
    if (result_.records.size() + trace.records.size() > watch::kMaxRecords)
      base::fail(ErrorCode::kInvalidValue, here_, "together the traces have more than {} records", watch::kMaxRecords);
    for (TraceRecord record : trace.records) {
      record.device = device_of(record.device);
      record.first_range += bases.range;
      move(record.sequence, bases.sequence, bases_.sequence);
      move(record.stream, bases.stream, bases_.stream);
      move(record.other_stream, bases.stream, bases_.stream);
      move(record.thread, bases.thread, bases_.thread);
      move(record.range.buffer, bases.buffer, bases_.buffer);
      for (Picos* time : {&record.queued, &record.started, &record.ended}) {
        if (*time != 0) *time += shift;  // both are within kMaxTime, so the sum cannot overflow; 0 means no time
      }
      result_.records.push_back(record);
    }
    for (TraceRange range : trace.ranges) {
      move(range.buffer, bases.buffer, bases_.buffer);
      result_.ranges.push_back(range);
    }
    bases_.range = result_.ranges.size();
    for (TraceBuffer buffer : trace.buffers) {
      buffer.device = device_of(buffer.device);
      move(buffer.id, bases.buffer, bases_.buffer);
      result_.buffers.push_back(buffer);
    }
    result_.dropped += trace.dropped;
    texts_->push_back(trace.text);
  }

  TraceData take() {
    result_.text = std::move(texts_);
    return std::move(result_);
  }

 private:
  struct Bases {
    std::uint64_t sequence = 0, stream = 0, thread = 0, buffer = 0, range = 0;
  };
  // Renumbers an id so that it follows the ids of earlier traces; 0 stays 0. `max` is the highest id so far.
  void move(std::uint64_t& number, std::uint64_t base, std::uint64_t& max) const {
    if (number == 0) return;
    if (__builtin_add_overflow(number, base, &number))
      throw Error(ErrorCode::kInvalidValue, "the traces cannot be merged: ids in them are too large", here_);
    max = std::max(max, number);
  }

  const Here here_;
  TraceData result_;
  Bases bases_;
  std::shared_ptr<std::vector<std::shared_ptr<const void>>> texts_ =
      std::make_shared<std::vector<std::shared_ptr<const void>>>();
};

}  // namespace

bool are_ranks_of_one_job(std::span<const TraceData> traces) {
  if (traces.size() < 2) return false;
  std::vector<int> ranks;
  RecordedPeriod common{std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  for (const TraceData& trace : traces) {
    const TraceProcess& process = trace.process;
    if (process.ranks < 2 || process.ranks != traces.front().process.ranks) return false;
    ranks.push_back(process.rank);
    const RecordedPeriod period = period_of(trace);
    if (!period.known()) continue;
    common.begin = std::max(common.begin, period.begin);
    common.end = std::min(common.end, period.end);
  }
  std::ranges::sort(ranks);
  if (std::ranges::adjacent_find(ranks) != ranks.end()) return false;
  std::int64_t apart = 0;
  if (__builtin_sub_overflow(common.begin, common.end, &apart)) return common.begin < common.end;
  return apart <= kMaxApartNs;
}

TraceData merge_traces(std::span<const TraceData> traces, Here here) {
  if (!are_ranks_of_one_job(traces))
    base::fail(ErrorCode::kInvalidValue, here,
               "{} traces cannot be merged: each must be of another rank of one job, recorded at the same "
               "time",
               traces.size());
  std::vector<const TraceData*> order;
  for (const TraceData& trace : traces) order.push_back(&trace);
  std::ranges::sort(order, {}, [](const TraceData* trace) { return trace->process.rank; });
  Merger merger(here);
  for (const TraceData* trace : order) merger.add(*trace, clock_shift(order.front()->process, trace->process, here));
  return merger.take();
}

}  // namespace slip
