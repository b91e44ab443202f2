#include <algorithm>

#include "flow/costs/measuring.hpp"
#include "flow/weights/weight_groups.hpp"

namespace slip::flow {
namespace {

constexpr DataType kReal[] = {DataType::kF8E4M3, DataType::kF8E5M2, DataType::kF16,
                              DataType::kBF16,   DataType::kF32,    DataType::kF64};

}  // namespace

OpMemory::OpMemory(const Graph& graph, const GraphOp& op) : op_(op) {
  for (const ValueBytes& read : op.reads) include(graph, read);
  for (const ValueBytes& write : op.writes) include(graph, write);
  for (Part& part : parts_) {
    part.first -= part.first % kAlignment;  // keeps the alignment that the bytes have in the value
    part.at = bytes_;
    bytes_ += (part.last - part.first + kAlignment - 1) / kAlignment * kAlignment;
  }
  bytes_ = std::max(bytes_, kAlignment);  // an op may read and write no bytes
}

void OpMemory::include(const Graph& graph, const ValueBytes& bytes) {
  const std::uint64_t end = bytes.offset + bytes.bytes;
  for (Part& part : parts_) {
    if (part.value != bytes.value) continue;
    part.first = std::min(part.first, bytes.offset);
    part.last = std::max(part.last, end);
    return;
  }
  parts_.push_back({.value = bytes.value,
                    .first = bytes.offset,
                    .last = end,
                    .integers = std::ranges::find(kReal, graph[bytes.value].type) == std::end(kReal)});
}

Range OpMemory::find(const ValueBytes& bytes, Range place) const {
  const auto part = std::ranges::find(parts_, bytes.value, &Part::value);
  return place.slice(part->at + (bytes.offset - part->first), bytes.bytes);
}

void OpMemory::launch(StreamRef stream, Range place) const {
  std::vector<Range> reads, writes;
  for (const ValueBytes& read : op_.reads) reads.push_back(find(read, place));
  for (const ValueBytes& write : op_.writes) writes.push_back(find(write, place));
  stream.launch(*op_.kernel, {.reads = reads, .writes = writes, .scalars = op_.scalars, .name = op_.name}, op_.cost);
}

OpMemory::ApartBytes OpMemory::apart_bytes() const {
  ApartBytes bytes;
  for (const ValueBytes& read : op_.reads) (is_integers(read) ? bytes.zeros : bytes.numbers) += aligned(read.bytes);
  for (const ValueBytes& write : op_.writes) bytes.sink += aligned(write.bytes);
  return bytes;
}

void OpMemory::launch(StreamRef stream, const Apart& places) const {
  std::vector<Range> reads, writes;
  ApartBytes used;
  for (const ValueBytes& read : op_.reads) {
    const bool integers = is_integers(read);
    std::uint64_t& at = integers ? used.zeros : used.numbers;
    reads.push_back((integers ? places.zeros : places.numbers).slice(at, read.bytes));
    at += aligned(read.bytes);
  }
  for (const ValueBytes& write : op_.writes) {
    writes.push_back(places.sink.slice(used.sink, write.bytes));
    used.sink += aligned(write.bytes);
  }
  stream.launch(*op_.kernel, {.reads = reads, .writes = writes, .scalars = op_.scalars, .name = op_.name}, op_.cost);
}

void fill_with_numbers(const Device& device, StreamRef stream, Range to) {
  constexpr std::uint64_t kPattern = std::uint64_t{1} << 20;
  Buffer pattern = device.alloc(std::min<std::uint64_t>(kPattern, to.bytes), MemoryKind::kPinned, "numbers");
  {
    const HostView<std::uint16_t> numbers = pattern.host_write<std::uint16_t>();
    std::uint32_t state = 1;
    for (std::uint16_t& number : numbers) {
      state = state * 1664525u + 1013904223u;
      // As bfloat16: any sign, 2^-6 to 2^-3, any fraction.
      number =
          static_cast<std::uint16_t>((state >> 1 & 0x8000u) | ((0x79u + (state >> 30)) << 7) | (state >> 20 & 0x7fu));
    }
  }
  for (std::uint64_t at = 0; at < to.bytes; at += pattern.bytes()) {
    const std::uint64_t bytes = std::min<std::uint64_t>(pattern.bytes(), to.bytes - at);
    stream.copy(to.slice(at, bytes), pattern.slice(0, bytes), "numbers");
  }
  stream.sync();
}

}  // namespace slip::flow
