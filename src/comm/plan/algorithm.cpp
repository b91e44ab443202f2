#include "comm/plan/algorithm.hpp"

namespace slip::comm {
namespace {

using C = Collective;

constexpr Schedule kSchedules[] = {
    {Algorithm::kRing, C::kAllReduce, false, true, &kRingLoops},
    {Algorithm::kRing, C::kReduceScatter, false, true, &kRingLoops},
    {Algorithm::kRing, C::kAllGather, true, true, &kRingLoops},
    {Algorithm::kRing, C::kBroadcast, true, true, &kRingBroadcast},
    {Algorithm::kRing, C::kReduce, false, true, &kRingReduce},
    {Algorithm::kTree, C::kAllReduce, false, true, &kTrees},
    {Algorithm::kTree, C::kBroadcast, true, true, &kTrees},
    {Algorithm::kTree, C::kReduce, false, true, &kTrees},
    {Algorithm::kDoubling, C::kAllReduce, false, false, &kDoublingAllReduce},
    {Algorithm::kDoubling, C::kBarrier, true, false, &kDoublingBarrier},
    {Algorithm::kDirect, C::kAllReduce, true, false, &kDirectReductions},
    {Algorithm::kDirect, C::kReduce, true, false, &kDirectReductions},
    {Algorithm::kDirect, C::kReduceScatter, true, false, &kDirectReductions},
    {Algorithm::kDirect, C::kAllGather, true, false, &kDirectCopies},
    {Algorithm::kDirect, C::kBroadcast, true, false, &kDirectCopies},
    {Algorithm::kDirect, C::kAllToAll, true, false, &kDirectCopies},
    {Algorithm::kRelay, C::kAllToAll, true, false, &kRelayAllToAll},
    {Algorithm::kDirect, C::kGather, true, false, &kDirectCopies},
    {Algorithm::kDirect, C::kScatter, true, false, &kDirectCopies},
};

}  // namespace

std::span<const Schedule> schedules() { return kSchedules; }

const Schedule* find_schedule(Algorithm algorithm, Collective kind) {
  const Schedule* const found = std::ranges::find_if(
      kSchedules, [&](const Schedule& one) { return one.algorithm == algorithm && one.kind == kind; });
  return found == std::end(kSchedules) ? nullptr : found;
}

Task::Span Task::share() const {
  constexpr std::uint64_t kLine = 64;
  const auto count = static_cast<std::uint64_t>(channels), own = static_cast<std::uint64_t>(channel);
  const std::uint64_t lines = (block() + kLine - 1) / kLine;
  const std::uint64_t begin = std::min(lines * own / count * kLine, block());
  return {begin, std::min(lines * (own + 1) / count * kLine, block()) - begin};
}

}  // namespace slip::comm
