// Algorithms: how ranks do a collective by messages between pairs of ranks. MessageProgramBuilder uses them.
//
// Each algorithm has ProgramWriters, in the .cpp file with its name, that write the program of one rank. A long program
// is written in pieces, usually one for each chunk, so that its memory does not grow with the call. A Schedule names
// the ProgramWriter for one collective; the table of schedules is in algorithm.cpp.
#pragma once

#include <algorithm>

#include "comm/api/call.hpp"
#include "comm/placement/comm_graph.hpp"
#include "comm/plan/primitive.hpp"
#include "slip/communicator.hpp"
#include "slip/topology.hpp"

namespace slip::comm {

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
  // kPreMulSum: a rank multiplies its input by its factor when it copies or reduces the input, not when it sends it.
  bool scales() const { return reduces(call.kind) && call.op == ReduceOp::kPreMulSum; }
  // Positions on the ring, modulo nranks.
  std::size_t wrapped(int position) const { return static_cast<std::size_t>((position % nranks + nranks) % nranks); }
  int position() const { return graph->position[static_cast<std::size_t>(rank)]; }
  int root_position() const { return graph->position[static_cast<std::size_t>(call.root)]; }
  int at(int position) const { return graph->order[wrapped(position)]; }  // the rank at the position
  int next() const { return at(position() + 1); }
  int previous() const { return at(position() - 1); }
  struct Span {  // in bytes
    std::uint64_t begin = 0, bytes = 0;
    std::uint64_t end() const { return begin + bytes; }
  };
  Span share() const;  // the channel's bytes of a block: whole cache lines except at the end; may be empty
  std::uint64_t chunks() const { return (share().bytes + chunk_bytes - 1) / chunk_bytes; }
  Span chunk(std::uint64_t index) const {  // a part of the share
    const Span all = share();
    const std::uint64_t begin = all.begin + index * chunk_bytes;
    return {begin, std::min(chunk_bytes, all.end() - begin)};
  }
};

struct ProgramWriter {
  // Appends the steps of one piece to the program. The rank runs the pieces in order.
  void (*write)(const Task& task, std::uint64_t piece, Program& program);
  // The bytes of scratch memory, and the number of pieces, of the rank's program.
  std::uint64_t (*scratch)(const Task& task) = [](const Task&) { return std::uint64_t{0}; };
  std::uint64_t (*pieces)(const Task& task) = [](const Task& task) { return task.chunks(); };
};
extern const ProgramWriter kRingLoops, kRingBroadcast, kRingReduce, kTrees, kDoublingAllReduce, kDoublingBarrier,
    kDirectCopies, kDirectReductions, kRelayAllToAll;

// How an algorithm does one kind of collective.
struct Schedule {
  Algorithm algorithm;
  Collective kind;
  // Values are reduced in the order of the ranks, or not at all. So the bits of the result do not depend on the size of
  // the call, the algorithm or the placement of the ranks.
  bool rank_order;
  bool by_channels;  // the call may use several channels, each with its own graph and a share of the data
  const ProgramWriter* program;
};

const Schedule* find_schedule(Algorithm algorithm, Collective kind);  // null: the algorithm cannot do the collective
std::span<const Schedule> schedules();

}  // namespace slip::comm
