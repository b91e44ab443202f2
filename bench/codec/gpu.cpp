// The GPU: decoding from device memory to device memory, as the weight loader would.
#include <fmt/format.h>

#include "bars.hpp"

namespace slip::bench {

void add_gpu_bars(Harness& harness) {
  constexpr std::size_t kBlocks = 16384;  // 256 MiB of bf16: more than any second-level cache
  for (const auto& [type, min_ratio] :
       {std::pair{DataType::kBF16, 1e12}, std::pair{DataType::kF16, 1e12}, std::pair{DataType::kF32, 1e12}}) {
    harness.add({.area = "codec",
                 .name = fmt::format("gpu_decode_{}", data_type_name(type)),
                 .unit = Unit::kBytesPerSecond,
                 .better = Better::kHigher,
                 .ours = [type = type](Context& context) -> std::optional<double> {
#if SLIP_HAS_CUDA
                   const std::size_t blocks = context.quick() ? kBlocks / 8 : kBlocks;
                   const double copy = gpu_copy_rate(blocks * 8192 * bytes_of(type));
                   if (copy == 0) return context.skip("no GPU");
                   const CodecWeights& of = codec_weights(type, blocks);
                   const double rate = gpu_decode_rate(of, true), unchecked = gpu_decode_rate(of, false);
                   context.note(fmt::format("ratio {:.3f}; without checks {}; a copy of the weights within the GPU {}",
                                            of.ratio(), format_bytes_per_second(unchecked),
                                            format_bytes_per_second(copy)));
                   return rate;
#else
                   return context.skip("a build without CUDA");
#endif
                 },
                 .limit = min_ratio,
                 .max_repeat = 5});
  }
}

}  // namespace slip::bench
