// Algorithms: how a collective is done by messages between two ranks each. Each is a function that writes a rank's
// program, piece by piece, and a row of the table in algorithm.cpp.
#pragma once

#include <string_view>
#include <vector>

#include "comm/api/call.hpp"
#include "comm/placement/comm_graph.hpp"
#include "comm/plan/primitive.hpp"
#include "slip/communicator.hpp"
#include "slip/topology.hpp"

namespace slip {

// A call as an algorithm sees it.
struct Task {
  Call call;
  int rank = 0, nranks = 1;
  bool in_place = false;
  std::uint64_t chunk_bytes = 0;  // at most; a multiple of 64
  const CommGraph* graph = nullptr;
  int channel = 0, channels = 1;  // each moves its share of every block

  std::uint64_t block() const { return call.block_bytes(); }
  bool is_root() const { return rank == call.root; }
  bool scales() const { return reduces(call.kind) && call.op == ReduceOp::kPreMulSum; }
  int position() const { return graph->position[static_cast<std::size_t>(rank)]; }
  int at(int position) const {  // counted round and round
    return graph->order[static_cast<std::size_t>((position % nranks + nranks) % nranks)];
  }
  struct Span {
    std::uint64_t begin = 0, bytes = 0;
    std::uint64_t end() const { return begin + bytes; }
  };
  Span share() const;  // of a block: whole lines of the cache but for the last; nothing, if there are not enough
  std::uint64_t chunks() const { return (share().bytes + chunk_bytes - 1) / chunk_bytes; }
  Span chunk(std::uint64_t index) const;  // of the share
};

struct Schedule {
  Algorithm algorithm;
  Collective kind;
  bool rank_order;   // values are reduced in the order of the ranks
  bool by_channels;  // the graph is what counts, so there may be several, each with a share of the data
  std::uint64_t (*pieces)(const Task& task);
  void (*write)(const Task& task, std::uint64_t piece, Program& program);
  std::uint64_t (*scratch)(const Task& task);  // bytes
};

const Schedule* find_schedule(Algorithm algorithm, Collective kind);  // null: it cannot do that
std::span<const Schedule> schedules();

inline BufferLocation input_at(std::uint64_t offset) { return {BufferSpace::kInput, 0, offset}; }
inline BufferLocation output_at(std::uint64_t offset) { return {BufferSpace::kOutput, 0, offset}; }
inline BufferLocation scratch_at(std::uint64_t offset) { return {BufferSpace::kScratch, 0, offset}; }

// The writers; see their files.
namespace ring {
std::uint64_t loops(const Task& task);
void write_loop(const Task& task, std::uint64_t loop, Program& program);
std::uint64_t loop_scratch(const Task& task);
std::uint64_t chain_pieces(const Task& task);
void write_broadcast(const Task& task, std::uint64_t piece, Program& program);
void write_reduce(const Task& task, std::uint64_t piece, Program& program);
std::uint64_t chain_scratch(const Task& task);
}  // namespace ring
namespace tree {
std::uint64_t pieces(const Task& task);
void write(const Task& task, std::uint64_t piece, Program& program);
std::uint64_t scratch(const Task& task);
}  // namespace tree
namespace doubling {
std::uint64_t pieces(const Task& task);
void write_all_reduce(const Task& task, std::uint64_t piece, Program& program);
void write_barrier(const Task& task, std::uint64_t piece, Program& program);
std::uint64_t scratch(const Task& task);
}  // namespace doubling
namespace direct {
std::uint64_t pieces(const Task& task);
void write_copies(const Task& task, std::uint64_t piece, Program& program);
void write_reductions(const Task& task, std::uint64_t piece, Program& program);
std::uint64_t scratch(const Task& task);
}  // namespace direct
namespace relay {
std::uint64_t pieces(const Task& task);
void write(const Task& task, std::uint64_t piece, Program& program);
std::uint64_t scratch(const Task& task);
}  // namespace relay

}  // namespace slip
