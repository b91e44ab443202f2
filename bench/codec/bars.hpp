// The bars of the codec, and the weights that they use.
#pragma once

#include <vector>

#include "model/codec/tensor.hpp"
#include "support/harness.hpp"

namespace slip::bench {

void add_cpu_bars(Harness& harness);
void add_gpu_bars(Harness& harness);

// N(0, 0.02) and its compressed form. Made once for each type and size.
struct CodecWeights {
  std::vector<std::byte> weights;
  model::BlockTable table;
  model::EncodedBlocks blocks;

  double ratio() const { return static_cast<double>(weights.size()) / static_cast<double>(table.bytes()); }
};
const CodecWeights& codec_weights(DataType type, std::size_t blocks);

#if SLIP_HAS_CUDA
// Bytes of weights per second that the GPU decodes, checks included; 0: no GPU. Throws if the weights differ.
double gpu_decode_rate(const CodecWeights& weights, bool verify);
// Bytes per second that a copy within the GPU writes.
double gpu_copy_rate(std::size_t bytes);
#endif

}  // namespace slip::bench
