// The kernel that decodes blocks of a compressed tensor on a device.
//
//   Range blocks, checksums, ends;  // bytes of blocks [first, first + count), their checksums and ends of the
//   BlockTable stream.launch(decompress_kernel(), {{blocks, checksums, ends}, {weights, report}, sizes.scalars()},
//   cost);
//
// For a block with a fault, the kernel writes no weight and reports the block's number. The ranges may contain any
// bytes: the kernel reads and writes nothing outside of them.
#pragma once

#include <optional>
#include <vector>

#include "model/codec/tensor.hpp"
#include "slip/kernel.hpp"

namespace slip::model {

// in(0): the blocks, aligned to 16 bytes. in(1): their checksums, 8 bytes each. in(2): their ends, 4 bytes each.
// out(0): room for exactly their weights; aligned to 16 bytes it is fastest. out(1): the report, 8 bytes.
const Kernel& decompress_kernel();
// The same kernel. On the cpu device, a damaged block also makes the launch fail, so later ops of the stream do not
// run.
const Kernel& decompress_or_fail_kernel();

struct DecompressSizes {
  Split split = Split::kBytes;
  std::uint64_t weights = 0;  // of the whole tensor
  std::uint64_t first = 0;    // the first block
  std::uint64_t base = 0;     // its offset: BlockTable::begin(first)
  bool verify = true;         // false: the checksums were verified at an earlier load of the same bytes

  static DecompressSizes of(const BlockTable& table, std::size_t first = 0) {
    return {table.split(), table.weights(), first, table.begin(first)};
  }
  std::vector<Scalar> scalars() const { return {static_cast<int>(split), weights, first, base, verify ? 1 : 0}; }
  static DecompressSizes of(const Args& args) {
    return {static_cast<Split>(args.scalar<int>(0)), args.scalar<std::uint64_t>(1), args.scalar<std::uint64_t>(2),
            args.scalar<std::uint64_t>(3), args.scalar<int>(4) != 0};
  }
};

// The report is 0 if no block had a fault. Otherwise it has the first faulty block of all launches that share it. Clear
// it before the first launch, and read it after the stream is synchronised.
struct BlockReport {
  std::uint64_t block = 0;
  BlockFault fault = BlockFault::kNone;
};
inline constexpr std::uint64_t kReportBlocks = (std::uint64_t{1} << 48) - 1;
SLIP_CODEC_INLINE std::uint64_t report_of(std::uint64_t block, BlockFault fault) {
  return (kReportBlocks - block) << 8 | static_cast<std::uint64_t>(fault);  // the maximum is the first block
}
inline std::optional<BlockReport> read_report(std::uint64_t report) {
  if (report == 0) return std::nullopt;
  return BlockReport{kReportBlocks - (report >> 8), static_cast<BlockFault>(report & 0xFF)};
}

namespace cpu {
void decompress(const Args& args);
}
namespace cuda {
#if SLIP_HAS_CUDA
void decompress(const Args& args, CUstream_st* stream);
#else
inline constexpr void (*decompress)(const Args& args, CUstream_st* stream) = nullptr;
#endif
}  // namespace cuda

}  // namespace slip::model
