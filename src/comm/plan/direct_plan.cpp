#include "comm/plan/direct_plan.hpp"

#include <algorithm>

namespace slip {
namespace {

constexpr std::uint64_t kLine = 64;

}  // namespace

DirectPlan::Needs DirectPlan::needs(const Call& call, int rank) {
  const bool root = rank == call.root;
  switch (call.kind) {
    case Collective::kAllReduce: return {true, true};
    case Collective::kReduce: return {true, root};
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kAllToAll: return {true, false};
    case Collective::kBroadcast:
    case Collective::kScatter: return {root, false};
    // Nobody fetches inputs, but a rank that stages must know it before it comes, and the root alone cannot tell.
    case Collective::kGather: return {!root, root};
    case Collective::kBarrier:
    case Collective::kMessage: break;
  }
  return {};
}

bool DirectPlan::may_overlap(const Call& call, int rank, const std::byte* output, const std::byte* input) {
  const std::uint64_t own = static_cast<std::uint64_t>(rank) * call.block_bytes();
  switch (call.kind) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast: return output == input;
    case Collective::kReduceScatter:
    case Collective::kScatter: return output == input + own;
    case Collective::kAllGather:
    case Collective::kGather: return input == output + own;
    case Collective::kAllToAll:
    case Collective::kBarrier:
    case Collective::kMessage: break;
  }
  return false;
}

bool DirectPlan::enters() const {
  if (nranks_ == 1) return false;
  return is_root() ? !from_root(call_.kind) && call_.kind != Collective::kGather : true;
}

bool DirectPlan::is_visited() const {
  const Needs mine = needs(call_, rank_);
  return nranks_ > 1 && (call_.kind == Collective::kGather ? is_root() : mine.input || mine.output);
}

Place DirectPlan::input_of(int rank, std::uint64_t offset) const {
  return rank == rank_ ? Place{Space::kInput, 0, offset}
                       : Place{Space::kPeerInput, static_cast<std::uint16_t>(rank), offset};
}

Place DirectPlan::output_of(int rank, std::uint64_t offset) const {
  return rank == rank_ ? Place{Space::kOutput, 0, offset}
                       : Place{Space::kPeerOutput, static_cast<std::uint16_t>(rank), offset};
}

void DirectPlan::write(Program& program) const {
  if (enters()) program.enter(kInside);
  if (reduces(call_.kind)) reduce(program);
  else copies(program);
  if (enters()) program.signal(kOutside);
  if (is_visited()) program.wait(kOutside);
}

void DirectPlan::reduce(Program& program) const {
  const auto own = static_cast<std::uint64_t>(rank_), all = static_cast<std::uint64_t>(nranks_);
  const bool scatters = call_.kind == Collective::kReduceScatter;
  // Slices begin at cache lines, if the buffers do, so that no two ranks write to one.
  const std::uint64_t share = scatters ? block_ : (block_ + all * kLine - 1) / (all * kLine) * kLine;
  const std::uint64_t begin = scatters ? own * block_ : std::min(own * share, block_);
  const std::uint64_t bytes = scatters ? block_ : std::min(share, block_ - begin);
  if (bytes == 0) return;
  const int targets = call_.kind == Collective::kAllReduce ? nranks_ : 1;
  const std::span<Place> places = program.reduce_to(targets, nranks_, bytes);
  if (scatters) places[0] = output_of(rank_, 0);
  else if (call_.kind == Collective::kReduce) places[0] = output_of(call_.root, begin);
  else {
    for (int step = 0; step < nranks_; ++step)  // its own comes first, for it is there that it is computed
      places[static_cast<std::size_t>(step)] = output_of((rank_ + step) % nranks_, begin);
  }
  for (int from = 0; from < nranks_; ++from) places[static_cast<std::size_t>(targets + from)] = input_of(from, begin);
}

void DirectPlan::copies(Program& program) const {
  const auto own = static_cast<std::uint64_t>(rank_);
  const auto root = call_.root;
  switch (call_.kind) {
    case Collective::kBroadcast: return program.copy(output_of(rank_, 0), input_of(root, 0), block_);
    case Collective::kScatter: return program.copy(output_of(rank_, 0), input_of(root, own * block_), block_);
    case Collective::kGather: return program.copy(output_of(root, own * block_), input_of(rank_, 0), block_);
    default: break;
  }
  for (int step = 0; step < nranks_; ++step) {
    const int from = (rank_ + step) % nranks_;  // each begins with itself: not all at the same place at once
    const std::uint64_t offset = call_.kind == Collective::kAllToAll ? own * block_ : 0;
    program.copy(output_of(rank_, static_cast<std::uint64_t>(from) * block_), input_of(from, offset), block_);
  }
}

}  // namespace slip
