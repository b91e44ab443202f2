// The tree algorithm: each rank reduces a chunk with those of its children and sends it to its parent; the result is
// sent down the same tree. all_reduce alternates between two trees, and each rank is a leaf in at least one of them.
// Collectives with a root use one tree with the same root. One chunk goes down while later chunks go up.
#include <algorithm>

#include "comm/plan/algorithm.hpp"

namespace slip::comm {
namespace {

// This rank's neighbours in the tree of a chunk.
struct Node {
  int parent = kNoRank;
  std::vector<int> children;
};

Node node_of(const Task& task, std::uint64_t chunk) {
  const CommGraph& graph = *task.graph;
  const bool rooted = has_root(task.call.kind);
  const int root = rooted ? task.root_position() : 0;
  const CommTree& tree = rooted ? graph.rooted : graph.trees[chunk % graph.trees.size()];
  const std::size_t own = task.wrapped(task.position() - root);
  Node node;
  if (tree.parent[own] != kNoRank) node.parent = task.at(root + tree.parent[own]);
  for (const int child : tree.children[own]) node.children.push_back(task.at(root + child));
  return node;
}

std::uint64_t trees_of(const Task& task) { return has_root(task.call.kind) ? 1 : task.graph->trees.size(); }
bool goes_up(const Task& task) { return reduces(task.call.kind); }
bool goes_down(const Task& task) { return task.call.kind != Collective::kReduce; }

// The number of chunks that a rank sends up before it receives the first result.
std::uint64_t delay(const Task& task) {
  if (!goes_up(task) || !goes_down(task)) return 0;
  std::uint64_t levels = 1;
  while ((1U << levels) < static_cast<unsigned>(task.nranks)) ++levels;
  return std::min(levels, task.chunks());
}

void up(const Task& task, std::uint64_t index, Program& program) {
  const Node node = node_of(task, index);
  const Task::Span chunk = task.chunk(index);
  const bool is_top = node.parent == kNoRank;
  // In a reduce only the root has an output. The other ranks keep partial sums in two slots of scratch memory: one
  // chunk may still be sent while the next is reduced.
  const bool to_output = task.call.kind == Collective::kAllReduce || is_top;
  const BufferLocation sum = to_output ? output_at(chunk.begin) : scratch_at((index % 2) * task.chunk_bytes);
  if (!to_output && index >= 2) program.sent(node.parent, 1);
  if (node.children.empty()) {
    if (task.scales()) program.copy(sum, input_at(chunk.begin), chunk.bytes);
    return program.send(node.parent, task.scales() ? sum : input_at(chunk.begin), chunk.bytes);
  }
  for (std::size_t i = 0; i < node.children.size(); ++i)
    program.receive(node.children[i], scratch_at((2 + i) * task.chunk_bytes), chunk.bytes);
  for (const int child : node.children) program.received(child);
  const std::span<BufferLocation> places =
      program.reduce(1, static_cast<int>(node.children.size()) + 1, chunk.bytes, is_top);
  places[0] = sum;
  places[1] = input_at(chunk.begin);
  for (std::size_t i = 2; i < places.size(); ++i) places[i] = scratch_at(i * task.chunk_bytes);
  if (!is_top) program.send(node.parent, sum, chunk.bytes);
}

void down(const Task& task, std::uint64_t index, Program& program) {
  const Node node = node_of(task, index);
  const Task::Span chunk = task.chunk(index);
  if (node.parent != kNoRank) {
    if (goes_up(task)) program.sent(node.parent);  // the result overwrites the partial sum that was sent up
    program.receive(node.parent, output_at(chunk.begin), chunk.bytes);
    program.received(node.parent);
  } else if (!goes_up(task) && !task.in_place) {
    program.copy(output_at(chunk.begin), input_at(chunk.begin), chunk.bytes);
  }
  const bool from_input = node.parent == kNoRank && !goes_up(task);
  for (const int child : node.children)
    program.send(child, from_input ? input_at(chunk.begin) : output_at(chunk.begin), chunk.bytes);
}

std::uint64_t pieces(const Task& task) { return task.chunks() + delay(task); }

std::uint64_t scratch(const Task& task) {
  if (!goes_up(task)) return 0;
  std::size_t children = 0;
  for (std::uint64_t tree = 0; tree < trees_of(task); ++tree)
    children = std::max(children, node_of(task, tree).children.size());
  return (2 + children) * task.chunk_bytes;
}

void write(const Task& task, std::uint64_t piece, Program& program) {
  if (goes_up(task) && piece < task.chunks()) up(task, piece, program);
  if (goes_down(task) && piece >= delay(task)) down(task, piece - delay(task), program);
  if (piece + 1 < pieces(task)) return;
  for (std::uint64_t tree = 0; tree < std::min(trees_of(task), task.chunks()); ++tree) {
    const Node node = node_of(task, tree);
    if (goes_up(task) && node.parent != kNoRank) program.sent(node.parent);
    if (goes_down(task)) {
      for (const int child : node.children) program.sent(child);
    }
  }
}

}  // namespace

const ProgramWriter kTrees{write, scratch, pieces};

}  // namespace slip::comm
