#include "watch/page/page_data.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>

#include "base/stream_text.hpp"
#include "watch/trace/trace_data.hpp"

namespace slip::watch {
namespace {

// Writes little-endian numbers: the page reads them with typed arrays, which use the byte order of the machine, and
// machines with browsers are little-endian.
template <class Stored>
void append_all(std::string& bytes, const std::vector<std::uint64_t>& values) {
  static_assert(std::endian::native == std::endian::little);
  const std::size_t at = bytes.size();
  bytes.resize(at + values.size() * sizeof(Stored));
  char* out = bytes.data() + at;
  for (const std::uint64_t value : values) {
    const auto stored = static_cast<Stored>(value);
    std::memcpy(out, &stored, sizeof(Stored));
    out += sizeof(Stored);
  }
}

template <class Value, class Get>
std::vector<Value> column(const PageSpans& spans, Get get) {
  std::vector<Value> values(spans.size());
  for (std::size_t place = 0; place < values.size(); ++place)
    values[place] = static_cast<Value>(get(spans[place], place));
  return values;
}

// Unsigned, because times of a damaged file must not overflow a signed number.
Picos length(const PageSpans& spans, const TraceSpan& span) {
  const auto end = static_cast<std::uint64_t>(spans.time(span, span.ended));
  return std::max<Picos>(0, static_cast<Picos>(end - static_cast<std::uint64_t>(spans.time(span, span.started))));
}

void add_times(Columns& columns, const PageSpans& spans, const Analysis& analysis) {
  const auto add = [&](const char* key, auto get) { columns.integers(key, column<std::int64_t>(spans, get)); };
  add("span.start", [&](const TraceSpan& span, std::size_t) { return spans.time(span, span.started); });
  add("span.duration", [&](const TraceSpan& span, std::size_t) { return length(spans, span); });
  // Ops without a submission get their start, so that the column stays narrow; span.submitted is 0 for them.
  add("span.queued",
      [&](const TraceSpan& span, std::size_t) { return spans.time(span, span.submit ? span.queued : span.started); });
  add("span.ready", [&](const TraceSpan& span, std::size_t place) {
    return spans.time(span, analysis.starts[spans.index(place)].ready);
  });
  add("span.slack", [&](const TraceSpan&, std::size_t place) { return analysis.slack[spans.index(place)]; });
}

void add_costs(Columns& columns, const PageSpans& spans) {
  const auto add = [&](const char* key, auto get) {
    columns.integers(key, column<std::int64_t>(spans, [&](const TraceSpan& span, std::size_t) {
                       return span.submit ? static_cast<std::int64_t>(get(*span.submit)) : 0;
                     }));
  };
  add("span.cost_bytes", [](const TraceRecord& submit) { return submit.cost.bytes; });
  add("span.cost_flops", [](const TraceRecord& submit) { return submit.cost.flops; });
  add("span.cost_time", [](const TraceRecord& submit) { return submit.cost.time; });
  add("span.bytes", [](const TraceRecord& submit) { return submit.bytes; });
  add("span.value", [](const TraceRecord& submit) { return submit.value; });
  add("span.thread", [](const TraceRecord& submit) { return submit.thread; });
  add("span.submitted", [](const TraceRecord&) { return 1; });
  add("span.opaque", [](const TraceRecord& submit) { return submit.opaque ? 1 : 0; });
}

// Identifies a stream in both runs: its name ("" if it has none), and the number of streams of that name before it.
using StreamKey = std::pair<std::string_view, std::uint32_t>;
using OpKey = std::tuple<StreamKey, std::string_view, std::uint32_t>;  // stream, op name, number of equal ops before it

// Returns the keys, by id, of the streams that ran an op. Ids differ between runs, so streams are identified by name.
std::map<std::uint64_t, StreamKey> stream_keys(const PageSpans& spans, const TraceData& trace) {
  std::set<std::uint64_t> ids;
  for (std::size_t place = 0; place < spans.size(); ++place) ids.insert(spans[place].stream);
  std::map<std::uint64_t, std::string_view> names;
  for (const TraceStream& stream : trace.streams()) names[stream.id] = stream.name;
  std::map<std::uint64_t, StreamKey> keys;
  std::map<std::string_view, std::uint32_t> seen;
  for (const std::uint64_t id : ids) {
    const auto found = names.find(id);
    const std::string_view name = found == names.end() ? std::string_view() : base::given_stream_name(found->second);
    keys.emplace(id, StreamKey{name, seen[name]++});
  }
  return keys;
}

// Calls `each(key, place)` for every op, stream by stream in the order of positions.
template <class Each>
void for_each_op(const PageSpans& spans, const TraceData& trace, Each each) {
  const std::map<std::uint64_t, StreamKey> streams = stream_keys(spans, trace);
  std::vector<std::uint32_t> order(spans.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(spans[a].stream, spans[a].position) < std::pair(spans[b].stream, spans[b].position);
  });
  std::map<std::pair<StreamKey, std::string_view>, std::uint32_t> seen;
  for (const std::uint32_t place : order) {
    const StreamKey& stream = streams.at(spans[place].stream);
    each(OpKey{stream, spans.name(place), seen[{stream, spans.name(place)}]++}, place);
  }
}

}  // namespace

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t left = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) group = group << 8 | (k < left ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k) text.push_back(k <= left ? kDigits[group >> (18 - 6 * k) & 63] : '=');
  }
  return text;
}

