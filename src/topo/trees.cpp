#include "topo/trees.hpp"

#include <algorithm>
#include <utility>

namespace slip::topo {

std::vector<int> chain_parents(int count) {
  std::vector<int> parent(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) parent[static_cast<std::size_t>(i)] = i == 0 ? kNobody : i - 1;
  return parent;
}

std::vector<int> heap_parents(int count) {
  std::vector<int> parent(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) parent[static_cast<std::size_t>(i)] = i == 0 ? kNobody : (i - 1) / 2;
  return parent;
}

// Counted from 1, a number's height is its lowest bit's: its parent is the neighbour one bit higher, or, where that
// lies beyond the end, the nearest lower number of more height.
std::vector<int> binary_parents(int count) {
  std::vector<int> parent;
  for (int place = 1; place <= count; ++place) {
    const int bit = place & -place;
    int up = (place ^ bit) | (bit << 1);
    if (up > count) up = place ^ bit;
    parent.push_back(up == 0 ? kNobody : up - 1);
  }
  return parent;
}

std::array<std::vector<int>, 2> double_binary_parents(int count) {
  const std::vector<int> first = binary_parents(count);
  // Interior positions are odd. Where the count is even, a mirror makes them even; where it is odd, a shift by one
  // does, and the last position, even, becomes position 0: a leaf again.
  const auto position = [&](int rank) { return count % 2 == 0 ? count - 1 - rank : (rank + 1) % count; };
  const auto rank_at = [&](int place) { return count % 2 == 0 ? count - 1 - place : (place + count - 1) % count; };
  std::vector<int> second;
  for (int rank = 0; rank < count; ++rank) {
    const int up = first[static_cast<std::size_t>(position(rank))];
    second.push_back(up == kNobody ? kNobody : rank_at(up));
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

int depth_of(const CommTree& tree) {
  int deepest = 0;
  for (std::size_t rank = 0; rank < tree.parent.size(); ++rank) {
    int depth = 0;
    for (int up = tree.parent[rank]; up >= 0; up = tree.parent[static_cast<std::size_t>(up)]) ++depth;
    deepest = std::max(deepest, depth);
  }
  return deepest;
}

}  // namespace slip::topo
