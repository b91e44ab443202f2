// Trees over the positions 0 to count - 1, given by the parent of each position. The parent of the root is kNoRank.
// plan_channels() and CommGraph use them.
#pragma once

#include <array>
#include <vector>

#include "slip/topology.hpp"

namespace slip::topo {

std::vector<int> heap_parents(int count, int arity = 2);  // root 0; with arity 1 the tree is a chain
// The two trees of Sanders, Speck and Träff ("Two-tree algorithms for full bandwidth broadcast, reduction and scan",
// 2009). Each position is a leaf in at least one of them, so together they use the full bandwidth of each rank in both
// directions.
std::array<std::vector<int>, 2> double_binary_parents(int count);

CommTree tree_of(std::vector<int> parent);  // adds the children, in order
// The number of edges from a position up to its root; for a tree, from the rank farthest from the root.
int depth_of(const std::vector<int>& parent, std::size_t position);
int depth_of(const CommTree& tree);

}  // namespace slip::topo
