// Call: one collective call as a rank makes it. All ranks of a communicator must make the same calls in the same order.
// Each call has a signature of 16 bytes. Ranks compare signatures and report a mismatch instead of a wrong result.
#pragma once

#include <cstdint>
#include <string>

#include "comm/reduce/reduce.hpp"
#include "slip/data_type.hpp"
#include "slip/error.hpp"
#include "slip/reduction.hpp"

namespace slip::comm {

enum class Collective : std::uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kMessage,  // sends and receives, each between two ranks only
};

const char* collective_name(Collective kind);

struct Call {
  Collective kind = Collective::kBarrier;
  DataType type = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::uint64_t elements = 0;  // of a block: the smaller of a rank's input and output
  ReduceScale scale = {};      // kPreMulSum: this rank's factor

  std::uint64_t block_bytes() const { return elements * bytes_of(type); }
  friend bool operator==(const Call&, const Call&) = default;
};

// The number of blocks in the input and in the output of a rank.
struct Blocks {
  std::uint64_t in = 0, out = 0;
};
Blocks blocks_of(const Call& call, int rank, int nranks);

constexpr bool reduces(Collective kind) {
  return kind == Collective::kAllReduce || kind == Collective::kReduce || kind == Collective::kReduceScatter;
}
constexpr bool has_root(Collective kind) {
  return kind == Collective::kReduce || kind == Collective::kBroadcast || kind == Collective::kGather ||
         kind == Collective::kScatter;
}

// Everything that must be equal on all ranks. The call number reveals a rank that skipped a call.
struct Signature {
  std::uint64_t elements = 0;
  std::uint64_t rest = 0;  // kind, type, op, root and the low 32 bits of the number

  static Signature of(const Call& call, std::uint64_t number) {  // inline: each call needs it
    const auto kind = static_cast<std::uint64_t>(call.kind);
    const auto type = static_cast<std::uint64_t>(call.type);
    const auto op = reduces(call.kind) ? static_cast<std::uint64_t>(call.op) : 0;
    const auto root = has_root(call.kind) ? static_cast<std::uint64_t>(call.root) : 0;
    return {call.elements, kind << 60 | type << 52 | op << 48 | root << 32 | (number & 0xffffffff)};
  }
  // `number`: of the message between the two ranks, from 1. 0: not known, or `bytes` are those of several messages.
  static Signature of_message(std::uint64_t bytes, std::uint64_t number) {
    return of({.kind = Collective::kMessage, .type = DataType::kU8, .elements = bytes}, number);
  }
  Signature without_number() const { return {elements, rest & ~std::uint64_t{0xffffffff}}; }
  friend bool operator==(const Signature&, const Signature&) = default;
  Collective kind() const { return static_cast<Collective>(rest >> 60); }
  std::uint32_t number() const { return static_cast<std::uint32_t>(rest); }  // the low 32 bits
  std::string text() const;                                                  // "all_reduce of 1024 f32 by sum, call 7"
};
static_assert(sizeof(Signature) == 16);

// Two ranks made different calls. The text names both.
struct CallMismatch : Error {
  CallMismatch(int rank, const Signature& own, int other_rank, const Signature& other);
  int other_rank;
  Signature own, other;
};

// Throws CallMismatch if the other rank made another call than this one.
void require_same(int rank, const Signature& own, int other_rank, const Signature& other);

}  // namespace slip::comm
