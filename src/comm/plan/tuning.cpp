#include "comm/plan/tuning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace slip::comm {
namespace {

// Chunks are large enough that the cost of a message is negligible, and small enough that the last rank of a chain
// starts early. The direct all_reduce cuts a chunk into one slice for each rank.
constexpr std::uint64_t kChunkBytes = 512 << 10, kDirectChunkBytes = 1 << 20, kSliceBytes = 512 << 10;

constexpr double kReduceGbps = kMemoryGbps / 3;  // of the result: for each value a core reads two and writes one

// A relay holds one chunk of each rank of its host for each receiver that it relays to: about one chunk for each rank
// of the communicator. kRelayBytes limits their sum, except that a chunk never gets smaller than kMinRelayChunk.
constexpr std::uint64_t kRelayBytes = 16 << 20, kMinRelayChunk = 16 << 10;

std::uint64_t relay_chunk_bytes(int nranks) {
  return std::clamp(kRelayBytes / static_cast<std::uint64_t>(nranks) / 64 * 64, kMinRelayChunk, kDirectChunkBytes);
}

std::uint64_t chunk_bytes(const Schedule& schedule, int nranks) {
  const auto n = static_cast<std::uint64_t>(nranks);
  if (schedule.algorithm == Algorithm::kRelay) return relay_chunk_bytes(nranks);
  if (schedule.algorithm != Algorithm::kDirect) return kChunkBytes;
  return schedule.kind == Collective::kAllReduce ? kSliceBytes * n : kDirectChunkBytes;
}

constexpr std::uint64_t kMinShare = 512 << 10;  // bytes of a channel: with fewer, latency would dominate

// The time in microseconds of an all_to_all on the busiest link of the topology. See AllToAllLoads.
double on_link(double load, std::uint64_t bytes) { return load * static_cast<double>(bytes) / 1e3; }

// The time through relays, in microseconds; infinity if no rank can relay for another one of its host. A relay sends
// one message to each of its receivers. All blocks for other hosts are copied twice more within a host. If the topology
// is known, its busiest link within a host may take longer than these copies. The three steps of the relay algorithm
// follow each other in each chunk.
double relayed_us(std::uint64_t bytes, const TuningInputs& tuning) {
  if (tuning.hosts < 2 || tuning.hosts == tuning.nranks) return std::numeric_limits<double>::infinity();
  const LinkRates& rates = tuning.rates;
  const AllToAllLoads& loads = tuning.loads;
  const double n = tuning.nranks, each = n / tuning.hosts, far = n - each;
  const auto size = static_cast<double>(bytes);
  const double messages = (far / each - 1) * rates.message_us + n * kPipeMessageUs;
  const double between = std::max((n - 1) * size / (rates.gbps * 1e3), on_link(loads.between, bytes));
  const double copies = 2 * far * size / (rates.host_gbps * 1e3);
  const double within = std::max(copies, on_link(loads.handed_over + loads.handed_on, bytes));
  const double chunks = std::ceil(size / static_cast<double>(relay_chunk_bytes(tuning.nranks)));
  return std::max(chunks, 1.0) * (rates.latency_us + rates.host_latency_us) + messages + between + within;
}

int log2_up(int count) { return std::bit_width(static_cast<unsigned>(count - 1)); }

}  // namespace

