// What write_page() puts into the timeline page: its scripts and style, and the ops of a trace as columns of numbers.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/embedded.hpp"
#include "slip/analysis.hpp"
#include "slip/trace.hpp"

namespace slip::watch {

// The files of web/ that are compiled into the library: page.html, the style and the scripts.
std::span<const base::EmbeddedFile> embedded_page();

std::string base64(std::string_view bytes);

// Columns: the numeric data of the timeline page. Each column is stored in the narrowest type that holds its values:
// u8, u16, u32 or f64. All columns are in one block of bytes, which the page contains as base64.
class Columns {
 public:
  // Integers, stored as (value - base) / scale, so that they are narrow. The base is the smallest value, the scale the
  // greatest common divisor. The page has only doubles, so values above 2^53 lose precision.
  void integers(std::string_view key, const std::vector<std::int64_t>& values);
  // Indices, stored without base and scale, so that the page can use the bytes without a copy.
  void indices(std::string_view key, const std::vector<std::uint32_t>& values) {
    store(key, {values.begin(), values.end()}, 0, 1);
  }

  // {"key":{"type":"u16","at":0,"count":7,"base":0,"scale":1},...}: value i is base + scale * stored[i]. The type
  // "same" stores nothing: every value is the base. Numbers are little-endian; each column starts at a multiple of 8
  // bytes.
  const fmt::memory_buffer& directory() const { return directory_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void describe(std::string_view key, const char* type, std::size_t count, std::int64_t base, std::uint64_t scale);
  void store(std::string_view key, const std::vector<std::uint64_t>& values, std::int64_t base, std::uint64_t scale);

  fmt::memory_buffer directory_;
  std::string bytes_;
};

// Numbers texts: each distinct text gets one number, in the order of first use. The texts must outlive the table.
class TextTable {
 public:
  std::uint32_t number_of(std::string_view text);
  const std::vector<std::string_view>& texts() const { return texts_; }

 private:
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
  std::vector<std::string_view> texts_;
};

// PageSpans: the ops of a trace in the order of the timeline page. It contains only ops that ran, sorted by start; of
// ops with the same start, the longer comes first. A `place` is an index in this order. Times count from the first
// start. The trace's spans must outlive this object.
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
  std::vector<TraceStream> streams;  // TraceData::streams(), then other streams that ops name
};

// Adds one value per op: times, names, source lines, causes. Also adds `critical`, the places of the critical path.
// Stream numbers are indices into `tables.streams`.
void add_span_columns(Columns& columns, const PageSpans& spans, const Analysis& analysis, PageTables& tables);
// Adds the bytes that each op reads and writes. Buffer numbers are indices into trace.buffers, plus 1.
void add_range_columns(Columns& columns, const PageSpans& spans, const TraceData& trace);
// Adds the dependencies between ops that the page draws as arrows, as places. `all`: the trace's spans.
void add_arrow_columns(Columns& columns, const PageSpans& spans, const TraceData& trace,
                       std::span<const TraceSpan> all);
// Matches the ops of a measured and a predicted run. The nth op of a name in a stream matches the nth op of that name
// in the stream of the same name. Streams of the same name, or without a name, are numbered in the order of their ids.
// Returns the number of matches.
std::size_t add_prediction_columns(Columns& columns, const PageSpans& measured, const TraceData& trace,
                                   const TraceData& prediction);

}  // namespace slip::watch
