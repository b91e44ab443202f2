// Relay: all_to_all between hosts with few messages. What the ranks of a host have for a rank of another goes to one
// of them first, which stands beside the net on the receiver's rail; that one sends it all as one message, and the
// receiver puts the blocks where they belong. Who hands over to whom is the formation's (`relays`).
//
// On a link what is handed over comes before what is meant for the receiver itself. Hand-overs go in rounds, one for
// each destination, in which each rank gives and takes: so nobody waits for room on a link that others have not come
// to.
#include <algorithm>

#include "comm/algorithm.hpp"

namespace slip::relay {
namespace {

using Span = Task::Span;

// What the parts of a message are: the ranks whose blocks for `to` the rank `by` carries, in order.
std::vector<int> carried(const Task& task, int by, int to) {
  const Relays& relays = task.formation->relays;
  if (relays.none()) return {by};
  std::vector<int> from;
  for (const int rank : relays.beside(by)) {
    if (rank != to && relays.via(rank, to) == by) from.push_back(rank);
  }
  return from;
}

// For whom a rank hands its blocks to another one of its host, in order.
std::vector<int> handed(const Task& task, int from, int by) {
  const Relays& relays = task.formation->relays;
  std::vector<int> to;
  if (relays.none() || !relays.same_host(from, by)) return to;
  for (int rank = 0; rank < task.nranks; ++rank) {
    if (rank != from && rank != by && relays.via(from, rank) == by) to.push_back(rank);
  }
  return to;
}

// A message that this rank sends to `rank`, or gets from it, with its place in scratch memory if it needs one.
struct Bundle {
  int rank = 0;
  std::vector<int> from;
  std::uint64_t scratch = 0;  // bytes
  bool is_joint() const { return from.size() > 1; }
};

class Exchange {
 public:
  explicit Exchange(const Task& task) : task_(task) {
    for (int step = 1; step < task.nranks; ++step) {  // neighbours first, so that not all go to the same
      const int to = (task.rank + step) % task.nranks, from = (task.rank - step + task.nranks) % task.nranks;
      if (Bundle one{to, carried(task, task.rank, to)}; !one.from.empty()) add(out_, std::move(one), false);
      if (Bundle one{from, carried(task, from, task.rank)}; !one.from.empty()) add(in_, std::move(one), task.in_place);
      give_.push_back({to, handed(task, task.rank, to)});
      take_.push_back({from, handed(task, from, task.rank)});
    }
  }

  std::uint64_t scratch() const { return scratch_; }

  void write(const Span& chunk, Program& program) const {
    hand_over(chunk, program);
    for (const Bundle& one : out_) {
      if (!one.is_joint()) program.send(one.rank, input(one.rank, chunk), chunk.bytes);
    }
    for (const Bundle& one : in_)
      program.receive(one.rank, lands(one) ? scratch_at(one.scratch) : output(one.rank, chunk),
                      one.from.size() * chunk.bytes);
    if (!task_.in_place) program.copy(output(task_.rank, chunk), input(task_.rank, chunk), chunk.bytes);
    pass_on(chunk, program);
    for (const Bundle& one : in_) program.received(one.rank);
    for (const Bundle& one : out_) program.sent(one.rank);
    for (const Handed& one : give_) {
      if (!one.to.empty()) program.sent(one.rank);
    }
    for (const Bundle& one : in_) scatter(one, chunk, program);
  }

 private:
  struct Handed {
    int rank = 0;
    std::vector<int> to;
  };

  void add(std::vector<Bundle>& all, Bundle one, bool lands) {
    if (one.is_joint() || lands) {
      one.scratch = scratch_;
      scratch_ += one.from.size() * task_.chunk_bytes;
    }
    all.push_back(std::move(one));
  }
  bool lands(const Bundle& one) const { return one.is_joint() || task_.in_place; }
  Place input(int rank, const Span& chunk) const {
    return input_at(static_cast<std::uint64_t>(rank) * task_.block() + chunk.begin);
  }
  Place output(int rank, const Span& chunk) const {
    return output_at(static_cast<std::uint64_t>(rank) * task_.block() + chunk.begin);
  }
  // Where a part of a joint message is: they lie one behind the other.
  static Place part(const Bundle& one, std::size_t index, const Span& chunk) {
    return scratch_at(one.scratch + index * chunk.bytes);
  }
  Place slot(int to, int from, const Span& chunk) const {
    const auto joint = std::find_if(out_.begin(), out_.end(), [&](const Bundle& one) { return one.rank == to; });
    const auto place = std::find(joint->from.begin(), joint->from.end(), from);
    return part(*joint, static_cast<std::size_t>(place - joint->from.begin()), chunk);
  }

  void hand_over(const Span& chunk, Program& program) const {
    std::size_t rounds = 0;
    for (const Handed& one : give_) rounds = std::max(rounds, one.to.size());
    for (const Handed& one : take_) rounds = std::max(rounds, one.to.size());
    for (std::size_t round = 0; round < rounds; ++round) {
      for (const Handed& one : give_) {
        if (round < one.to.size()) program.send(one.rank, input(one.to[round], chunk), chunk.bytes);
      }
      for (const Handed& one : take_) {
        if (round < one.to.size()) program.receive(one.rank, slot(one.to[round], one.rank, chunk), chunk.bytes);
      }
    }
  }

  // What was handed to this rank goes on, with its own.
  void pass_on(const Span& chunk, Program& program) const {
    for (const Bundle& one : out_) {
      for (std::size_t i = 0; one.is_joint() && i < one.from.size(); ++i) {
        if (one.from[i] == task_.rank) program.copy(part(one, i, chunk), input(one.rank, chunk), chunk.bytes);
      }
    }
    for (const Handed& one : take_) {
      const bool more = std::any_of(in_.begin(), in_.end(), [&](const Bundle& in) { return in.rank == one.rank; });
      if (!one.to.empty()) program.received(one.rank, more ? 1 : 0);  // its own message comes behind them
    }
    for (const Bundle& one : out_) {
      if (one.is_joint()) program.send(one.rank, part(one, 0, chunk), one.from.size() * chunk.bytes);
    }
  }

  void scatter(const Bundle& one, const Span& chunk, Program& program) const {
    for (std::size_t i = 0; lands(one) && i < one.from.size(); ++i)
      program.copy(output(one.from[i], chunk), part(one, i, chunk), chunk.bytes);
  }

  const Task& task_;
  std::vector<Bundle> out_, in_;
  std::vector<Handed> give_, take_;
  std::uint64_t scratch_ = 0;
};

}  // namespace

std::uint64_t pieces(const Task& task) { return task.chunks(); }
std::uint64_t scratch(const Task& task) { return Exchange(task).scratch(); }
void write(const Task& task, std::uint64_t piece, Program& program) {
  Exchange(task).write(task.chunk(piece), program);
}

}  // namespace slip::relay
