#include "run_graph.hpp"

#include <cstring>

#include "model/cpu/types.hpp"

namespace slip::model_test {

Bytes stored(DataType type, const std::vector<double>& values) {
  Bytes bytes(values.size() * bytes_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    const base::Bf16 half = base::from_float<base::Bf16>(value);
    if (type == DataType::kBF16) std::memcpy(bytes.data() + 2 * i, &half, 2);
    else std::memcpy(bytes.data() + 4 * i, &value, 4);
  }
  return bytes;
}

std::vector<double> loaded(DataType type, const Bytes& bytes) {
  std::vector<double> values(bytes.size() / bytes_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    float value = 0;
    base::Bf16 half{};
    if (type == DataType::kBF16) {
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      value = base::to_float(half);
    } else {
      std::memcpy(&value, bytes.data() + 4 * i, 4);
    }
    values[i] = value;
  }
  return values;
}

std::map<std::string, Bytes> run_graph(const Graph& graph, const Device& device,
                                       const std::map<std::string, Bytes>& given) {
  std::vector<Buffer> buffers;
  for (const GraphValue& value : graph.values()) {
    buffers.push_back(device.alloc(value.bytes, MemoryKind::kDevice, value.name));
    device.fill(buffers.back(), 0x7f);  // a pattern near NaN: values that an op does not write are noticed
    const auto found = given.find(value.name);
    if (found == given.end()) continue;
    const Buffer host = device.wrap(const_cast<std::byte*>(found->second.data()), found->second.size());
    device.copy(buffers.back(), host);
  }
  const Stream stream = device.stream();
  for (const GraphOp& op : graph.ops()) {
    std::vector<Range> reads, writes;
    for (const ValueBytes& bytes : op.reads)
      reads.push_back(buffers[bytes.value.index].slice(bytes.offset, bytes.bytes));
    for (const ValueBytes& bytes : op.writes)
      writes.push_back(buffers[bytes.value.index].slice(bytes.offset, bytes.bytes));
    stream.launch(*op.kernel, {.reads = reads, .writes = writes, .scalars = op.scalars, .name = op.name}, op.cost);
  }
  stream.sync();
  std::map<std::string, Bytes> results;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const GraphValue& value = graph.values()[i];
    if (!value.output) continue;
    Bytes& bytes = results[value.name];
    bytes.resize(value.bytes);
    const Buffer host = device.wrap(bytes.data(), bytes.size());
    device.copy(host, buffers[i]);
  }
  return results;
}

}  // namespace slip::model_test
