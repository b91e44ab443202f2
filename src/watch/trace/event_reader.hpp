// EventReader: reads one event of a trace that this library wrote. TraceReader turns it into records.
#pragma once

#include <array>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.hpp"
#include "slip/trace.hpp"
#include "watch/trace/containers.hpp"

namespace slip::watch {

// TraceRecord::queued of an event without this time. No number in a file is read as this value.
inline constexpr Picos kNoTime = std::numeric_limits<Picos>::min();

// An event is a record or, for an op that ran, its submission and its run together.
struct TraceEvent {
  char phase = 0;
  bool recorded = false;    // the event is a record: its args contain the kind
  bool unnamed = false;     // the title is not the op's name
  bool annotation = false;  // of the run: see TraceRecord::annotation
  // The engine that the op ran on; record.engine is the engine that the program requested.
  Engine engine = Engine::kNone;
  TraceRecord record;
  std::string_view title;  // the name that viewers show
  std::uint64_t pid = 0, tid = 0;
  Picos at = 0, lasts = 0;
  std::uint64_t run_thread = 0, run_sequence = 0;
};

class EventReader {
 public:
  EventReader(base::JsonReader& json, StringPool& texts) : json_(json), texts_(texts) {}

  const TraceEvent& read();  // the event and its ranges are valid until the next call
  const std::vector<TraceRange>& reads() const { return reads_; }
  const std::vector<TraceRange>& writes() const { return writes_; }

 private:
  // A key and the function that reads its value.
  struct Field {
    base::JsonKey key;
    void (*read)(EventReader& reader);
  };
  static constexpr std::size_t kMaxFields = 24;
  static const Field kEventFields[];  // both lists are in the order in which the writer writes the keys
  static const Field kArgsFields[];
  // Events of one phase have the same keys in the same order. So for each key the reader stores the key that followed
  // it last time, and tries that key first. Entry 0 is the start of the object.
  using Followers = std::array<std::array<std::uint8_t, kMaxFields + 1>, 4>;
  template <std::size_t kCount>
  void read_object(const Field (&fields)[kCount], Followers& followers);
  template <std::size_t kCount>
  std::size_t find_key(const Field (&fields)[kCount], std::size_t from);

  void read_phase();
  void read_title();
  void read_category();
  void read_place();
  void read_cost();
  TraceRange read_range();
  void read_ranges(std::vector<TraceRange>& into);
  std::size_t read_numbers(std::uint64_t* into, std::size_t limit);
  void read_pair(std::uint64_t& first, std::uint64_t& second);

  struct SourceLine {
    std::string_view text;  // "file:line"
    std::string_view file;
    std::int32_t line = 0;
  };
  SourceLine split_source_line(std::string_view text);

  base::JsonReader& json_;
  StringPool& texts_;
  TraceEvent event_;
  std::optional<Engine> asked_for_;  // the engine in the args, if there is one
  std::size_t phase_index_ = 0;      // index of this event's phase in Followers
  std::vector<TraceRange> reads_, writes_;
  Followers event_followers_{}, args_followers_{};
  std::array<SourceLine, StringPool::kCacheEntries> source_lines_;  // a cache of recently split lines
};

inline char first_letter(std::string_view text) { return text.empty() ? '\0' : text[0]; }
std::uint32_t require_small(const base::JsonReader& json, std::uint64_t value, const char* what);

// Reads the next string of the file and returns the enumerator of that name.
template <class Value>
Value require_name(base::JsonReader& json, std::optional<Value> (*find_name)(std::string_view), const char* what) {
  const std::string_view text = json.text();
  const std::optional<Value> value = find_name(text);
  if (!value) json.fail("no " + std::string(what) + " is called '" + base::to_utf8(text.substr(0, 40)) + "'");
  return *value;
}

}  // namespace slip::watch
