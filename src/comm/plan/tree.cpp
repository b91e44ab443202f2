// The tree algorithm: each rank reduces a chunk with those of its children and sends it to its parent; the result is
// sent down the same tree. all_reduce alternates between two trees, and each rank is a leaf in at least one of them.
// Collectives with a root use one tree with the same root.
//
// Several chunks are under way at once. Each piece of a program is one step; all ranks make the same steps in the same
// order. A message that is sent in step s is awaited in step s + kHop. Let a tree have d levels below the top, which is
// level 0. A rank at level l sends the partial sum of chunk c up in step c + kHop (d - l), and the result down in step
// c + kHop (d + l). A rank begins to receive a message in the step in which it is sent. Two ranks may be parent and
// child in one tree, and the reverse in the other: even then both use the same order of their messages.
#include <algorithm>

#include "comm/plan/algorithm.hpp"

namespace slip::comm {
namespace {

// With 1, a rank would wait for each message while the message crosses the link. With 2, another message crosses
// meanwhile.
constexpr std::uint64_t kHop = 2;

bool goes_up(const Task& task) { return reduces(task.call.kind); }
bool goes_down(const Task& task) { return task.call.kind != Collective::kReduce; }
std::uint64_t trees_of(const Task& task) { return has_root(task.call.kind) ? 1 : task.graph->trees.size(); }

// This rank's neighbours in a tree, and the steps in which it sends.
class Node {
 public:
  Node(const Task& task, std::uint64_t tree) : task_(task) {
    const bool rooted = has_root(task.call.kind);
    root_ = rooted ? task.root_position() : 0;
    tree_ = rooted ? &task.graph->rooted : &task.graph->trees[tree];
    own_ = task.wrapped(task.position() - root_);
  }
  bool is_top() const { return tree_->parent[own_] == kNoRank; }
  int parent() const { return is_top() ? kNoRank : task_.at(root_ + tree_->parent[own_]); }
  std::size_t children() const { return tree_->children[own_].size(); }
  int child(std::size_t index) const { return task_.at(root_ + tree_->children[own_][index]); }
  bool has_child(int rank) const {
    return std::ranges::any_of(tree_->children[own_], [&](int place) { return task_.at(root_ + place) == rank; });
  }
  // Chunk c goes up in step c + up_delay(), and down in step c + down_delay().
  std::uint64_t up_delay() const { return kHop * static_cast<std::uint64_t>(tree_->depth - tree_->level[own_]); }
  std::uint64_t down_delay() const {
    return kHop * static_cast<std::uint64_t>((goes_up(task_) ? tree_->depth : 0) + tree_->level[own_]);
  }

