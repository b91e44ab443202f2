#include "cli/collectives/pattern.hpp"

#include <algorithm>
#include <cstring>
#include <random>

#include "base/small_floats.hpp"
#include "comm/reduce/reduce.hpp"

namespace slip::cli {
namespace {

constexpr std::size_t kPeriod = 61;  // a prime: no border of chunks, slices or lines falls together with it for long

template <class T>
void put(std::byte* place, T value) {
  std::memcpy(place, &value, sizeof(value));
}

// 1 or 2 in the given type: sums and products of a few ranks are exact in most.
void put_value(DataType type, std::byte* place, int value) {
  const auto real = static_cast<float>(value);
  switch (type) {
    case DataType::kF8E4M3: return put(place, from_float<F8E4M3>(real));
    case DataType::kF8E5M2: return put(place, from_float<F8E5M2>(real));
    case DataType::kF16: return put(place, from_float<F16>(real));
    case DataType::kBF16: return put(place, from_float<Bf16>(real));
    case DataType::kF32: return put(place, real);
    case DataType::kF64: return put(place, static_cast<double>(value));
    case DataType::kBool:
    case DataType::kU8:
    case DataType::kI8: return put(place, static_cast<std::uint8_t>(value));
    case DataType::kU16:
    case DataType::kI16: return put(place, static_cast<std::uint16_t>(value));
    case DataType::kU32:
    case DataType::kI32: return put(place, static_cast<std::uint32_t>(value));
    case DataType::kU64:
    case DataType::kI64: return put(place, static_cast<std::uint64_t>(value));
  }
}

// The values that a rank repeats, from the `first` on.
std::vector<std::byte> values_of(DataType type, int rank, std::size_t first) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  const std::size_t size = bytes_of(type);
  std::vector<std::byte> values(kPeriod * size);
  for (std::size_t i = 0; i < kPeriod; ++i)
    put_value(type, values.data() + i * size, 1 + static_cast<int>(random() % 2));
  std::rotate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(first % kPeriod * size), values.end());
  return values;
}

void repeat(std::span<const std::byte> values, std::span<std::byte> into) {
  const std::size_t first = std::min(values.size(), into.size());
  if (first == 0) return;
  std::memcpy(into.data(), values.data(), first);
  // What is there already is copied behind itself, in whole periods.
  for (std::size_t done = first; done < into.size();) {
    const std::size_t more = std::min(done, into.size() - done);
    std::memcpy(into.data() + done, into.data(), more);
    done += more;
  }
}

std::uint64_t differing(std::span<const std::byte> values, std::span<const std::byte> block, std::size_t size) {
  std::uint64_t wrong = 0;
  for (std::size_t at = 0; at < block.size(); at += values.size()) {
    const std::size_t bytes = std::min(values.size(), block.size() - at);
    if (std::memcmp(block.data() + at, values.data(), bytes) == 0) continue;
    for (std::size_t i = 0; i < bytes; i += size)
      wrong += std::memcmp(block.data() + at + i, values.data() + i, size) != 0;
  }
  return wrong;
}

// What all ranks' values, from the `first` on, become.
std::vector<std::byte> reduced(const Call& call, int nranks, std::size_t first) {
  std::vector<std::vector<std::byte>> all;
  std::vector<const void*> sources;
  for (int rank = 0; rank < nranks; ++rank) all.push_back(values_of(call.type, rank, first));
  for (const auto& one : all) sources.push_back(one.data());
  std::vector<std::byte> result(all.front().size());
  reduce({call.type, call.op, call.op == ReduceOp::kAvg ? static_cast<std::uint64_t>(nranks) : 1, {}}, result.data(),
         sources, kPeriod);
  return result;
}

}  // namespace

Blocks bench_blocks(const Call& call, int rank, int nranks) {
  return call.kind == Collective::kMessage ? Blocks{1, 1} : blocks_of(call, rank, nranks);
}

void fill_input(const Call& call, int rank, int nranks, std::span<std::byte> input) {
  const Blocks blocks = bench_blocks(call, rank, nranks);
  for (std::uint64_t block = 0; block < blocks.in; ++block)
    repeat(values_of(call.type, rank, block), input.subspan(block * call.block_bytes(), call.block_bytes()));
}

std::uint64_t count_wrong(const Call& call, int rank, int nranks, std::span<const std::byte> output) {
  const Blocks blocks = bench_blocks(call, rank, nranks);
  std::uint64_t wrong = 0;
  for (std::uint64_t block = 0; block < blocks.out; ++block) {
    const bool scattered = call.kind == Collective::kReduceScatter || call.kind == Collective::kScatter ||
                           call.kind == Collective::kAllToAll;
    const std::size_t first = scattered ? static_cast<std::size_t>(rank) : 0;
    const int before = (rank + nranks - 1) % nranks, one = call.kind == Collective::kMessage ? before : call.root;
    const int from = blocks.out > 1 ? static_cast<int>(block) : one;
    const std::vector<std::byte> values =
        reduces(call.kind) ? reduced(call, nranks, first) : values_of(call.type, from, first);
    wrong += differing(values, output.subspan(block * call.block_bytes(), call.block_bytes()), bytes_of(call.type));
  }
  return wrong;
}

}  // namespace slip::cli
