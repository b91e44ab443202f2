#include "model/codec/kernel.hpp"

#include <algorithm>
#include <atomic>

#include "base/team.hpp"

namespace slip::model {

const Kernel& decompress_kernel() {
  static const Kernel kKernel{"decompress", cpu::decompress, cuda::decompress};
  return kKernel;
}

const Kernel& decompress_or_fail_kernel() {
  static const Kernel kKernel{"decompress",
                              [](const Args& args) {
                                cpu::decompress(args);
                                // relaxed: decompress() has returned, so this thread has waited for all threads that
                                // write.
                                const std::atomic_ref<std::uint64_t> report(args.out<std::uint64_t>(1)[0]);
                                if (report.load(std::memory_order_relaxed) != 0)
                                  throw Error(ErrorCode::kParse, "a block of compressed weights is damaged",
                                              Here::at());
                              },
                              cuda::decompress};
  return kKernel;
}

namespace cpu {
namespace {

// The arguments of a launch. They may come from a damaged file, so decode() checks each of them.
class Launch {
 public:
  explicit Launch(const Args& args)
      : sizes_(DecompressSizes::of(args)),
        blocks_(args.in<std::byte>(0)),
        checksums_(args.in<std::uint64_t>(1)),
        ends_(args.in<std::uint32_t>(2)),
        into_(args.out<std::byte>(0)) {}

  std::size_t count() const { return std::min(checksums_.size(), ends_.size()); }
  std::uint64_t first() const { return sizes_.first; }

  BlockFault decode(std::size_t i) const {
    const Split split = sizes_.split;
    const std::uint64_t begin = i == 0 ? sizes_.base : std::uint64_t{ends_[i - 1]} * kBlockAlignment;
    const std::uint64_t end = std::uint64_t{ends_[i]} * kBlockAlignment;
    const std::uint64_t each = block_weights(split), index = sizes_.first + i;
    if (begin < sizes_.base || end <= begin || end - sizes_.base > blocks_.size() || index >= sizes_.weights / each + 1)
      return BlockFault::kSize;
    BlockId id{index, static_cast<std::uint32_t>(std::min(each, sizes_.weights - index * each)), checksums_[i]};
    const std::uint64_t at = i * each * weight_bytes(split);
    if (at + std::uint64_t{id.weights} * weight_bytes(split) > into_.size()) return BlockFault::kSize;
    const std::span<const std::byte> block = blocks_.subspan(begin - sizes_.base, end - begin);
    if (!sizes_.verify) id.checksum = weighted_sum(block.data(), block.size()) + checksum_seed(id.index, id.weights);
    return decode_block(split, block, id, into_.data() + at);
  }

 private:
  DecompressSizes sizes_;
  std::span<const std::byte> blocks_;
  std::span<const std::uint64_t> checksums_;
  std::span<const std::uint32_t> ends_;
  std::span<std::byte> into_;
};

}  // namespace

void decompress(const Args& args) {
  const Launch launch(args);
  // Atomic: several threads write the report, and the host may read it while the kernel runs.
  const std::atomic_ref<std::uint64_t> report(args.out<std::uint64_t>(1)[0]);
  // The pool runs these pieces between the pieces of other kernels' loops. As a parallel loop of its own, decoding
  // would take all cores from those kernels, or get only one core while they run.
  constexpr std::size_t kPieceBlocks = 4;  // about 10 us
  base::for_each_background_piece((launch.count() + kPieceBlocks - 1) / kPieceBlocks, [&](std::size_t piece) {
    const std::size_t end = std::min(launch.count(), (piece + 1) * kPieceBlocks);
    for (std::size_t i = piece * kPieceBlocks; i < end; ++i) {
      const BlockFault fault = launch.decode(i);
      if (fault == BlockFault::kNone) continue;
      const std::uint64_t mine = report_of(launch.first() + i, fault);
      // relaxed: no other data is published through the report.
      for (std::uint64_t seen = report.load(std::memory_order_relaxed);
           seen < mine && !report.compare_exchange_weak(seen, mine, std::memory_order_relaxed);) {}
    }
  });
}

}  // namespace cpu
}  // namespace slip::model