void Columns::describe(std::string_view key, const char* type, std::size_t count, std::int64_t base,
                       std::uint64_t scale) {
  bytes_.resize((bytes_.size() + 7) / 8 * 8);
  fmt::format_to(std::back_inserter(directory_),
                 "{}\"{}\":{{\"type\":\"{}\",\"at\":{},\"count\":{},\"base\":{},\"scale\":{}}}",
                 directory_.size() == 0 ? "" : ",", key, type, bytes_.size(), count, base, scale);
}

void Columns::store(std::string_view key, const std::vector<std::uint64_t>& values, std::int64_t base,
                    std::uint64_t scale) {
  const std::uint64_t max = values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  const auto fits = [max](auto limit) { return max <= std::numeric_limits<decltype(limit)>::max(); };
  const auto store_as = [&]<class Stored>(Stored, const char* type) {
    describe(key, type, values.size(), base, scale);
    append_all<Stored>(bytes_, values);
  };
  if (max == 0) describe(key, "same", values.size(), base, scale);
  else if (fits(std::uint8_t{})) store_as(std::uint8_t{}, "u8");
  else if (fits(std::uint16_t{})) store_as(std::uint16_t{}, "u16");
  else if (fits(std::uint32_t{})) store_as(std::uint32_t{}, "u32");
  else store_as(double{}, "f64");
}

void Columns::integers(std::string_view key, const std::vector<std::int64_t>& values) {
  const std::int64_t base = values.empty() ? 0 : *std::min_element(values.begin(), values.end());
  // Unsigned, because the difference of two times may overflow a signed number.
  std::vector<std::uint64_t> above(values.size());
  std::uint64_t scale = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    above[i] = static_cast<std::uint64_t>(values[i]) - static_cast<std::uint64_t>(base);
    scale = scale == 1 ? 1 : std::gcd(scale, above[i]);
  }
  if (scale == 0) scale = 1;
  if (scale > 1)
    for (std::uint64_t& value : above) value /= scale;
  store(key, above, base, scale);
}

std::uint32_t TextTable::number_of(std::string_view text) {
  const auto [found, fresh] = numbers_.try_emplace(text, static_cast<std::uint32_t>(texts_.size()));
  if (fresh) texts_.push_back(text);
  return found->second;
}

PageSpans::PageSpans(const TraceData& trace, std::span<const TraceSpan> spans)
    : spans_(spans), origins_(clock_origins(trace)), places_(spans.size(), kNoSpan) {
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].run) order_.push_back(static_cast<std::uint32_t>(i));
  }
  Picos first = std::numeric_limits<Picos>::max();
  for (const std::uint32_t i : order_) first = std::min(first, time(spans[i], spans[i].started));
  first_ = order_.empty() ? 0 : first;
  struct Key {
    Picos start, end;
    std::uint32_t index;
  };
  std::vector<Key> keys;
  keys.reserve(order_.size());
  for (const std::uint32_t i : order_)
    keys.push_back({time(spans[i], spans[i].started), time(spans[i], spans[i].ended), i});
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
    return a.start != b.start ? a.start < b.start : a.end != b.end ? a.end > b.end : a.index < b.index;
  });
  for (std::size_t place = 0; place < keys.size(); ++place) {
    order_[place] = keys[place].index;
    places_[order_[place]] = static_cast<std::uint32_t>(place);
  }
}

std::vector<std::uint32_t> PageSpans::places(std::span<const std::uint32_t> indices) const {
  std::vector<std::uint32_t> result;
  for (const std::uint32_t i : indices) {
    if (places_[i] != kNoSpan) result.push_back(places_[i]);
  }
  return result;
}

Picos PageSpans::time(const TraceSpan& span, Picos time) const {
  // Unsigned, as in length().
  return static_cast<Picos>(static_cast<std::uint64_t>(since_origin(origins_, span.device, time)) -
                            static_cast<std::uint64_t>(first_));
}

std::string_view PageSpans::name(std::size_t place) const {
  const TraceSpan& span = (*this)[place];
  return span.name.empty() ? std::string_view(op_kind_name(span.kind)) : span.name;
}

