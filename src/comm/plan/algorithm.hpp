// Algorithms: how ranks do a collective by messages between pairs of ranks. MessageProgramBuilder uses them.
//
// Each algorithm has functions that write the program of one rank, piece by piece. They are in the .cpp file with the
// name of the algorithm. A Schedule names the functions for one collective; the table is in algorithm.cpp.
#pragma once

#include <string_view>
#include <vector>

#include "comm/api/call.hpp"
#include "comm/placement/comm_graph.hpp"
#include "comm/plan/primitive.hpp"
#include "slip/communicator.hpp"
#include "slip/topology.hpp"

namespace slip {

// The input of an algorithm: one call, on one rank and one channel.
struct Task {
  Call call;
  int rank = 0, nranks = 1;
  bool in_place = false;
  std::uint64_t chunk_bytes = 0;  // the maximum size of a chunk; a multiple of 64
  const CommGraph* graph = nullptr;
  int channel = 0, channels = 1;  // each channel moves its share of every block

  std::uint64_t block() const { return call.block_bytes(); }
  bool is_root() const { return rank == call.root; }
  bool scales() const { return reduces(call.kind) && call.op == ReduceOp::kPreMulSum; }
  int position() const { return graph->position[static_cast<std::size_t>(rank)]; }
  int at(int position) const {  // the rank at a position of the ring, modulo nranks
    return graph->order[static_cast<std::size_t>((position % nranks + nranks) % nranks)];
  }
  struct Span {  // in bytes
    std::uint64_t begin = 0, bytes = 0;
    std::uint64_t end() const { return begin + bytes; }
  };
  Span share() const;  // the channel's bytes of a block: whole cache lines except at the end; may be empty
  std::uint64_t chunks() const { return (share().bytes + chunk_bytes - 1) / chunk_bytes; }
  Span chunk(std::uint64_t index) const;  // a part of the share
};

// How an algorithm does one kind of collective.
struct Schedule {
  Algorithm algorithm;
  Collective kind;
  bool rank_order;   // values are reduced in the order of the ranks (or not at all), so the result has the same bits
                     // always
  bool by_channels;  // the call may use several channels, each with its own graph and a share of the data
  std::uint64_t (*pieces)(const Task& task);  // the number of pieces of the rank's program
  // Appends the steps of one piece to the program. The rank runs the pieces in order.
  void (*write)(const Task& task, std::uint64_t piece, Program& program);
  std::uint64_t (*scratch)(const Task& task);  // bytes
};

const Schedule* find_schedule(Algorithm algorithm, Collective kind);  // null: the algorithm cannot do the collective
std::span<const Schedule> schedules();

inline BufferLocation input_at(std::uint64_t offset) { return {BufferSpace::kInput, 0, offset}; }
inline BufferLocation output_at(std::uint64_t offset) { return {BufferSpace::kOutput, 0, offset}; }
inline BufferLocation scratch_at(std::uint64_t offset) { return {BufferSpace::kScratch, 0, offset}; }

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
