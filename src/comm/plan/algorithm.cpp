#include "comm/plan/algorithm.hpp"

#include <algorithm>

namespace slip {
namespace {

using C = Collective;

constexpr Schedule kSchedules[] = {
    {Algorithm::kRing, C::kAllReduce, false, true, ring::loops, ring::write_loop, ring::loop_scratch},
    {Algorithm::kRing, C::kReduceScatter, false, true, ring::loops, ring::write_loop, ring::loop_scratch},
    {Algorithm::kRing, C::kAllGather, true, true, ring::loops, ring::write_loop, ring::loop_scratch},
    {Algorithm::kRing, C::kBroadcast, true, true, ring::chain_pieces, ring::write_broadcast, ring::chain_scratch},
    {Algorithm::kRing, C::kReduce, false, true, ring::chain_pieces, ring::write_reduce, ring::chain_scratch},
    {Algorithm::kTree, C::kAllReduce, false, true, tree::pieces, tree::write, tree::scratch},
    {Algorithm::kTree, C::kBroadcast, true, true, tree::pieces, tree::write, tree::scratch},
    {Algorithm::kTree, C::kReduce, false, true, tree::pieces, tree::write, tree::scratch},
    {Algorithm::kDoubling, C::kAllReduce, false, false, doubling::pieces, doubling::write_all_reduce,
     doubling::scratch},
    {Algorithm::kDoubling, C::kBarrier, true, false, doubling::pieces, doubling::write_barrier, doubling::scratch},
    {Algorithm::kDirect, C::kAllReduce, true, false, direct::pieces, direct::write_reductions, direct::scratch},
    {Algorithm::kDirect, C::kReduce, true, false, direct::pieces, direct::write_reductions, direct::scratch},
    {Algorithm::kDirect, C::kReduceScatter, true, false, direct::pieces, direct::write_reductions, direct::scratch},
    {Algorithm::kDirect, C::kAllGather, true, false, direct::pieces, direct::write_copies, direct::scratch},
    {Algorithm::kDirect, C::kBroadcast, true, false, direct::pieces, direct::write_copies, direct::scratch},
    {Algorithm::kDirect, C::kAllToAll, true, false, direct::pieces, direct::write_copies, direct::scratch},
    {Algorithm::kRelay, C::kAllToAll, true, false, relay::pieces, relay::write, relay::scratch},
    {Algorithm::kDirect, C::kGather, true, false, direct::pieces, direct::write_copies, direct::scratch},
    {Algorithm::kDirect, C::kScatter, true, false, direct::pieces, direct::write_copies, direct::scratch},
};

}  // namespace

std::span<const Schedule> schedules() { return kSchedules; }

const Schedule* find_schedule(Algorithm algorithm, Collective kind) {
  for (const Schedule& schedule : kSchedules) {
    if (schedule.algorithm == algorithm && schedule.kind == kind) return &schedule;
  }
  return nullptr;
}

Task::Span Task::share() const {
  constexpr std::uint64_t kLine = 64;
  const auto count = static_cast<std::uint64_t>(channels), own = static_cast<std::uint64_t>(channel);
  const std::uint64_t lines = (block() + kLine - 1) / kLine;
  const std::uint64_t begin = std::min(lines * own / count * kLine, block());
  return {begin, std::min(lines * (own + 1) / count * kLine, block()) - begin};
}

Task::Span Task::chunk(std::uint64_t index) const {
  const Span all = share();
  const std::uint64_t begin = all.begin + index * chunk_bytes;
  return {begin, std::min(chunk_bytes, all.end() - begin)};
}

}  // namespace slip