void add_span_columns(Columns& columns, const PageSpans& spans, const Analysis& analysis, PageTables& tables) {
  std::unordered_map<std::uint64_t, std::uint32_t> streams;
  for (const TraceStream& stream : tables.streams)
    streams.emplace(stream.id, static_cast<std::uint32_t>(streams.size()));
  const auto add = [&](const char* key, auto get) { columns.indices(key, column<std::uint32_t>(spans, get)); };
  add_times(columns, spans, analysis);
  add("span.name", [&](const TraceSpan&, std::size_t place) { return tables.names.number_of(spans.name(place)); });
  add("span.stream", [&](const TraceSpan& span, std::size_t) {
    const auto [found, fresh] = streams.try_emplace(span.stream, static_cast<std::uint32_t>(streams.size()));
    if (fresh) tables.streams.push_back({span.stream, span.device, {}});
    return found->second;
  });
  add("span.engine", [](const TraceSpan& span, std::size_t) { return span.engine; });
  add("span.kind", [](const TraceSpan& span, std::size_t) { return span.kind; });
  add("span.file", [&](const TraceSpan& span, std::size_t) { return tables.files.number_of(span.file); });
  add("span.line", [](const TraceSpan& span, std::size_t) { return std::max(0, span.line); });
  add("span.queue",
      [](const TraceSpan& span, std::size_t) { return static_cast<std::uint32_t>(span.queue) + 1; });  // 0: none
  columns.integers("span.position", column<std::int64_t>(spans, [](const TraceSpan& span, std::size_t) {
                     return static_cast<std::int64_t>(span.position);
                   }));
  add("span.cause", [&](const TraceSpan&, std::size_t place) { return analysis.starts[spans.index(place)].cause; });
  add("span.after", [&](const TraceSpan&, std::size_t place) {
    const std::uint32_t after = analysis.starts[spans.index(place)].after;
    return after == kNoSpan ? 0 : spans.place(after) + 1;  // 0: none
  });
  add_costs(columns, spans);
  columns.indices("critical", spans.places(analysis.critical));
}

void add_range_columns(Columns& columns, const PageSpans& spans, const TraceData& trace) {
  std::vector<std::uint32_t> buffers;
  std::vector<std::int64_t> offsets, bytes;
  const auto add = [&](const char* key, std::span<const TraceRange> TraceSpan::*list) {
    std::vector<std::uint32_t> counts(spans.size());
    for (std::size_t place = 0; place < spans.size(); ++place) {
      const std::span<const TraceRange> ranges = spans[place].*list;
      counts[place] = static_cast<std::uint32_t>(ranges.size());
      for (const TraceRange& range : ranges) {
        const TraceBuffer* buffer = trace.buffer(range.buffer);
        buffers.push_back(buffer ? static_cast<std::uint32_t>(buffer - trace.buffers.data()) + 1 : 0);  // 0: unknown
        offsets.push_back(static_cast<std::int64_t>(range.offset));
        bytes.push_back(static_cast<std::int64_t>(range.bytes));
      }
    }
    columns.indices(key, counts);
  };
  add("span.reads", &TraceSpan::reads);  // the columns contain all reads of all ops first, then all writes
  add("span.writes", &TraceSpan::writes);
  columns.indices("range.buffer", buffers);
  columns.integers("range.offset", offsets);
  columns.integers("range.bytes", bytes);
}

void add_arrow_columns(Columns& columns, const PageSpans& spans, const TraceData& trace,
                       std::span<const TraceSpan> all) {
  std::vector<std::uint32_t> from, to, barrier;
  for (const Arrow& arrow : arrows(trace, all)) {
    from.push_back(spans.place(arrow.from));
    to.push_back(spans.place(arrow.to));
    barrier.push_back(arrow.barrier ? 1 : 0);
  }
  columns.indices("arrow.from", from);
  columns.indices("arrow.to", to);
  columns.indices("arrow.barrier", barrier);
}

std::size_t add_prediction_columns(Columns& columns, const PageSpans& measured, const TraceData& trace,
                                   const TraceData& prediction) {
  const std::vector<TraceSpan> spans = prediction.spans();
  const PageSpans predicted(prediction, spans);
  std::map<OpKey, std::uint32_t> ops;
  for_each_op(measured, trace, [&](const OpKey& key, std::uint32_t place) { ops.emplace(key, place); });
  std::vector<std::pair<std::uint32_t, std::uint32_t>> matches;  // predicted, measured
  for_each_op(predicted, prediction, [&](const OpKey& key, std::uint32_t place) {
    const auto found = ops.find(key);
    if (found != ops.end()) matches.emplace_back(place, found->second);
  });
  std::sort(matches.begin(), matches.end());  // by predicted start
  std::vector<std::uint32_t> places;          // of the measured ops
  std::vector<std::int64_t> start, duration;
  for (const auto& [place, measured_place] : matches) {
    const TraceSpan& span = predicted[place];
    places.push_back(measured_place);
    start.push_back(predicted.time(span, span.started));
    duration.push_back(length(predicted, span));
  }
  columns.indices("prediction.span", places);
  columns.integers("prediction.start", start);
  columns.integers("prediction.duration", duration);
  return matches.size();
}

}  // namespace slip::watch
