// How the runner loads on a device, to be measured: what a plan is made from is what will happen.
#include <algorithm>
#include <vector>

#include "model/safetensors.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"
#include "slip/runner.hpp"
#include "store/reader.hpp"

namespace slip {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{32} << 20;

// Reads the weights of a graph one after the other, round and round, so that the processor's cache does not answer.
struct FileProbe {
  std::shared_ptr<const TensorFiles> files;
  std::vector<const TensorInfo*> tensors;
  BlockReader reader;
  std::size_t turn = 0;
  std::uint64_t offset = 0;  // in the tensor whose turn it is

  FileProbe(std::shared_ptr<const TensorFiles> from, const Graph& graph, const ReaderOptions& options, Here here)
      : files(std::move(from)), reader(options, here) {
    for (const GraphValue& value : graph.values()) {
      if (value.role != ValueRole::kWeight) continue;
      const TensorInfo& one = files->at(value.name, here);
      if (one.bytes > 0) tensors.push_back(&one);
    }
  }
  std::uint64_t piece_bytes() const {
    std::uint64_t largest = 0;
    for (const TensorInfo* one : tensors) largest = std::max(largest, one->bytes);
    return std::min(kPieceBytes, largest);
  }
  void read(std::byte* into, std::uint64_t bytes) {
    while (bytes > 0) {
      const TensorInfo& tensor = *tensors[turn];
      const std::uint64_t part = std::min(bytes, tensor.bytes - offset);
      reader.read(file_of(*files, tensor, {}), tensor.offset + offset, part, {into, part});
      into += part, bytes -= part, offset += part;
      if (offset == tensor.bytes) turn = (turn + 1) % tensors.size(), offset = 0;
    }
  }
};

void issue_read(const std::shared_ptr<FileProbe>& probe, StreamRef stream, Range to) {
  stream.host([probe, into = address(to), bytes = to.bytes] { probe->read(into, bytes); },
              {.reads = {}, .writes = {to}, .scalars = {}, .name = "read"});
}

}  // namespace

Costs measure_costs(const Graph& graph, const Device& device, const WeightSource& source, Here here) {
  source.check(graph, here);
  const PrivateScope measuring;  // no part of the program's trace
  const std::shared_ptr<const TensorFiles> files = source.files_;
  if (!files) return measure_costs(graph, device, LoadProbe{}, here);
  LoadProbe load;
  const bool straight = !device.info().name.starts_with("cuda");  // a read goes right to the device's memory
  ReaderOptions options;
  options.threads = straight ? 1 : 4;
  options.between_loops = straight;
  if (straight) {
    const auto cached = std::make_shared<FileProbe>(files, graph, options, here);
    if (!cached->tensors.empty()) {
      load.piece_bytes = cached->piece_bytes();
      load.issue = [cached](StreamRef stream, Range to) { issue_read(cached, stream, to); };
    }
  }
  Costs costs = measure_costs(graph, device, load, here);
  options.cache = ReaderOptions::Cache::kNever;
  const auto cold = std::make_shared<FileProbe>(files, graph, options, here);
  if (cold->tensors.empty()) return costs;
  const Buffer landing = device.alloc(cold->piece_bytes(), MemoryKind::kPinned, "read", here);
  costs.read = measure_link(
      device, [&](StreamRef stream, std::uint64_t bytes) { issue_read(cold, stream, landing.slice(0, bytes)); },
      cold->piece_bytes(), 1, here);
  return costs;
}

}  // namespace slip
