// Shadow memory: which ops accessed which bytes of a buffer last. RaceCheck compares each access with it.
//
// It is exact to the byte: a buffer is divided into segments where accesses begin and end, so two adjacent accesses
// never seem to overlap. Segments with the same history are joined again. OpenViews has the views of the host that have
// not ended.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "slip/race.hpp"
#include "watch/race/clocks.hpp"

namespace slip::watch {

// An access. Later accesses that conflict with it must be ordered after it.
struct Access {
  Clocks::Point point;  // for an access of the host: the host's slot and its step number
  RaceSide side;
};

class Shadow {
 public:
  struct Segment {
    std::uint64_t end = 0;
    bool written = false;
    Access write;
    std::vector<Access> reads;  // the last read of each stream since the write
  };

  // Calls look(begin, end, segment) for each segment of the range, and then stores the access there. A read replaces
  // the earlier reads for which `covers` returns true.
  template <class Look, class Covers>
  void access(std::uint64_t offset, std::uint64_t bytes, bool writes, const Access& access, const Look& look,
              const Covers& covers) {
    if (bytes == 0) return;
    const std::uint64_t end = offset + bytes;
    auto first = cut(offset);
    const auto last = cut(end);
    for (auto segment = first; segment != last; ++segment) look(segment->first, segment->second.end, segment->second);
    if (writes) {
      first->second.end = end;
      first->second.written = true;
      first->second.write = access;
      first->second.reads.clear();
      segments_.erase(std::next(first), last);
      return;
    }
    for (auto segment = first; segment != last; ++segment) {
      std::erase_if(segment->second.reads,
                    [&](const Access& read) { return read.point.slot == access.point.slot || covers(read); });
      segment->second.reads.push_back(access);
    }
    join(first, last);
  }
  // Deletes the history of these bytes, as if no op had accessed them.
  void forget(std::uint64_t offset, std::uint64_t bytes);
  std::size_t segments() const { return segments_.size(); }

 private:
  using Segments = std::map<std::uint64_t, Segment>;
  Segments::iterator cut(std::uint64_t at);
  void join(Segments::iterator first, Segments::iterator last);
  Segments segments_;  // by begin; together they cover all bytes up to the end of the last one
};

// A buffer with its shadow. Buffers that wrap memory of the same address space share one shadow, because two of them
// may contain the same bytes. In that shadow, offsets are addresses.
struct TrackedBuffer {
  std::string_view name;
  bool on_host = false;       // pinned or pageable
  std::uint64_t address = 0;  // of wrapped memory
  Shadow* shared = nullptr;   // of wrapped memory
  Shadow own;

  Shadow& shadow() { return shared ? *shared : own; }
  std::uint64_t begin_of(const TraceRange& range) const { return address + range.offset; }
  // False: the range ends beyond 2^64. A damaged file may contain such a range of wrapped memory.
  bool contains(const TraceRange& range) const {
    const std::uint64_t limit = ~std::uint64_t{0} - address;
    return range.offset <= limit && range.bytes <= limit - range.offset;
  }
};

// The name of the host in a race with an op that was issued while a view was open.
inline constexpr std::string_view kOpenView = "the host, in a view still open";

struct OpInView {
  Access first, last;  // the first and the last op issued at one source line
  TraceRange where;    // the bytes that the first op shares with the view
};

struct OpenView {
  TraceRecord record;                // the record of its begin
  std::uint64_t begin = 0, end = 0;  // addresses in the shadow
  bool writes = false;
  std::vector<OpInView> ops;  // the ops that conflict with it, in the order of issue
};

// The host's views (Buffer::host_read, host_write) that have not ended, and the ops that were issued meanwhile. Such an
// op races with the host's access, which may happen at any time until the view ends.
class OpenViews {
 public:
  bool empty() const { return views_.empty(); }
  void open(TrackedBuffer& buffer, const TraceRecord& record, bool writes);
  // An op touches the range: adds it to the views that it conflicts with.
  void add_op(TrackedBuffer& buffer, const TraceRange& range, const Access& access);
  // Ends and returns the view to which this kHostEnd belongs. Nullopt: no such view is open.
  std::optional<OpenView> close(TrackedBuffer& buffer, const TraceRecord& record);
  void forget(const Shadow* memory) { views_.erase(memory); }

 private:
  std::unordered_map<const Shadow*, std::vector<OpenView>> views_;  // by the memory that they access
};

}  // namespace slip::watch