 private:
  const Task& task_;
  const LeveledTree* tree_ = nullptr;
  int root_ = 0;
  std::size_t own_ = 0;
};

// One chunk that moves up or down one level of a tree, in one step.
struct Move {
  bool up = false;
  std::uint64_t tree = 0, chunk = 0;
  std::uint64_t number(const Task& task) const { return (up ? 0 : trees_of(task)) + tree; }  // in the step
};
// Calls `function` for each move of this rank in step `step + ahead`. The order is the same on all ranks, which send
// and begin to receive in this order: first up, then down; in each direction tree by tree.
template <class Function>
void for_each_move(const Task& task, std::uint64_t step, std::uint64_t ahead, Function function) {
  const std::uint64_t trees = trees_of(task), chunks = task.chunks();
  for (const bool up : {true, false}) {
    if (up ? !goes_up(task) : !goes_down(task)) continue;
    for (std::uint64_t tree = 0; tree < trees; ++tree) {
      const Node node(task, tree);
      const std::uint64_t delay = up ? node.up_delay() : node.down_delay();
      if (step + ahead < delay) continue;
      const std::uint64_t chunk = step + ahead - delay;
      if (chunk < chunks && chunk % trees == tree) function(Move{up, tree, chunk}, node);
    }
  }
}

// Whether this rank sends a message of the move to the peer, or receives one from the peer first.
bool sends(const Move& move, const Node& node, int peer) {
  return move.up ? node.parent() == peer : node.has_child(peer);
}
bool receives(const Move& move, const Node& node, int peer) {
  return move.up ? node.has_child(peer) : node.parent() == peer;
}

// The number of messages to the peer, or from it (`ahead`: kHop), that this rank begins after the message `number` of
// the step `first`, up to the step `last`.
std::uint64_t begun_after(const Task& task, std::uint64_t first, std::uint64_t number, std::uint64_t last, int peer,
                          std::uint64_t ahead) {
  std::uint64_t count = 0;
  for (std::uint64_t step = first; step <= last; ++step) {
    for_each_move(task, step, ahead, [&](const Move& move, const Node& node) {
      if (step == first && move.number(task) <= number) return;
      count += (ahead == 0 ? sends(move, node, peer) : receives(move, node, peer)) ? 1 : 0;
    });
  }
  return count;
}

// Waits for a message that this rank began to receive kHop steps before, and not for later ones.
void await(const Task& task, std::uint64_t step, const Move& move, int peer, Program& program) {
  program.received(peer, begun_after(task, step - kHop, move.number(task), step, peer, kHop));
}

// Scratch memory for the partial sums of the children: slots_of() slots for each child in each tree, used in turn. In
// front of them are two slots for this rank's own partial sums in a reduce.
std::uint64_t slots_of(const Task& task) { return kHop / trees_of(task) + 1; }
BufferLocation slot_of(const Task& task, const Move& move, const Node& node, std::size_t child) {
  std::uint64_t before = 2;
  for (std::uint64_t tree = 0; tree < move.tree; ++tree) before += Node(task, tree).children() * slots_of(task);
  const std::uint64_t turn = move.chunk / trees_of(task) % slots_of(task);
  return scratch_at((before + turn * node.children() + child) * task.chunk_bytes);
}

void begin_to_receive(const Task& task, std::uint64_t step, const Move& move, const Node& node, Program& program) {
  const Task::Span chunk = task.chunk(move.chunk);
  if (move.up) {
    for (std::size_t i = 0; i < node.children(); ++i)
      program.receive(node.child(i), slot_of(task, move, node, i), chunk.bytes);
    return;
  }
  if (node.is_top()) return;
  const int parent = node.parent();
  if (goes_up(task)) {  // the result overwrites the partial sum that was sent up
    const std::uint64_t then = move.chunk + node.up_delay(), number = Move{true, move.tree, 0}.number(task);
    program.sent(parent, begun_after(task, then, number, step - 1, parent, 0));
  }
  program.receive(parent, output_at(chunk.begin), chunk.bytes);
}

void go_up(const Task& task, std::uint64_t step, const Move& move, const Node& node, Program& program) {
  const Task::Span chunk = task.chunk(move.chunk);
  const bool is_top = node.is_top();
  // In a reduce only the root has an output. The other ranks keep partial sums in two slots of scratch memory: one
  // chunk may still be sent while the next is reduced.
  const bool to_output = task.call.kind == Collective::kAllReduce || is_top;
  const BufferLocation sum = to_output ? output_at(chunk.begin) : scratch_at((move.chunk % 2) * task.chunk_bytes);
  if (!to_output && move.chunk >= 2) program.sent(node.parent(), 1);
  if (node.children() == 0) {
    if (task.scales()) program.copy(sum, input_at(chunk.begin), chunk.bytes);
    return program.send(node.parent(), task.scales() ? sum : input_at(chunk.begin), chunk.bytes);
  }
  for (std::size_t i = 0; i < node.children(); ++i) await(task, step, move, node.child(i), program);
  const std::span<BufferLocation> places =
      program.reduce(1, static_cast<int>(node.children()) + 1, chunk.bytes, is_top);
  places[0] = sum;
  places[1] = input_at(chunk.begin);
  for (std::size_t i = 0; i < node.children(); ++i) places[2 + i] = slot_of(task, move, node, i);
  if (!is_top) program.send(node.parent(), sum, chunk.bytes);
}

void go_down(const Task& task, std::uint64_t step, const Move& move, const Node& node, Program& program) {
  const Task::Span chunk = task.chunk(move.chunk);
  if (!node.is_top()) await(task, step, move, node.parent(), program);
  else if (!goes_up(task) && !task.in_place) program.copy(output_at(chunk.begin), input_at(chunk.begin), chunk.bytes);
  const bool from_input = node.is_top() && !goes_up(task);
  for (std::size_t i = 0; i < node.children(); ++i)
    program.send(node.child(i), from_input ? input_at(chunk.begin) : output_at(chunk.begin), chunk.bytes);
}

std::uint64_t pieces(const Task& task) {
  std::uint64_t more = 0;
  for (std::uint64_t tree = 0; tree < std::min(trees_of(task), task.chunks()); ++tree) {
    const Node node(task, tree);
    more = std::max(more, goes_down(task) ? node.down_delay() : node.up_delay());
  }
  return task.chunks() + more;
}

std::uint64_t tree_scratch(const Task& task) {
  if (!goes_up(task)) return 0;
  std::uint64_t slots = 2;
  for (std::uint64_t tree = 0; tree < trees_of(task); ++tree) slots += Node(task, tree).children() * slots_of(task);
  return slots * task.chunk_bytes;
}

void write_tree(const Task& task, std::uint64_t step, Program& program) {
  for_each_move(task, step, kHop,
                [&](const Move& move, const Node& node) { begin_to_receive(task, step, move, node, program); });
  for_each_move(task, step, 0, [&](const Move& move, const Node& node) {
    if (move.up) go_up(task, step, move, node, program);
    else go_down(task, step, move, node, program);
  });
  if (step + 1 < pieces(task)) return;
  for (std::uint64_t tree = 0; tree < std::min(trees_of(task), task.chunks()); ++tree) {
    const Node node(task, tree);
    if (goes_up(task) && !node.is_top()) program.sent(node.parent());
    if (goes_down(task)) {
      for (std::size_t i = 0; i < node.children(); ++i) program.sent(node.child(i));
    }
  }
}

}  // namespace

const ProgramWriter kTrees{write_tree, tree_scratch, pieces};

}  // namespace slip::comm
