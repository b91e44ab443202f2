// PageSpans: the ops of a trace in the order of the timeline page. It contains only ops that ran, sorted by start; of
// ops with the same start, the longer comes first. Times count from the first start. It refers to the trace's spans,
// which must outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "slip/analysis.hpp"
#include "slip/trace.hpp"
#include "watch/page/columns.hpp"

namespace slip::watch {

// Numbers texts: each distinct text gets one number, in the order of first use.
class TextTable {
 public:
  std::uint32_t number_of(std::string_view text);
  const std::vector<std::string_view>& texts() const { return texts_; }

 private:
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
  std::vector<std::string_view> texts_;
};

class PageSpans {
 public:
  PageSpans(const TraceData& trace, std::span<const TraceSpan> spans);

  std::size_t size() const { return order_.size(); }
  const TraceSpan& operator[](std::size_t place) const { return spans_[order_[place]]; }
  std::uint32_t index(std::size_t place) const { return order_[place]; }            // index in the trace's spans
  std::uint32_t place(std::uint32_t index) const { return places_[index]; }         // kNoSpan: it did not run
  std::vector<std::uint32_t> places(std::span<const std::uint32_t> indices) const;  // without the ops that did not run
  Picos time(const TraceSpan& span, Picos time) const;  // converts a time to the page's clock
  std::string_view name(std::size_t place) const;

 private:
  std::span<const TraceSpan> spans_;
  std::map<std::uint32_t, Picos> origins_;
  Picos first_ = 0;
  std::vector<std::uint32_t> order_, places_;
};

// Tables that the columns refer to by number.
struct PageTables {
  TextTable names, files;
  std::vector<TraceStream> streams;  // by id
};

// Adds one value per op: times, names, source lines, causes. Stream numbers are indices into `texts.streams`.
void add_span_columns(Columns& columns, const PageSpans& spans, const Analysis& analysis, PageTables& texts);
// Adds the bytes that each op reads and writes. Buffer numbers are indices into trace.buffers, plus 1.
void add_range_columns(Columns& columns, const PageSpans& spans, const TraceData& trace);
void add_arrow_columns(Columns& columns, const PageSpans& spans, const TraceData& trace,
                       std::span<const TraceSpan> all);
// Matches the ops of a measured and a predicted run. The nth op of a name in a stream matches the nth op of that name
// in the stream of the same name. Streams of the same name, or without a name, are numbered in the order of their ids.
// Returns the number of matches.
std::size_t add_prediction_columns(Columns& columns, const PageSpans& measured, const TraceData& trace,
                                   const TraceData& prediction);

}  // namespace slip::watch
