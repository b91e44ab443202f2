// RaceCheck: finds races in a sequence of what happened, whether it comes from a running program or from a trace.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <unordered_map>

#include "slip/race.hpp"
#include "watch/race/mending.hpp"
#include "watch/race/needs.hpp"
#include "watch/race/shadow.hpp"
#include "watch/race/words_written.hpp"

namespace slip {

class RaceCheck {
 public:
  // `by_op`: see Mending. `needs`: learns which edges the conflicts need.
  explicit RaceCheck(bool by_op = false, Needs* needs = nullptr) : by_op_(by_op), needs_(needs) {}

  // One step, in the order of the process. `reads` and `writes` are those of a kSubmit.
  void step(const TraceRecord& record, std::span<const TraceRange> reads, std::span<const TraceRange> writes);
  void name_buffer(std::uint64_t id, std::string_view name) { buffer(id).name = name; }
  void mark_host_memory(std::uint64_t id) { buffer(id).on_host = true; }
  // The buffer is wrapped memory: others of the same space may be of the same bytes.
  void mark_wrapped(std::uint64_t id, std::uint64_t address, std::uint32_t space) {
    Buffer& wrapped = buffer(id);
    wrapped.address = address;
    wrapped.shared = &wrapped_[space];
  }
  // Checks the program as if these edges were in it.
  void assume(const std::vector<RaceFix>& fixes);
  RaceReport report();
  bool is_clean() const { return races_.empty(); }
  const Mending* mending() const { return mending_.get(); }  // null before the first race, if nothing was assumed

 private:
  struct Buffer {
    std::string_view name;
    bool on_host = false;       // pinned or pageable; known where `needs` asks for it
    std::uint64_t address = 0;  // of wrapped memory; offsets in the shared shadow are addresses
    Shadow* shared = nullptr;   // of wrapped memory
    Shadow own;

    Shadow& shadow() { return shared ? *shared : own; }
  };
  // Its place in the table; the last ones used are at hand.
  Buffer& buffer(std::uint64_t id) {
    Recent& recent = recent_[id % recent_.size()];
    if (recent.id != id || !recent.buffer) recent = {id, &buffers_[id]};  // the table's nodes stay where they are
    return *recent.buffer;
  }
  // Place and kind of an access, and the op where each is a place of its own.
  using Place = std::tuple<std::string_view, std::int32_t, bool, std::uint64_t>;
  Place place_of(const RaceSide& side) const { return {side.file, side.line, side.writes, by_op_ ? side.position : 0}; }
  using Key = std::tuple<Place, Place, std::string_view>;

  // The program's order and, once something raced, that of the mended one.
  Clocks::Point point_of(const TraceRecord& record);  // its own, in its stream
  Clocks::Point other_of(const TraceRecord& record);  // the one that it waits for
  Clocks::Point point_of(std::uint64_t stream, std::uint64_t position);
  void begin(std::uint32_t slot);  // an op of the stream is looked at,
  void came(Clocks::Point point);  // and now it is the past
  void follow(std::uint32_t slot, Clocks::Point point);
  void host_follow(Clocks::Point point);
  void host_follow_all(std::uint32_t slot);

  // A stream that waits for a word which nobody has written so far stands still, and with it those that wait for it:
  // the write may be issued later, and everything before it then comes first.
  struct HostThen {  // what the host knew when something was issued, and what it would have known in the mended program
    std::shared_ptr<const Clocks::Clock> known, mended;
    std::uint64_t steps = 0;  // of the host by then
  };
  struct Late {
    TraceRecord record;
    std::vector<TraceRange> reads, writes;
    HostThen host;
    std::uint32_t needs_record = 0;
  };
  struct Stall {
    TraceRange word;  // bytes 0: it stands still for a point of another stream
    std::uint32_t value = 0;
    std::uint64_t stream = 0, position = 0;  // that point
    std::deque<Late> late;
  };
  bool stands_still(const TraceRecord& record, std::span<const TraceRange> reads);
  void put_off(const TraceRecord& record, std::span<const TraceRange> reads, std::span<const TraceRange> writes);
  void go_on(std::uint64_t stream);
  void go_on_with(const TraceRecord& sync);
  std::uint64_t origin_of_stall(std::uint64_t stream) const;
  bool is_past(Clocks::Point point) const { return clocks_.end(point.slot) >= point.position; }
  void go_on_after(const TraceRange& word);
  void perform(const TraceRecord& record, std::span<const TraceRange> reads, std::span<const TraceRange> writes);

