// HostPlan: which way a call between ranks of one host goes, and its program. Small calls and those with buffers that
// others cannot reach are staged (SharedPlan); if all that is needed can be reached, they are done in place
// (DirectPlan).
//
// A rank that offers its buffers does not stage before it posts, a rank that does not offer them does, as if there were
// no other way. So nothing is lost where nobody offers. If only some do, they stage late, and all wait once more.
#pragma once

#include "comm/plan/direct_plan.hpp"
#include "comm/plan/shared_plan.hpp"

namespace slip {

// Whether the peers of a rank need its buffers in a call, and can reach them.
enum class PeerAccess : std::uint32_t {
  kNotNeeded,
  kUnreachable,  // needed, but the peers cannot map them
  kShared,
};

enum class Path : std::uint8_t {
  kOpen,    // not chosen yet
  kStaged,  // all have staged
  kLate,    // some still have to
  kDirect,
};

class HostPlan {
 public:
  // As SharedPlan's.
  HostPlan(const Call& call, std::uint64_t number, std::uint64_t chunks_before, int rank, int nranks);
  // What this rank offers, if the call asks for it; before the first piece.
  void take(PeerAccess own) { own_ = own; }

  // Whether ranks make offers for such a call: below some size staging takes less time than meeting twice.
  static bool asks(const Call& call, int nranks);
  bool asks() const { return asks_; }
  bool depends_on(int rank) const { return DirectPlan::depends_on(call_, rank); }
  // After the first piece, by what those have posted that it depends on.
  void choose(bool any_private, bool any_offered);
  Path path() const { return path_; }

  std::uint64_t number() const { return shared_.number(); }
  std::uint64_t chunks() const { return shared_.chunks(); }
  std::uint64_t pieces() const;
  void write(std::uint64_t piece, Program& program) const;
  void write_small(Program& program) const { shared_.write_small(program); }  // see SharedPlan
  std::uint64_t box_shift() const { return shared_.box_shift(); }
  std::uint64_t phases() const;

 private:
  Call call_;
  int rank_;
  bool asks_;
  PeerAccess own_ = PeerAccess::kUnreachable;
  SharedPlan shared_;
  DirectPlan direct_;
  Path path_;
};

}  // namespace slip
