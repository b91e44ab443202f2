// Decodes compressed weights on a GPU (codec/block.hpp has the format): one thread block of 256 threads for each block
// of weights, one thread for each lane of 32 weights.
//
// Each thread first loads all its compressed bytes into registers. So the block's checksum is complete before any
// weight is written. The kernel moves 1.7 bytes for each byte of weights, and executes about 8 instructions for each
// weight: memory bandwidth limits it. Neighbouring threads access neighbouring bytes: 8 of `rest`, 4 of each code word,
// 16 of weights.
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/check.hpp"
#include "model/codec/kernel.hpp"

namespace slip::model::cuda {
namespace {

constexpr unsigned kThreads = kMaxLanes;
constexpr unsigned kWarps = kThreads / 32;
constexpr unsigned kAllLanes = 0xFFFFFFFF;
// A packed block is smaller than a raw one, so its lists of escapes have at most 20 bytes for each lane.
constexpr unsigned kListWords = 20 * kMaxLanes / 4;

struct Job {
  const std::byte* blocks;
  std::uint64_t bytes;
  const std::uint64_t* checksums;
  const std::uint32_t* ends;
  std::byte* into;
  std::uint64_t into_bytes;
  unsigned long long* report;
  std::uint64_t weights, first, base;
  bool verify;
};

// The block of weights that this thread block decodes. `fault` is the same in all threads.
struct Task {
  const std::byte* block;
  std::byte* into;
  std::uint32_t bytes, weights;
  std::uint64_t checksum;  // without its seed
  BlockFault fault;
};

template <Split kSplit>
__device__ Task task_of(const Job& job) {
  constexpr std::uint64_t kEach = block_weights(kSplit), kSize = weight_bytes(kSplit);
  const std::uint64_t i = blockIdx.x, index = job.first + i;
  const std::uint64_t begin = i == 0 ? job.base : std::uint64_t{job.ends[i - 1]} * kBlockAlignment;
  const std::uint64_t end = std::uint64_t{job.ends[i]} * kBlockAlignment;
  Task task{};
  task.fault = BlockFault::kSize;
  if (begin < job.base || end <= begin || end - job.base > job.bytes || index > job.weights / kEach) return task;
  const std::uint64_t left = job.weights - index * kEach;
  task.weights = static_cast<std::uint32_t>(left < kEach ? left : kEach);
  const std::uint64_t at = i * kEach * kSize;
  if (task.weights == 0 || at + task.weights * kSize > job.into_bytes) return task;
  if (end - begin > raw_block_bytes(kSplit, task.weights)) return task;
  task.bytes = static_cast<std::uint32_t>(end - begin);
  task.block = job.blocks + (begin - job.base);
  task.into = job.into + at;
  task.checksum = job.checksums[i] - checksum_seed(index, task.weights);
  task.fault = BlockFault::kNone;
  return task;
}

__device__ void report(const Job& job, BlockFault fault) {
  if (threadIdx.x == 0) atomicMax(job.report, report_of(job.first + blockIdx.x, fault));
}

// The sum over the words that a thread has loaded.
class Sum {
 public:
  __device__ void add(std::uint32_t word, std::uint32_t index) {
    total_ += static_cast<unsigned long long>(word) * checksum_factor(index);
  }
  __device__ void add(uint2 words, std::uint32_t index) {
    add(words.x, index);
    add(words.y, index + 1);
  }
  __device__ void add(uint4 words, std::uint32_t index) {
    add(make_uint2(words.x, words.y), index);
    add(make_uint2(words.z, words.w), index + 2);
  }
  // The sum over the warp, in its first thread.
  __device__ unsigned long long of_warp() const {
    unsigned long long sum = total_;
    for (unsigned step = 16; step > 0; step /= 2) sum += __shfl_down_sync(kAllLanes, sum, step);
    return sum;
  }

