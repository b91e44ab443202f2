// One trace event of the file, as the fields that matter here.
#pragma once

#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "slip/trace.hpp"
#include "watch/json_reader.hpp"
#include "watch/json_text.hpp"

namespace slip {

// Strings of the file, each kept once.
class Texts {
 public:
  std::string_view keep(std::string_view text) {
    if (text.empty()) return {};
    if (text == last_) return last_;
    const auto found = index_.find(text);
    if (found != index_.end()) return last_ = *found;
    const std::string_view kept = is_utf8(text) ? add(std::string(text)) : add(to_utf8(text));
    index_.insert(kept);
    return last_ = kept;
  }
  std::shared_ptr<const void> owner() const { return all_; }

 private:
  std::string_view add(std::string text) { return all_->emplace_back(std::move(text)); }
  std::shared_ptr<std::deque<std::string>> all_ = std::make_shared<std::deque<std::string>>();
  std::unordered_set<std::string_view> index_;
  std::string_view last_;
};

// TraceRecord::queued of an event that gives none; no number that can be read is this one.
inline constexpr Picos kNoTime = std::numeric_limits<Picos>::min();

// One event of the file: the record it stands for, and its run too if it is an op that ran.
struct TraceEvent {
  char phase = 0;
  TraceRecord record;
  std::vector<TraceRange> reads, writes;
  std::string_view title;  // what viewers show
  std::uint64_t pid = 0;
  Picos at = 0, lasts = 0;
  std::uint64_t threads[2] = {0, 0};    // that submitted and that ran it
  std::uint64_t sequences[2] = {0, 0};  // of the record and of the run
  std::optional<Engine> ran_on;         // if not record.engine
  bool recorded = false;                // args name the kind of record
  bool unnamed = false;                 // the title is not the op's name
};

class EventReader {
 public:
  EventReader(JsonReader& json, Texts& texts) : json_(json), texts_(texts) {}
  const TraceEvent& read();  // valid until the next call

 private:
  // What is done with the value of a key.
  struct Field {
    std::string_view key;
    void (*read)(EventReader& reader);
  };
  static const Field kEventFields[];
  static const Field kArgsFields[];
  template <std::size_t kCount>
  void read_object(const Field (&fields)[kCount]);

  void read_place();
  void read_cost();
  TraceRange read_range();
  void read_ranges(std::vector<TraceRange>& into);
  std::size_t read_numbers(std::uint64_t* into, std::size_t limit);

  JsonReader& json_;
  Texts& texts_;
  TraceEvent event_;
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
