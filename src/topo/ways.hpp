// The ways between the ranks of one machine, and to its ports, as the ring search uses them; and bounds that save it
// from looking for what cannot be.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "topo/rings.hpp"

namespace slip::topo {

struct Way {
  PathType type = PathType::kNone;
  std::int64_t rate = 0;
  std::vector<int> links;
};

class Ways {
 public:
  explicit Ways(const Members& members);

  std::size_t count() const { return count_; }
  std::size_t ports() const { return ports_; }
  const std::vector<std::int64_t>& capacity() const { return capacity_; }  // by link
  const Way& between(int a, int b) const { return between_[index(a, b)]; }
  const Way& in(int port, int member) const { return in_[index(port, member)]; }
  const Way& out(int member, int port) const { return out_[index(port, member)]; }
  // Members in the order in which to try them: near and wide first, then the next number.
  const std::vector<int>& after(int member) const { return after_[static_cast<std::size_t>(member)]; }
  const std::vector<int>& beside(int port) const { return beside_[static_cast<std::size_t>(port)]; }

  // Can paths of this type join all members, and some port?
  bool joined(PathType limit) const;
  // No more channels of this rate can be, and never more than `most`.
  int max_channels(std::int64_t rate, PathType limit, int most) const;

 private:
  // A part of the machine that every ring must leave: what leads out of it, and from which path type on it is used.
  struct Exit {
    std::int64_t capacity = 0;
    PathType from = PathType::kLoc;
    std::int64_t links = 1;  // that are alike
    friend auto operator<=>(const Exit&, const Exit&) = default;
  };
  using Cut = std::vector<Exit>;

  std::size_t index(int a, int b) const { return static_cast<std::size_t>(a) * count_ + static_cast<std::size_t>(b); }
  void prefer();
  void find_cuts(const Members& members);
  void add_cut(const TopoSystem& system, const std::vector<std::vector<int>>& links_of,
               const std::vector<char>& inside);

  std::size_t count_, ports_;
  std::vector<std::int64_t> capacity_;
  std::vector<Way> between_, in_, out_;
  std::vector<std::vector<int>> after_, beside_;
  std::vector<Cut> cuts_;
};

}  // namespace slip::topo
