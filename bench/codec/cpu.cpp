// One core: decoding and encoding, and the ratio.
#include <fmt/format.h>
#include <time.h>

#include <cstring>
#include <stdexcept>

#include "bars.hpp"

namespace slip::bench {
namespace {

constexpr DataType kTypes[] = {DataType::kBF16, DataType::kF16, DataType::kF32};
constexpr std::size_t kCachedBlocks = 24;    // stay in the second-level cache, as a slot of the loader does
constexpr std::size_t kMemoryBlocks = 2048;  // 32 MiB of bf16: most of it comes from memory

// Time of this thread on a core: other programs on the machine do not count.
class CoreTimer {
 public:
  double elapsed_s() const { return now() - start_; }

 private:
  static double now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  double start_ = now();
};

// Decodes all blocks once, into the same memory each time, and returns bytes of weights per second.
double decode_rate(const CodecWeights& of, std::vector<std::byte>& into) {
  const model::Stores stores = model::stores_for(into.size());
  const CoreTimer timer;
  for (std::size_t block = 0; block < of.table.blocks(); ++block) {
    const std::span part(of.blocks.data() + of.table.begin(block), of.table.block_bytes(block));
    const model::BlockFault fault = model::decode_block(of.table.split(), part, of.table.id(block),
                                                        into.data() + of.table.weights_begin(block), stores);
    if (fault != model::BlockFault::kNone) throw std::runtime_error(model::fault_text(fault));
  }
  clobber_memory();
  return static_cast<double>(of.weights.size()) / timer.elapsed_s();
}

double copy_rate(const std::vector<std::byte>& from, std::vector<std::byte>& into) {
  const CoreTimer timer;
  for (std::size_t at = 0; at < from.size(); at += 16384) std::memcpy(into.data() + at, from.data() + at, 16384);
  clobber_memory();
  return static_cast<double>(from.size()) / timer.elapsed_s();
}

// The best of some runs: other programs can only make a run longer.
template <class Rate>
double best_of(int runs, const Rate& rate) {
  double best = 0;
  for (int i = 0; i < runs; ++i) best = std::max(best, rate());
  return best;
}

double best_decode_rate(DataType type, std::size_t blocks, int runs) {
  const CodecWeights& of = codec_weights(type, blocks);
  std::vector<std::byte> into(of.weights.size());
  const double rate = best_of(runs, [&] { return decode_rate(of, into); });
  if (into != of.weights) throw std::runtime_error("the decoded weights differ");
  return rate;
}

// Target: 4 GB/s, also from memory to memory. There the rate of a copy of the same weights is the upper limit.
void add_decode_bars(Harness& harness, DataType type) {
  harness.add({.area = "codec",
               .name = fmt::format("decode_{}_one_core", data_type_name(type)),
               .unit = Unit::kBytesPerSecond,
               .better = Better::kHigher,
               .ours =
                   [type](Context& context) {
                     context.note(fmt::format("{} loops", model::loops_name(model::best_loops())));
                     return best_decode_rate(type, kCachedBlocks, 300);
                   },
               .limit = 4e9,
               .max_repeat = 5});
  harness.add({.area = "codec",
               .name = fmt::format("decode_{}_one_core_from_memory", data_type_name(type)),
               .unit = Unit::kBytesPerSecond,
               .better = Better::kHigher,
               .ours =
                   [type](Context& context) {
                     const CodecWeights& of = codec_weights(type, kMemoryBlocks);
                     std::vector<std::byte> into(of.weights.size());
                     const double copy = best_of(10, [&] { return copy_rate(of.weights, into); });
                     context.note(fmt::format("memcpy of the weights: {:.2f} GB/s", copy / 1e9));
                     return best_decode_rate(type, kMemoryBlocks, 10);
                   },
               .limit = 4e9,
               .max_repeat = 3});
}

double encode_rate(DataType type) {
  const CodecWeights& of = codec_weights(type, kCachedBlocks);
  std::vector<std::byte> into(model::max_block_bytes(of.table.split()));
  return best_of(30, [&] {
    const CoreTimer timer;
    for (std::size_t block = 0; block < of.table.blocks(); ++block)
      static_cast<void>(model::encode_block(of.table.split(), of.weights.data() + of.table.weights_begin(block),
                                            of.table.id(block).weights, into.data()));
    return static_cast<double>(of.weights.size()) / timer.elapsed_s();
  });
}

}  // namespace

void add_cpu_bars(Harness& harness) {
  // What 3 bits for 7 exponents and 4 bits for escapes give; see docs/compression.md.
  const std::pair<DataType, double> ratios[] = {
      {DataType::kBF16, 1.43}, {DataType::kF16, 1.12}, {DataType::kF32, 1.17}};
  for (const auto& [type, min_ratio] : ratios)
    harness.add({.area = "codec",
                 .name = fmt::format("ratio_{}", data_type_name(type)),
                 .unit = Unit::kCount,
                 .better = Better::kHigher,
                 .ours =
                     [type = type](Context& context) {
                       const double ratio = codec_weights(type, kMemoryBlocks).ratio();
                       context.note(fmt::format("{:.4f} for N(0, 0.02), with the table of blocks", ratio));
                       return ratio;
                     },
                 .limit = min_ratio,
                 .max_repeat = 1});
  for (const DataType type : kTypes) add_decode_bars(harness, type);
  for (const DataType type : kTypes)
    harness.add({.area = "codec",
                 .name = fmt::format("encode_{}_one_core", data_type_name(type)),
                 .unit = Unit::kBytesPerSecond,
                 .better = Better::kHigher,
                 .ours = [type](Context&) { return encode_rate(type); },
                 .limit = 0.25e9,  // a 7B model in a minute on a core
                 .max_repeat = 3});
}

}  // namespace slip::bench