 private:
  unsigned long long total_ = 0;
};

template <class T>
__device__ T load(const std::byte* at) {
  return __ldg(reinterpret_cast<const T*>(at));
}

// Writes 16 bytes of weights at `at`, but none from `end` on. `aligned`: `into` is at a multiple of 16.
__device__ void store(std::byte* into, bool aligned, std::uint32_t at, std::uint32_t end, uint4 value) {
  if (aligned && at + 16 <= end) {
    *reinterpret_cast<uint4*>(into + at) = value;
    return;
  }
  const std::uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
  for (std::uint32_t i = 0; i < 16; ++i) {
    if (at + i < end) into[at + i] = static_cast<std::byte>(words[i / 4] >> i % 4 * 8);
  }
}

__device__ bool is_aligned(const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; }

// Copies a raw block.
template <Split kSplit>
__device__ void copy_block(const Job& job, const Task& task, unsigned long long* sums) {
  constexpr unsigned kPacks = block_weights(kSplit) * weight_bytes(kSplit) / 16 / kThreads;
  uint4 packs[kPacks];
  Sum sum;
#pragma unroll
  for (unsigned i = 0; i < kPacks; ++i) {
    const std::uint32_t at = (i * kThreads + threadIdx.x) * 16;
    packs[i] = at < task.bytes ? load<uint4>(task.block + at) : uint4{};
    if (at < task.bytes) sum.add(packs[i], at / 4);
  }
  const unsigned long long warp = sum.of_warp();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = warp;
  __syncthreads();
  unsigned long long total = 0;
  for (unsigned i = 0; i < kWarps; ++i) total += sums[i];
  if (job.verify && total != task.checksum) return report(job, BlockFault::kChecksum);
  const bool aligned = is_aligned(task.into);
  const std::uint32_t end = task.weights * weight_bytes(kSplit);
#pragma unroll
  for (unsigned i = 0; i < kPacks; ++i) {
    const std::uint32_t at = (i * kThreads + threadIdx.x) * 16;
    if (at < end) store(task.into, aligned, at, end, packs[i]);
  }
}

struct Shared {
  unsigned long long sums[kWarps];
  std::uint32_t counts[kWarps];
  std::uint32_t list[kListWords];
  std::uint32_t far_before[kMaxLanes];  // far escapes in front of word 4 * i of the list
};

// The header of a packed block, the same in all threads.
struct Tables {
  std::uint32_t first[2], second[4];
  std::uint32_t escapes, far;
  bool sound;

  __device__ explicit Tables(const std::byte* block) {
    const uint4 a = load<uint4>(block), b = load<uint4>(block + 16);
    first[0] = a.x, first[1] = a.y;
    second[0] = a.z, second[1] = a.w, second[2] = b.x, second[3] = b.y;
    escapes = b.z & 0xFFFF, far = b.z >> 16;
    sound = first[1] >> 24 == 0 && second[3] >> 24 == 0 && b.w == 0;
  }
  __device__ std::uint32_t exponent(std::uint32_t digit) const {
    const std::uint32_t low = __byte_perm(second[0], second[1], digit & 7);
    const std::uint32_t high = __byte_perm(second[2], second[3], digit & 7);
    return (digit < 8 ? low : high) & 0xFF;
  }
};

// Number of far escapes among the first `digits` digits of a word.
__device__ std::uint32_t far_in(std::uint32_t word, std::uint32_t digits) {
  const std::uint32_t all = word & word >> 1 & word >> 2 & word >> 3 & 0x11111111U;
  return __popc(digits >= 8 ? all : all & ((1U << 4 * digits) - 1));
}
__device__ std::uint32_t digits_in(std::uint32_t word, std::uint32_t digits) {
  return digits > 8 * word ? digits - 8 * word : 0;
}

// Inclusive sum over the lanes of a warp.
__device__ std::uint32_t scan_warp(std::uint32_t value) {
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const std::uint32_t before = __shfl_up_sync(kAllLanes, value, step);
    if (threadIdx.x % 32 >= step) value += before;
  }
  return value;
}

// Fills far_before. Called by all threads.
__device__ void count_far(const Tables& tables, Shared& shared) {
  std::uint32_t mine = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned word = 4 * threadIdx.x + i;
    const std::uint32_t digits = digits_in(word, tables.escapes);
    if (digits > 0 && word < kListWords) mine += far_in(shared.list[word], digits);
  }
  const std::uint32_t up_to = scan_warp(mine);
  __syncthreads();  // all threads have read `counts`
  if (threadIdx.x % 32 == 31) shared.counts[threadIdx.x / 32] = up_to;
  __syncthreads();
  std::uint32_t before = up_to - mine;
  for (unsigned warp = 0; warp < threadIdx.x / 32; ++warp) before += shared.counts[warp];
  shared.far_before[threadIdx.x] = before;
  __syncthreads();
}

