#include "topo/trees.hpp"

#include <algorithm>
#include <utility>

namespace slip::topo {
namespace {

// A binary tree numbered by in-order traversal: leaves at even positions, depth floor(log2(count)).
//
// Positions are counted from 1 here. The height of a position is the index of its lowest set bit. Its parent is the
// nearest position of the next height; if that is beyond the end, the nearest lower position of greater height.
std::vector<int> binary_parents(int count) {
  std::vector<int> parent;
  for (int number = 1; number <= count; ++number) {
    const int bit = number & -number;
    int up = (number ^ bit) | (bit << 1);
    if (up > count) up = number ^ bit;
    parent.push_back(up == 0 ? kNoRank : up - 1);
  }
  return parent;
}

}  // namespace

std::vector<int> heap_parents(int count, int arity) {
  std::vector<int> parent;
  for (int i = 0; i < count; ++i) parent.push_back(i == 0 ? kNoRank : (i - 1) / arity);
  return parent;
}

std::array<std::vector<int>, 2> double_binary_parents(int count) {
  const std::vector<int> first = binary_parents(count);
  // Counted from 0, the interior positions of the first tree are odd. The second tree is the first one mirrored if the
  // count is even, and shifted by one if it is odd: then its interior positions are even, so each position is a leaf in
  // one of the trees.
  const auto position = [&](int rank) { return count % 2 == 0 ? count - 1 - rank : (rank + 1) % count; };
  const auto rank_at = [&](int at) { return count % 2 == 0 ? count - 1 - at : (at + count - 1) % count; };
  std::vector<int> second;
  for (int rank = 0; rank < count; ++rank) {
    const int up = first[static_cast<std::size_t>(position(rank))];
    second.push_back(up == kNoRank ? kNoRank : rank_at(up));
  }
  return {first, second};
}

CommTree tree_of(std::vector<int> parent) {
  CommTree tree{std::move(parent), {}};
  tree.children.resize(tree.parent.size());
  for (std::size_t rank = 0; rank < tree.parent.size(); ++rank) {
    if (tree.parent[rank] >= 0)
      tree.children[static_cast<std::size_t>(tree.parent[rank])].push_back(static_cast<int>(rank));
  }
  return tree;
}

int depth_of(const std::vector<int>& parent, std::size_t position) {
  int depth = 0;
  for (int up = parent[position]; up >= 0; up = parent[static_cast<std::size_t>(up)]) ++depth;
  return depth;
}

int depth_of(const CommTree& tree) {
  int deepest = 0;
  for (std::size_t rank = 0; rank < tree.parent.size(); ++rank)
    deepest = std::max(deepest, depth_of(tree.parent, rank));
  return deepest;
}

}  // namespace slip::topo
