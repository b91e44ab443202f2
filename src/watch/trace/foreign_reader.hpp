// ForeignReader: reads Chrome traces of other programs, such as PyTorch's profiler and browsers. TraceReader uses it.
// Such traces contain which ops ran where and when, and sometimes which host call launched them. They do not contain
// what ops read, wrote or waited for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json_reader.hpp"
#include "slip/trace.hpp"
#include "watch/trace/containers.hpp"

namespace slip::watch {

// Each process of the trace becomes a device, and each of its threads a stream. Both are numbered from 1, in the order
// in which they appear.
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
  void note_name(const Event& event);
  std::size_t track_of(const Event& event);
  Picos time_of(const Event& event);
  Picos sum(Picos a, Picos b) const;
  void add_run(std::size_t track, const Begin& begin, Picos ended);
  void add_submissions();
  std::vector<std::size_t> find_launches() const;
  void follow_arrows(std::vector<std::size_t>& launches) const;
  void end_open_runs();
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
