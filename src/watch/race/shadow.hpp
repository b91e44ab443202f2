// Shadow: who touched which bytes of a buffer last. Byte-exact: a buffer is cut where accesses begin and end, so that
// neighbours never meet by accident; places with the same history are joined again.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "slip/race.hpp"
#include "watch/race/clocks.hpp"

namespace slip {

// An access that later ones must be ordered after.
struct Access {
  Clocks::Point point;  // of the host: counts the host's accesses, in a slot of its own
  RaceSide side;
};

class Shadow {
 public:
  struct Place {
    std::uint64_t end = 0;
    bool written = false;
    Access write;
    std::vector<Access> reads;  // since the write, the last of each stream
  };

  // Calls look(begin, end, place) for each place of the range, and then notes the access there. A read takes the place
  // of those that `covers` says it makes superfluous.
  template <class Look, class Covers>
  void access(std::uint64_t offset, std::uint64_t bytes, bool writes, const Access& access, const Look& look,
              const Covers& covers) {
    if (bytes == 0) return;
    const std::uint64_t end = offset + bytes;
    auto first = cut(offset);
    const auto last = cut(end);
    for (auto place = first; place != last; ++place) look(place->first, place->second.end, place->second);
    if (writes) {
      first->second.end = end;
      first->second.written = true;
      first->second.write = access;
      first->second.reads.clear();
      places_.erase(std::next(first), last);
      return;
    }
    for (auto place = first; place != last; ++place) {
      std::erase_if(place->second.reads,
                    [&](const Access& read) { return read.point.slot == access.point.slot || covers(read); });
      place->second.reads.push_back(access);
    }
    join(first, last);
  }
  // The bytes begin anew: nobody touched them.
  void forget(std::uint64_t offset, std::uint64_t bytes);
  std::size_t places() const { return places_.size(); }

 private:
  using Places = std::map<std::uint64_t, Place>;
  Places::iterator cut(std::uint64_t at);
  void join(Places::iterator first, Places::iterator last);
  Places places_;  // by begin; together they cover all bytes up to the last place's end
};

}  // namespace slip
