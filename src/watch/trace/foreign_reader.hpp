// ForeignReader: reads Chrome traces of other programs, such as PyTorch's profiler and browsers. TraceReader uses it.
// Such traces contain which ops ran where and when, and sometimes which host call launched them. They do not contain
// what ops read, wrote or waited for.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json_reader.hpp"
#include "slip/trace.hpp"
#include "watch/trace/containers.hpp"

namespace slip {

// Links each op of a device to the host call that launched it. It uses the correlation ids that both have and, for ops
// without an id, flow arrows ("s" to "f").
class LaunchLinks {
 public:
  static constexpr std::size_t kNone = ~std::size_t{0};

  // Ids are strings of the StringPool: equal if they have the same address. `run` is an index into the records.
  void add_call(std::string_view correlation, std::size_t run) { calls_.emplace(correlation.data(), run); }
  void add_launched(std::string_view correlation, std::size_t run) { launched_.push_back({correlation.data(), run}); }
  // An arrow begins or ends on a stream, at the run that contains its time. With `follows`, it ends at the next run.
  void add_arrow_begin(std::string_view id, std::uint64_t stream, Picos at) { begins_[id.data()] = {stream, at}; }
  void add_arrow_end(std::string_view id, std::uint64_t stream, Picos at, bool follows) {
    ends_.push_back({id.data(), {stream, at}, follows});
  }

  // By record: the call that launched it, or kNone. Runs of the host are calls; all other runs may have been launched.
  std::vector<std::size_t> resolve(const std::vector<TraceRecord>& records) const;

 private:
  struct Launched {
    const char* correlation;
    std::size_t run;
  };
  struct Moment {
    std::uint64_t stream = 0;
    Picos at = 0;
  };
  struct ArrowEnd {
    const char* id;
    Moment moment;
    bool follows;
  };
  void follow_arrows(const std::vector<TraceRecord>& records, std::vector<std::size_t>& result) const;

  std::unordered_map<const char*, std::size_t> calls_;
  std::vector<Launched> launched_;
  std::unordered_map<const char*, Moment> begins_;
  std::vector<ArrowEnd> ends_;
};

// Each process of the trace becomes a device, and each of its threads a stream. Both are numbered from 1, in the order
// in which they appear.
class ForeignReader {
 public:
  ForeignReader(JsonReader& json, StringPool& texts) : json_(json), texts_(texts) {}
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
    bool timed = false;
    JsonReader::LongTime at;
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
  struct ArrowEnd {
    bool begins = false, enclosed = false;
    std::string_view id;
    ThreadKey thread;
    Picos at = 0;
  };

  void read_fields(Event& event);
  void read_args(Event& event);
  std::string_view read_identity();
  void note_name(const Event& event);
  std::size_t track_of(const Event& event);
  Picos time_of(const Event& event);
  Picos sum(Picos a, Picos b) const;
  void add_run(std::size_t track, const Begin& begin, Picos ended);
  void add_submissions();
  void end_open_runs();
  void move_to_zero();
  void number_positions();
  void put_in_order();
  std::string_view track_name(const Track& track);

  JsonReader& json_;
  StringPool& texts_;
  std::vector<TraceRecord> records_;  // a kStreamOpen for each track, the runs, and the submissions
  LaunchLinks links_;
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

}  // namespace slip
