// Reads trace files. Files that this library wrote are restored exactly: EventReader reads one event of such a file,
// and read_trace_events() turns it into records. Of Chrome traces of other programs, ForeignReader reads the parts that
// have a meaning here.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json_reader.hpp"
#include "slip/trace.hpp"
#include "watch/trace/containers.hpp"

namespace slip::watch {

// Reads a trace from memory, plain or compressed. `name` is for error messages.
TraceData parse_trace(std::string_view text, const std::string& name, Here here = Here::at());

// `file_bytes` determines how much memory is reserved; 0: the size is unknown.
TraceData read_trace_events(base::JsonReader& json, std::size_t file_bytes);

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

// ForeignReader: reads Chrome traces of other programs, such as PyTorch's profiler and browsers. Such traces contain
// which ops ran where and when, and sometimes which host call launched them. They do not contain what ops read, wrote
// or waited for. Each process of the trace becomes a device, and each of its threads a stream. Both are numbered from
// 1, in the order in which they appear.
class ForeignReader {
 public:
  ForeignReader(base::JsonReader& json, StringPool& texts) : json_(json), texts_(texts) {}
  void read();         // reads the next event
  TraceData finish();  // call it after the last event

 private:
  struct Event {
    char phase = 0;
    std::string_view name, category, pid, tid;
    std::string_view given, labels;  // of metadata events: the name and labels of a process or thread
    std::string_view correlation;    // of a call and of the op that it launched
    std::string_view id;             // of an arrow
    bool enclosed = false;           // of an arrow: it ends at the run that contains its time, not at the next run
    std::optional<base::JsonReader::LongTime> at;
    Picos lasts = 0;
  };
  struct Begin {
    std::string_view name, category, correlation;
    Picos at = 0;
  };
  struct Track {
    std::string_view pid, tid;
    std::uint32_t device = 0;
    std::vector<Begin> open;  // runs that have begun and not ended, the innermost last
  };
  // A process id and a thread id. Both are strings of the StringPool, which are equal if they have the same address.
  using ThreadKey = std::pair<const char*, const char*>;
  // One end of a flow arrow, which leads from a host call ("s") to the op that the call launched ("f").
  struct ArrowEnd {
    bool begins = false;
    bool enclosed = false;  // see Event::enclosed
    std::string_view id;
    ThreadKey thread;
    Picos at = 0;
  };
  struct Launched {
    const char* correlation;
    std::size_t run;
  };

  void read_fields(Event& event);
  void read_args(Event& event);
  std::string_view read_identity();
  void note_name(const Event& event) {
    if (event.name == "process_name") processes_[event.pid.data()] = event.given;
    else if (event.name == "process_labels") labels_[event.pid.data()] = event.labels;
    else if (event.name == "thread_name") threads_[{event.pid.data(), event.tid.data()}] = event.given;
  }
  std::size_t track_of(const Event& event);
  Picos time_of(const Event& event);
  Picos sum(Picos a, Picos b) const {
    Picos result = 0;
    if (__builtin_add_overflow(a, b, &result)) json_.fail("a time more than 106 days from the first");
    return result;
  }
  void add_run(std::size_t track, const Begin& begin, Picos ended);
  void add_submissions();
  std::vector<std::size_t> find_launches() const;
  void follow_arrows(std::vector<std::size_t>& launches) const;
  // Runs that have no end event last until the end of the trace, as in viewers.
  void end_open_runs() {
    for (std::size_t i = 0; i < tracks_.size(); ++i) {
      for (const Begin& begin : tracks_[i].open) add_run(i, begin, std::max(begin.at, clock_.latest));
    }
  }
  void move_to_zero();
  void number_positions();
  void put_in_order();
  std::string_view track_name(const Track& track);

  base::JsonReader& json_;
  StringPool& texts_;
  std::vector<TraceRecord> records_;  // a kStreamOpen for each track, the runs, and the submissions
  // Correlation ids link launches to the runs of host calls (indices into records_). Ids are strings of the StringPool.
  std::unordered_map<const char*, std::size_t> calls_;
  std::vector<Launched> launched_;
  std::vector<ArrowEnd> arrows_;
  std::vector<Track> tracks_;  // by stream number minus 1
  std::map<ThreadKey, std::size_t> track_index_;
  ThreadKey last_key_{};
  std::size_t last_track_ = 0;
  std::map<const char*, std::uint32_t> devices_;                // by pid
  std::map<const char*, std::string_view> processes_, labels_;  // names by pid
  std::map<ThreadKey, std::string_view> threads_;               // names
  struct Clock {
    bool started = false;
    std::int64_t base = 0;  // microseconds subtracted from every time
    Picos latest = 0;
  };
  Clock clock_;
};

}  // namespace slip::watch
