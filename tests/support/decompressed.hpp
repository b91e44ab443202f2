// Runs the kernel `decompress` on a device, for tests of all devices.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "model/codec/kernel.hpp"
#include "slip/device.hpp"
#include "slip/stream.hpp"

namespace slip::test {

struct Decompressed {
  std::vector<std::byte> weights;  // with kGuard bytes of kUntouched behind them
  std::optional<model::BlockReport> report;
};
inline constexpr std::byte kUntouched{0x5A};
inline constexpr std::size_t kDecompressGuard = 64;

struct DecompressWay {
  bool verify = true;
  std::size_t shift = 0;  // bytes behind a multiple of 256 where the weights are written
};

// Decodes blocks [first, first + count) of a tensor whose table is `table` and whose blocks are `blocks` (all of them;
// the bytes may be damaged).
inline Decompressed decompress_on(const Device& device, const model::BlockTable& table,
                                  std::span<const std::byte> blocks, std::size_t first, std::size_t count,
                                  const DecompressWay& way = {}) {
  const std::uint64_t base = table.begin(first), begin = table.weights_begin(first);
  const std::size_t compressed = table.begin(first + count) - base;
  const std::size_t bytes = std::min(table.weights_begin(first + count), table.weights_bytes()) - begin;
  const Stream stream = device.stream();
  const auto upload = [&](const void* from, std::size_t size, const char* name) {
    Buffer host = device.alloc(size, MemoryKind::kPinned, name), memory = device.alloc(size, MemoryKind::kDevice, name);
    {
      const auto view = host.host_write<std::byte>();
      std::copy_n(static_cast<const std::byte*>(from), size, view.begin());
    }
    device.copy(memory, host);
    return memory;
  };
  const Buffer in = upload(blocks.data() + base, compressed, "blocks");
  const Buffer checksums = upload(table.checksums().data() + first, 8 * count, "checksums");
  const Buffer ends = upload(table.ends().data() + first, 4 * count, "ends");
  const std::vector<std::byte> untouched(way.shift + bytes + kDecompressGuard, kUntouched);
  const Buffer out = upload(untouched.data(), untouched.size(), "weights");
  const std::uint64_t none = 0;
  const Buffer report = upload(&none, sizeof none, "report");
  model::DecompressSizes sizes = model::DecompressSizes::of(table, first);
  sizes.verify = way.verify;
  const std::vector<Scalar> scalars = sizes.scalars();
  stream.launch(model::decompress_kernel(),
                {.reads = {in, checksums, ends}, .writes = {out.slice(way.shift, bytes), report}, .scalars = scalars});
  stream.sync();
  Buffer host = device.alloc(untouched.size(), MemoryKind::kPinned, "result");
  device.copy(host, out);
  Decompressed result;
  {
    const auto view = host.host_read<std::byte>();
    result.weights.assign(view.begin() + static_cast<std::ptrdiff_t>(way.shift), view.end());
  }
  Buffer word = device.alloc(sizeof none, MemoryKind::kPinned, "word");
  device.copy(word, report);
  result.report = model::read_report(word.host_read<std::uint64_t>()[0]);
  return result;
}

}  // namespace slip::test