double predicted_us(Algorithm algorithm, Collective kind, std::uint64_t bytes, const TuningInputs& tuning) {
  const int nranks = tuning.nranks;
  const LinkRates& rates = tuning.rates;
  const double n = nranks, levels = log2_up(nranks), block = static_cast<double>(bytes) / (rates.gbps * 1e3);
  const double sum = reduces(kind) ? static_cast<double>(bytes) / (kReduceGbps * 1e3) : 0;  // us to add two blocks
  const double fill =
      std::min(block, static_cast<double>(kChunkBytes) / (rates.gbps * 1e3));  // us of one chunk on one hop
  const bool all = kind == Collective::kAllReduce;
  switch (algorithm) {
    case Algorithm::kRing:
      if (all) return 2 * (n - 1) * (rates.latency_us + rates.message_us) + 2 * (n - 1) / n * block + (n - 1) / n * sum;
      if (kind == Collective::kBroadcast || kind == Collective::kReduce)
        return (n - 1) * (rates.latency_us + fill) + block - fill + sum;
      return (n - 1) * (rates.latency_us + rates.message_us + block + sum);
    case Algorithm::kTree:  // an inner rank receives from two ranks and sends to two
      return (all ? 2 : 1) * levels * (rates.latency_us + fill) + (all || nranks > 2 ? 2 : 1) * (block - fill) +
             2 * sum;
    case Algorithm::kDoubling:
      return (levels + (std::has_single_bit(static_cast<unsigned>(nranks)) ? 0 : 1)) * (rates.latency_us + block + sum);
    case Algorithm::kDirect: {
      const double messages = (n - 2) * rates.message_us;
      if (all) return 2 * (rates.latency_us + messages) + 2 * (n - 1) / n * block + (n - 1) / n * sum;
      const double link = kind == Collective::kAllToAll ? on_link(tuning.loads.direct, bytes) : 0;
      return rates.latency_us + messages + std::max((n - 1) * block, link) + (n - 1) * sum;
    }
    case Algorithm::kRelay: return relayed_us(bytes, tuning);
    case Algorithm::kAuto: break;
  }
  return std::numeric_limits<double>::infinity();
}

int useful_channels(int hosts, int each, bool oversubscribed) {
  constexpr int kMaxChannels = 4;
  return hosts < 2 || oversubscribed ? 1 : std::clamp(each, 1, kMaxChannels);
}

ScheduleChoice choose(const Call& call, const TuningInputs& tuning, Algorithm wanted, bool rank_order, bool explain) {
  const int nranks = tuning.nranks;
  // A call without bytes still synchronises the ranks and compares their calls: it runs as a barrier.
  const bool empty = call.block_bytes() == 0;
  const Collective kind = empty ? Collective::kBarrier : call.kind;
  ScheduleChoice choice;
  double best_us = std::numeric_limits<double>::infinity();
  std::string said;
  for (const Schedule& schedule : schedules()) {
    if (schedule.kind != kind || (rank_order && !schedule.rank_order)) continue;
    const double us = predicted_us(schedule.algorithm, kind, call.block_bytes(), tuning);
    if (explain)
      said += fmt::format("{}{} {:.1f} us", said.empty() ? "" : ", ", algorithm_name(schedule.algorithm), us);
    const bool forced = schedule.algorithm == wanted;
    if (!forced && us >= best_us) continue;
    choice.schedule = &schedule;
    best_us = forced ? -1 : us;
  }
  choice.chunk_bytes = chunk_bytes(*choice.schedule, nranks);
  if (choice.schedule->by_channels) {
    const auto by_size = static_cast<int>(std::min<std::uint64_t>(call.block_bytes() / kMinShare, 1000));
    choice.channels = std::clamp(by_size, tuning.min_channels, tuning.max_channels);
    // Rounds down to a multiple of the rails, so that each channel is bound to one rail. Otherwise the channels would
    // be striped over all rails, which needs one more set of connections (see LinkRails).
    const int rest = choice.channels % tuning.rails;
    if (choice.channels > tuning.rails && choice.channels - rest >= tuning.min_channels) choice.channels -= rest;
  }
  if (explain)
    choice.text =
        fmt::format("{} of {} bytes, {} ranks: {}: {}{}, {} of {} to {} channels", collective_name(call.kind),
                    call.block_bytes(), nranks, said, algorithm_name(choice.schedule->algorithm),
                    best_us < 0 ? " (requested)" : "", choice.channels, tuning.min_channels, tuning.max_channels);
  return choice;
}

}  // namespace slip::comm
