// Shadow memory: which ops accessed which bytes of a buffer last. RaceCheck compares each access with it.
//
// It is exact to the byte: a buffer is divided into segments where accesses begin and end, so two adjacent accesses
// never seem to overlap. Segments with the same history are joined again.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "slip/race.hpp"
#include "watch/race/clocks.hpp"
#include "watch/trace/containers.hpp"

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

// The buffers of a program with their shadows. Buffers that wrap memory of the same address space share one shadow,
// because two of them may contain the same bytes. In that shadow, offsets are addresses.
class ShadowMemory {
 public:
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
  // Creates the buffer if the id is unknown. The reference stays valid.
  TrackedBuffer& operator[](std::uint64_t id) { return buffers_[id]; }
  TrackedBuffer* find(std::uint64_t id) { return buffers_.find(id); }
  void wrap(std::uint64_t id, std::uint64_t address, std::uint32_t space) {
    TrackedBuffer& wrapped = buffers_[id];
    wrapped.address = address;
    wrapped.shared = &wrapped_[space];
  }
  void erase(std::uint64_t id) { buffers_.erase(id); }

 private:
  CachedMap<TrackedBuffer> buffers_;
  std::map<std::uint32_t, Shadow> wrapped_;  // by address space
};

}  // namespace slip::watch
