#include "comm/algorithm.hpp"

#include <algorithm>
#include <utility>

#include "topo/trees.hpp"

namespace slip {
namespace {

using C = Collective;

constexpr Recipe kRecipes[] = {
    {Algorithm::kRing, C::kAllReduce, false, ring::loops, ring::write_loop, ring::loop_scratch},
    {Algorithm::kRing, C::kReduceScatter, false, ring::loops, ring::write_loop, ring::loop_scratch},
    {Algorithm::kRing, C::kAllGather, true, ring::loops, ring::write_loop, ring::loop_scratch},
    {Algorithm::kRing, C::kBroadcast, true, ring::chain_pieces, ring::write_broadcast, ring::chain_scratch},
    {Algorithm::kRing, C::kReduce, false, ring::chain_pieces, ring::write_reduce, ring::chain_scratch},
    {Algorithm::kTree, C::kAllReduce, false, tree::pieces, tree::write, tree::scratch},
    {Algorithm::kTree, C::kBroadcast, true, tree::pieces, tree::write, tree::scratch},
    {Algorithm::kTree, C::kReduce, false, tree::pieces, tree::write, tree::scratch},
    {Algorithm::kDoubling, C::kAllReduce, false, doubling::pieces, doubling::write_all_reduce, doubling::scratch},
    {Algorithm::kDoubling, C::kBarrier, true, doubling::pieces, doubling::write_barrier, doubling::scratch},
    {Algorithm::kDirect, C::kAllReduce, true, direct::pieces, direct::write_reductions, direct::scratch},
    {Algorithm::kDirect, C::kReduce, true, direct::pieces, direct::write_reductions, direct::scratch},
    {Algorithm::kDirect, C::kReduceScatter, true, direct::pieces, direct::write_reductions, direct::scratch},
    {Algorithm::kDirect, C::kAllGather, true, direct::pieces, direct::write_copies, direct::scratch},
    {Algorithm::kDirect, C::kBroadcast, true, direct::pieces, direct::write_copies, direct::scratch},
    {Algorithm::kDirect, C::kAllToAll, true, direct::pieces, direct::write_copies, direct::scratch},
    {Algorithm::kRelay, C::kAllToAll, true, relay::pieces, relay::write, relay::scratch},
    {Algorithm::kDirect, C::kGather, true, direct::pieces, direct::write_copies, direct::scratch},
    {Algorithm::kDirect, C::kScatter, true, direct::pieces, direct::write_copies, direct::scratch},
};

}  // namespace

std::span<const Recipe> recipes() { return kRecipes; }

const Recipe* find_recipe(Algorithm algorithm, Collective kind) {
  for (const Recipe& recipe : kRecipes) {
    if (recipe.algorithm == algorithm && recipe.kind == kind) return &recipe;
  }
  return nullptr;
}

Formation Formation::of(std::vector<int> order) {
  Formation result;
  const auto count = static_cast<int>(order.size());
  result.position.resize(order.size());
  for (int i = 0; i < count; ++i) result.position[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = i;
  result.order = std::move(order);
  for (std::vector<int>& parents : topo::double_binary_parents(count))
    result.trees.push_back(topo::tree_of(std::move(parents)));
  result.rooted = topo::tree_of(topo::heap_parents(count));
  return result;
}

Task::Span Task::chunk(std::uint64_t index) const {
  const std::uint64_t begin = index * chunk_bytes;
  return {begin, std::min(chunk_bytes, block() - begin)};
}

}  // namespace slip