  void submit(const TraceRecord& record, std::span<const TraceRange> reads, std::span<const TraceRange> writes);
  void touch(const TraceRange& range, const Access& access);
  void mend(const Access& access);
  void touch_whole(const TraceRecord& record, std::string_view name);
  void note_needs(const TraceRecord& record, Clocks::Point point, std::span<const TraceRange> reads,
                  std::span<const TraceRange> writes);
  bool is_ordered(const Access& earlier, const Access& access);
  void host_touch(const TraceRecord& record, bool writes);
  void host_wait(const TraceRecord& record);
  void forget(const TraceRange& range);

  // The host's views that are open, and what was issued meanwhile (race_views.cpp).
  struct OpInView {
    Access first, last;  // of one place in the source
    TraceRange where;    // bytes that the first one shares with the view
  };
  struct View {
    TraceRecord record;  // of its begin
    bool writes = false;
    std::vector<OpInView> ops;  // that conflict with it, in the order of issue
  };
  const Shadow* memory_of(const TraceRange& range) { return &buffer(range.buffer).shadow(); }
  std::uint64_t begin_of(const TraceRange& range) { return buffer(range.buffer).address + range.offset; }
  bool is_possible(const TraceRange& range) {  // a file may say that wrapped memory ends beyond 2^64
    const std::uint64_t limit = ~std::uint64_t{0} - buffer(range.buffer).address;
    return range.offset <= limit && range.bytes <= limit - range.offset;
  }
  void note_in_views(const TraceRange& range, const Access& access);
  void end_view(const TraceRecord& record);
  void end_clean_view(const TraceRecord& record, bool writes);
  void found(const Access& earlier, const Access& later, const TraceRange& where);
  void count(const RaceSide& first, const RaceSide& second, const TraceRange& where);

  const bool by_op_;
  Needs* const needs_;
  Clocks clocks_;
  std::unique_ptr<Mending> mending_;  // from the first race on
  std::vector<Access> unordered_;     // what the op at hand is not ordered after
  bool has_own_position_ = true;      // the access at hand: an allocation or a free may have that of the op before it
  std::uint64_t host_steps_ = 0;
  std::uint64_t last_stream_ = 0;  // asked for last, and its slot; 0, the host, is never asked for this way
  Clocks::Life last_life_;
  std::unordered_map<std::uint64_t, Buffer> buffers_;
  std::map<std::uint32_t, Shadow> wrapped_;  // by space: addresses mean the same there
  struct Recent {
    std::uint64_t id = 0;
    Buffer* buffer = nullptr;
  };
  std::array<Recent, 64> recent_{};
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> device_slots_;
  WordsWritten words_;
  std::map<std::uint64_t, Stall> stalls_;                       // by stream
  HostThen host_then_;                                          // of a record that was put off; of others nothing
  HostThen host_now_;                                           // the present, if it was asked for
  std::unordered_map<const Shadow*, std::vector<View>> views_;  // open ones, by the memory that they are of
  std::map<Key, std::size_t> known_;                            // index in races_
  std::vector<Race> races_;
  std::uint64_t ops_ = 0, opaque_ = 0;
};

// check_races() of a trace, or of a plan as one (`by_op`), that tells `needs` what it sees.
RaceReport check_races(const TraceData& trace, bool by_op, Needs* needs);
// Leaves out of a report the fixes that the others make unnecessary: one that was found late may order from the start
// what an earlier one was found for. Its work is limited to a few looks at the trace.
class FixReduction {
 public:
  FixReduction(const TraceData& trace, bool by_op) : trace_(trace), by_op_(by_op) {}
  void run(RaceReport& report);
  std::uint64_t steps() const { return steps_; }  // records looked at, and fixes assumed, so far

  static constexpr std::uint64_t kMaxLooks = 8;
  static constexpr std::uint64_t kFewSteps = 50'000;  // those are always made: a small trace is reduced in full

 private:
  bool mends(const std::vector<RaceFix>& fixes);
  std::vector<RaceFix> kept() const;
  void leave_out(std::span<const std::size_t> doubtful);

  const TraceData& trace_;
  const bool by_op_;
  std::uint64_t steps_ = 0, limit_ = 0;
  std::vector<bool> needed_;  // of the fixes that mended it last: see Mending::needed()
  std::vector<RaceFix> fixes_;
  std::vector<bool> left_out_;
  std::uint64_t untried_ = 0;
};
// Whether nothing races without these records (by index), which are waits.
bool is_clean_without(const TraceData& trace, const std::vector<bool>& left_out);
// Steps in all that are worth trying to find out what could be left out: about a second.
inline constexpr std::uint64_t kMaxTrials = 1'000'000;

}  // namespace slip