// The exponent of a far escape.
__device__ std::uint32_t far_exponent(const Tables& tables, const Shared& shared, std::uint32_t escape) {
  const std::uint32_t word = escape / 8;
  std::uint32_t before = shared.far_before[word / 4];
  for (std::uint32_t i = word / 4 * 4; i < word; ++i) before += far_in(shared.list[i], 8);
  before += far_in(shared.list[word], escape % 8);
  const std::uint32_t at = (tables.escapes + 1) / 2 + before;
  return shared.list[at / 4] >> at % 4 * 8 & 0xFF;
}

// The compressed bytes that one thread loads: those of its lane.
template <Split kSplit>
struct LaneBytes {
  std::uint32_t codes[3] = {};
  uint2 rest[4] = {};
  std::uint32_t more[kSplit == Split::kF16 ? 3 : 1] = {};
  uint4 low[kSplit == Split::kF32 ? 4 : 1] = {};

  __device__ void load_from(const std::byte* block, const BlockLayout& layout, Sum& sum) {
    const std::uint32_t lane = threadIdx.x;
#pragma unroll
    for (std::uint32_t q = 0; q < 4; ++q) {
      const std::uint32_t at = static_cast<std::uint32_t>(sizeof(BlockHeader)) + 8 * (q * layout.lanes + lane);
      rest[q] = load<uint2>(block + at);
      sum.add(rest[q], at / 4);
      if constexpr (kSplit == Split::kF32) {
        const std::uint32_t low_at = layout.more + 16 * (q * layout.lanes + lane);
        low[q] = load<uint4>(block + low_at);
        sum.add(low[q], low_at / 4);
      }
    }
#pragma unroll
    for (std::uint32_t q = 0; q < 3; ++q) {
      const std::uint32_t at = 4 * (q * layout.lanes + lane);
      codes[q] = load<std::uint32_t>(block + layout.codes + at);
      sum.add(codes[q], (layout.codes + at) / 4);
      if constexpr (kSplit == Split::kF16) {
        more[q] = load<std::uint32_t>(block + layout.more + at);
        sum.add(more[q], (layout.more + at) / 4);
      }
    }
  }
};

// Looks up the eight digits of quarter q in a table of eight bytes: four results in each word.
__device__ uint2 look_up(const std::uint32_t (&planes)[3], unsigned q, std::uint32_t low, std::uint32_t high) {
  const std::uint32_t digits = q < 3 ? planes[q] & 0x77777777U : fourth_word(planes[0], planes[1], planes[2]);
  return make_uint2(__byte_perm(low, high, digits), __byte_perm(low, high, digits >> 16));
}

// Four weights of 16 bits from their low and high bytes.
__device__ uint2 interleave(std::uint32_t low, std::uint32_t high) {
  return make_uint2(__byte_perm(low, high, 0x5140), __byte_perm(low, high, 0x7362));
}
// Four bf16, or upper halves of f32.
__device__ uint2 join_four(std::uint32_t exponents, std::uint32_t rest) {
  constexpr std::uint32_t kSigns = 0x80808080;
  return interleave((exponents << 7 & kSigns) | (rest & ~kSigns), (rest & kSigns) | (exponents >> 1 & ~kSigns));
}

