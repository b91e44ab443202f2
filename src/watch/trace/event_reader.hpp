// One trace event that this library wrote, as the fields that matter here.
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

namespace slip {

// TraceRecord::queued of an event that gives none; no number that can be read is this one.
inline constexpr Picos kNoTime = std::numeric_limits<Picos>::min();

// One event of the file: the record it stands for, and its run too if it is an op that ran.
struct TraceEvent {
  char phase = 0;
  bool recorded = false;          // args name the kind of record
  bool unnamed = false;           // the title is not the op's name
  bool annotation = false;        // of the run
  Engine engine = Engine::kNone;  // that it ran on; record.engine is the one that was asked for
  TraceRecord record;
  std::string_view title;  // what viewers show
  std::uint64_t pid = 0, tid = 0;
  Picos at = 0, lasts = 0;
  std::uint64_t run_thread = 0, run_sequence = 0;
};

class EventReader {
 public:
  EventReader(JsonReader& json, Texts& texts) : json_(json), texts_(texts) {}

  const TraceEvent& read();  // valid until the next call, like its ranges
  const std::vector<TraceRange>& reads() const { return reads_; }
  const std::vector<TraceRange>& writes() const { return writes_; }

 private:
  // What is done with the value of a key.
  struct Field {
    JsonKey key;
    void (*read)(EventReader& reader);
  };
  static constexpr std::size_t kMaxFields = 24;
  static const Field kEventFields[];  // both in the order in which they are written
  static const Field kArgsFields[];
  // Events of a phase are alike: after each key the one that followed it last time is tried first. Entry 0 is the
  // start.
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

  struct Place {
    std::string_view text;  // "file:line"
    std::string_view file;
    std::int32_t line = 0;
  };
  Place split_place(std::string_view text);

  JsonReader& json_;
  Texts& texts_;
  TraceEvent event_;
  std::optional<Engine> asked_for_;
  std::size_t alike_ = 0;  // which followers are those of the phase
  std::vector<TraceRange> reads_, writes_;
  Followers event_followers_{}, args_followers_{};
  std::array<Place, Texts::kRecent> places_;  // met lately
};

std::uint32_t require_small(const JsonReader& json, std::uint64_t value, const char* what);

// The enumerator that the next string names.
template <class Value>
Value require_word(JsonReader& json, std::optional<Value> (*find_word)(std::string_view), const char* what) {
  const std::string_view text = json.text();
  const std::optional<Value> value = find_word(text);
  if (!value) json.fail("no " + std::string(what) + " is called '" + to_utf8(text.substr(0, 40)) + "'");
  return *value;
}

}  // namespace slip
