#include "comm/tuning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

namespace slip {
namespace {

// Large enough that a message's own cost does not count, small enough that the ranks of a chain soon all work.
// Direct all_reduce cuts a chunk into a slice for each rank.
constexpr std::uint64_t kChunkBytes = 512 << 10, kDirectChunkBytes = 1 << 20, kSliceBytes = 512 << 10;

constexpr double kReduceGbps = kMemoryGbps / 3;  // two in, one out

int log2_up(int count) { return std::bit_width(static_cast<unsigned>(count - 1)); }

}  // namespace

double predicted_us(Algorithm algorithm, Collective kind, std::uint64_t bytes, int nranks, const LinkRates& rates) {
  const double n = nranks, levels = log2_up(nranks), block = static_cast<double>(bytes) / (rates.gbps * 1e3);
  const double sum = reduces(kind) ? static_cast<double>(bytes) / (kReduceGbps * 1e3) : 0;     // of a block and another
  const double fill = std::min(block, static_cast<double>(kChunkBytes) / (rates.gbps * 1e3));  // of a pipeline's hop
  const bool all = kind == Collective::kAllReduce;
  switch (algorithm) {
    case Algorithm::kRing:
      if (all) return 2 * (n - 1) * (rates.latency_us + rates.message_us) + 2 * (n - 1) / n * block + (n - 1) / n * sum;
      if (kind == Collective::kBroadcast || kind == Collective::kReduce)
        return (n - 1) * (rates.latency_us + fill) + block - fill + sum;
      return (n - 1) * (rates.latency_us + rates.message_us + block + sum);
    case Algorithm::kTree:  // an inner rank takes from two and gives to two
      return (all ? 2 : 1) * levels * (rates.latency_us + fill) +
             (all          ? 2
              : nranks > 2 ? 2
                           : 1) *
                 (block - fill) +
             2 * sum;
    case Algorithm::kDoubling:
      return (levels + (std::has_single_bit(static_cast<unsigned>(nranks)) ? 0 : 1)) * (rates.latency_us + block + sum);
    case Algorithm::kDirect: {
      const double messages = (n - 2) * rates.message_us;
      if (all) return 2 * (rates.latency_us + messages) + 2 * (n - 1) / n * block + (n - 1) / n * sum;
      return rates.latency_us + messages + (n - 1) * (block + sum);
    }
    case Algorithm::kAuto: break;
  }
  return std::numeric_limits<double>::infinity();
}

Choice choose(const Call& call, int nranks, const LinkRates& rates, Algorithm wanted, bool rank_order, bool explain) {
  // Nothing to move, but all ranks come to it and ask for the same.
  const bool empty = call.block_bytes() == 0;
  const Collective kind = empty ? Collective::kBarrier : call.kind;
  Choice choice;
  double least = std::numeric_limits<double>::infinity();
  std::string said;
  for (const Recipe& recipe : recipes()) {
    if (recipe.kind != kind || (rank_order && !recipe.rank_order)) continue;
    const double us = predicted_us(recipe.algorithm, kind, call.block_bytes(), nranks, rates);
    if (explain) said += fmt::format("{}{} {:.1f} us", said.empty() ? "" : ", ", algorithm_name(recipe.algorithm), us);
    const bool forced = recipe.algorithm == wanted;
    if (!forced && us >= least) continue;
    choice.recipe = &recipe;
    least = forced ? -1 : us;
  }
  choice.chunk_bytes = choice.recipe->algorithm != Algorithm::kDirect ? kChunkBytes
                       : kind == Collective::kAllReduce               ? kSliceBytes * static_cast<std::uint64_t>(nranks)
                                                                      : kDirectChunkBytes;
  if (explain)
    choice.text = fmt::format("{} of {} bytes, {} ranks: {}: {}{}", collective_name(call.kind), call.block_bytes(),
                              nranks, said, algorithm_name(choice.recipe->algorithm), least < 0 ? " (asked for)" : "");
  return choice;
}

}  // namespace slip
