// How ranks of one host do a collective where their buffers lie, if all can reach those that are needed: nothing is
// staged, each byte is read and written the least possible number of times.
//
// A rank that has come lets the others at its buffers; one that has ended with others' says so, and nobody leaves whose
// buffers are still in use. While a rank is at others' buffers (between kEnter and its kSignal) it waits for nobody, so
// that who fails can wait for it and then has its buffers for itself again.
//   Reductions: rank r reduces slice r, or its block, from all inputs and writes it to whom it belongs.
//   Copies: everybody fetches what it gets; in gather everybody brings, so that not the root alone is at work.
#pragma once

#include "comm/api/call.hpp"
#include "comm/plan/primitive.hpp"

namespace slip {

class DirectPlan {
 public:
  static constexpr std::uint64_t kInside = 1, kOutside = 2;  // phases

  DirectPlan(const Call& call, int rank, int nranks)
      : call_(call), rank_(rank), nranks_(nranks), block_(call.block_bytes()) {}

  // What the others need of a rank where it lies.
  struct Needs {
    bool input = false, output = false;
  };
  static Needs needs(const Call& call, int rank);
  // Whose offers decide for all.
  static bool depends_on(const Call& call, int rank) { return !from_root(call.kind) || rank == call.root; }
  static bool from_root(Collective kind) { return kind == Collective::kBroadcast || kind == Collective::kScatter; }
  // Input and output of this rank may be one if they lie so that nobody reads what another has overwritten.
  static bool may_overlap(const Call& call, int rank, const std::byte* output, const std::byte* input);

  void write(Program& program) const;

 private:
  void reduce(Program& program) const;
  void copies(Program& program) const;
  bool is_root() const { return rank_ == call_.root; }
  bool enters() const;      // touches what is others'
  bool is_visited() const;  // others touch what is its own
  Place input_of(int rank, std::uint64_t offset) const;
  Place output_of(int rank, std::uint64_t offset) const;

  Call call_;
  int rank_, nranks_;
  std::uint64_t block_;
};

}  // namespace slip