template <Split kSplit>
__device__ void store_quarter(const Task& task, const LaneBytes<kSplit>& lane, unsigned q, uint2 exponents,
                              const BlockLayout& layout, bool aligned) {
  const std::uint32_t at = (q * layout.lanes + threadIdx.x) * 8 * weight_bytes(kSplit);
  const std::uint32_t end = task.weights * weight_bytes(kSplit);
  if (at >= end) return;
  if constexpr (kSplit == Split::kF16) {
    const uint2 others = look_up(lane.more, q, 0x03020100, 0x83828180);
    const uint2 a = interleave(lane.rest[q].x, exponents.x | others.x);
    const uint2 b = interleave(lane.rest[q].y, exponents.y | others.y);
    store(task.into, aligned, at, end, make_uint4(a.x, a.y, b.x, b.y));
  } else {
    const uint2 a = join_four(exponents.x, lane.rest[q].x), b = join_four(exponents.y, lane.rest[q].y);
    if constexpr (kSplit == Split::kBf16) {
      store(task.into, aligned, at, end, make_uint4(a.x, a.y, b.x, b.y));
    } else {
      const uint4 low = lane.low[q];
      store(task.into, aligned, at, end,
            make_uint4(__byte_perm(low.x, a.x, 0x5410), __byte_perm(low.x, a.x, 0x7632),
                       __byte_perm(low.y, a.y, 0x5410), __byte_perm(low.y, a.y, 0x7632)));
      if (at + 16 < end)
        store(task.into, aligned, at + 16, end,
              make_uint4(__byte_perm(low.z, b.x, 0x5410), __byte_perm(low.z, b.x, 0x7632),
                         __byte_perm(low.w, b.y, 0x5410), __byte_perm(low.w, b.y, 0x7632)));
    }
  }
}

// True: an escape of this thread is in the padding behind the last weight.
__device__ bool escapes_in_padding(std::uint32_t mask, const BlockLayout& layout, std::uint32_t weights) {
  bool found = false;
  for (; mask != 0; mask &= mask - 1) {
    const std::uint32_t bit = __ffs(static_cast<int>(mask)) - 1;
    found = found || ((bit & 3) * layout.lanes + threadIdx.x) * 8 + bit / 4 >= weights;
  }
  return found;
}

template <Split kSplit>
__device__ void put_escapes(const Tables& tables, const Shared& shared, std::uint32_t mask, std::uint32_t escape,
                            std::uint32_t (&exponents)[8]) {
  for (; mask != 0; mask &= mask - 1, ++escape) {
    const std::uint32_t bit = __ffs(static_cast<int>(mask)) - 1;
    const std::uint32_t digit = shared.list[escape / 8] >> escape % 8 * 4 & 15;
    std::uint32_t exponent = digit == kFarEscape ? far_exponent(tables, shared, escape) : tables.exponent(digit);
    if constexpr (kSplit == Split::kF16) exponent = (exponent & 0x1F) << 2;
    // `exponents` must stay in registers, so it is only indexed by constants of the unrolled loop.
    const std::uint32_t word = (bit & 3) * 2 + bit / 16, value = exponent << bit / 4 % 4 * 8;
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) exponents[i] |= i == word ? value : 0;
  }
}

