#include "comm/api/call.hpp"

#include <fmt/format.h>

namespace slip::comm {

// Signatures come from other processes, so the kind may be out of range.
const char* collective_name(Collective kind) {
  constexpr const char* kNames[] = {"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter",
                                    "all_to_all", "gather", "scatter",   "barrier",    "message"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Collective::kMessage) + 1);
  return kind <= Collective::kMessage ? kNames[static_cast<std::size_t>(kind)] : "unknown";
}

Blocks blocks_of(const Call& call, int rank, int nranks) {
  const auto all = static_cast<std::uint64_t>(nranks);
  const bool root = rank == call.root;
  switch (call.kind) {
    case Collective::kAllReduce: return {1, 1};
    case Collective::kReduce: return {1, root ? 1U : 0U};
    case Collective::kBroadcast: return {root ? 1U : 0U, 1};
    case Collective::kAllGather: return {1, all};
    case Collective::kReduceScatter: return {all, 1};
    case Collective::kAllToAll: return {all, all};
    case Collective::kGather: return {1, root ? all : 0};
    case Collective::kScatter: return {root ? all : 0, 1};
    case Collective::kBarrier:
    case Collective::kMessage: return {0, 0};
  }
  return {0, 0};
}

std::string Signature::text() const {
  const Collective kind = this->kind();
  const std::uint64_t number = rest & 0xffffffff;  // 0: not known, or several messages
  if (kind == Collective::kMessage) {
    const std::string text = fmt::format("send or recv of {} bytes", elements);
    return number == 0 ? text : fmt::format("{}, number {} between the two ranks", text, number);
  }
  const auto type = static_cast<DataType>(rest >> 52 & 0xff);
  const auto op = static_cast<ReduceOp>(rest >> 48 & 0xf);
  std::string result = collective_name(kind);
  if (kind != Collective::kBarrier) result += fmt::format(" of {} {}", elements, data_type_name(type));
  if (reduces(kind)) result += fmt::format(" by {}", reduce_op_name(op));
  if (has_root(kind)) result += fmt::format(", root {}", rest >> 32 & 0xffff);
  return number == 0 ? result : result + fmt::format(", call {}", number);
}

CallMismatch::CallMismatch(int rank, const Signature& mine, int their_rank, const Signature& theirs)
    : Error(ErrorCode::kMismatch,
            fmt::format("rank {} calls {}, rank {} calls {}: all ranks of a communicator must make the same calls in "
                        "the same order",
                        rank, mine.text(), their_rank, theirs.text()),
            {}),
      other_rank(their_rank),
      own(mine),
      other(theirs) {}

void require_same(int rank, const Signature& own, int other_rank, const Signature& other) {
  if (other != own) throw CallMismatch(rank, own, other_rank, other);
}

}  // namespace slip::comm