template <Split kSplit>
__device__ void unpack_block(const Job& job, const Task& task, Shared& shared) {
  const BlockLayout layout = layout_of(kSplit, task.weights);
  if (task.bytes < layout.escapes) return report(job, BlockFault::kSize);
  const Tables tables(task.block);
  const std::uint32_t list_words = (task.bytes - layout.escapes) / 4;
  Sum sum;
  LaneBytes<kSplit> lane;
  std::uint32_t mask = 0;
  if (threadIdx.x < layout.lanes) {
    lane.load_from(task.block, layout, sum);
    mask = escape_mask(lane.codes[0], lane.codes[1], lane.codes[2]);
  }
  if (threadIdx.x < sizeof(BlockHeader) / 4) sum.add(load<std::uint32_t>(task.block + 4 * threadIdx.x), threadIdx.x);
  std::uint32_t far = 0;
  for (unsigned i = threadIdx.x; i < list_words && i < kListWords; i += kThreads) {
    const std::uint32_t word = load<std::uint32_t>(task.block + layout.escapes + 4 * i);
    sum.add(word, layout.escapes / 4 + i);
    shared.list[i] = word;
    far += far_in(word, digits_in(i, tables.escapes));
  }
  // Both counts in one scan: neither exceeds 8192.
  const std::uint32_t mine = __popc(mask) | far << 16, up_to = scan_warp(mine);
  const unsigned long long warp_sum = sum.of_warp();
  if (threadIdx.x % 32 == 0) shared.sums[threadIdx.x / 32] = warp_sum;
  if (threadIdx.x % 32 == 31) shared.counts[threadIdx.x / 32] = up_to;
  const bool wrong = task.weights % kLaneWeights != 0 && escapes_in_padding(mask, layout, task.weights);
  const bool any_wrong = __syncthreads_or(wrong ? 1 : 0) != 0;

  unsigned long long total = 0;
  std::uint32_t before = up_to - mine, all = 0;
#pragma unroll
  for (unsigned i = 0; i < kWarps; ++i) {
    total += shared.sums[i];
    if (i < threadIdx.x / 32) before += shared.counts[i];
    all += shared.counts[i];
  }
  if (job.verify && total != task.checksum) return report(job, BlockFault::kChecksum);
  if (!tables.sound || tables.escapes > task.weights || tables.far > tables.escapes ||
      packed_block_bytes(layout, tables.escapes, tables.far) != task.bytes || list_words > kListWords)
    return report(job, BlockFault::kSize);
  if (any_wrong || all != (tables.escapes | tables.far << 16)) return report(job, BlockFault::kEscapes);
  if (tables.far != 0) count_far(tables, shared);
  if (threadIdx.x >= layout.lanes) return;

  constexpr bool kHalf = kSplit == Split::kF16;  // the exponent's place in the high byte of an f16
  const std::uint32_t first_low = kHalf ? (tables.first[0] & 0x1F1F1F1FU) << 2 : tables.first[0];
  const std::uint32_t first_high = kHalf ? (tables.first[1] & 0x1F1F1F1FU) << 2 : tables.first[1];
  std::uint32_t exponents[8];
#pragma unroll
  for (unsigned q = 0; q < 4; ++q) {
    const uint2 found = look_up(lane.codes, q, first_low, first_high);
    exponents[2 * q] = found.x, exponents[2 * q + 1] = found.y;
  }
  put_escapes<kSplit>(tables, shared, mask, before & 0xFFFF, exponents);
  const bool aligned = is_aligned(task.into);
#pragma unroll
  for (unsigned q = 0; q < 4; ++q)
    store_quarter<kSplit>(task, lane, q, make_uint2(exponents[2 * q], exponents[2 * q + 1]), layout, aligned);
}

template <Split kSplit>
__global__ void __launch_bounds__(kThreads) decompress_blocks(const Job job) {
  __shared__ Shared shared;
  const Task task = task_of<kSplit>(job);
  if (task.fault != BlockFault::kNone) return report(job, task.fault);
  if (task.bytes == raw_block_bytes(kSplit, task.weights)) return copy_block<kSplit>(job, task, shared.sums);
  if constexpr (kSplit == Split::kBytes) report(job, BlockFault::kSize);
  else unpack_block<kSplit>(job, task, shared);
}

}  // namespace

void decompress(const Args& args, CUstream_st* stream) {
  const DecompressSizes sizes = DecompressSizes::of(args);
  const std::span<const std::byte> blocks = args.in<std::byte>(0);
  const std::span<const std::uint64_t> checksums = args.in<std::uint64_t>(1);
  const std::span<const std::uint32_t> ends = args.in<std::uint32_t>(2);
  const std::span<std::byte> into = args.out<std::byte>(0);
  const auto count = static_cast<unsigned>(checksums.size() < ends.size() ? checksums.size() : ends.size());
  if (count == 0) return;
  if (reinterpret_cast<std::uintptr_t>(blocks.data()) % kBlockAlignment != 0)
    throw Error(ErrorCode::kInvalidValue, "decompress: the compressed blocks are not at a multiple of 16 bytes", {});
  const Job job{blocks.data(),
                blocks.size(),
                checksums.data(),
                ends.data(),
                into.data(),
                into.size(),
                reinterpret_cast<unsigned long long*>(args.out<std::uint64_t>(1).data()),
                sizes.weights,
                sizes.first,
                sizes.base,
                sizes.verify};
  switch (sizes.split) {
    case Split::kBytes: decompress_blocks<Split::kBytes><<<count, kThreads, 0, stream>>>(job); break;
    case Split::kBf16: decompress_blocks<Split::kBf16><<<count, kThreads, 0, stream>>>(job); break;
    case Split::kF16: decompress_blocks<Split::kF16><<<count, kThreads, 0, stream>>>(job); break;
    case Split::kF32: decompress_blocks<Split::kF32><<<count, kThreads, 0, stream>>>(job); break;
  }
  backend::check(cudaGetLastError(), "kernel launch", -1, "decompress");
}

}  // namespace slip::model::cuda
