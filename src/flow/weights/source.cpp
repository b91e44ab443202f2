#include <fmt/format.h>

#include "slip/runner.hpp"

namespace slip {

WeightSource WeightSource::files(const std::string& path, Here here) {
  WeightSource source;
  source.files_ = std::make_shared<const TensorFiles>(TensorFiles::open(path, here));
  return source;
}

WeightSource WeightSource::memory(Memory memory, MemoryKind kind) {
  WeightSource source;
  source.memory_ = std::move(memory);
  source.memory_kind_ = kind;
  return source;
}

WeightSource WeightSource::callback(Fill fill) {
  WeightSource source;
  source.fill_ = std::move(fill);
  return source;
}

void WeightSource::check(const Graph& graph, Here here) const {
  if (!files_ && !memory_ && !fill_) throw Error(Code::kInvalidValue, "this source of weights is empty", here);
  for (const GraphValue& weight : graph.values()) {
    if (weight.role != ValueRole::kWeight) continue;
    if (memory_) {
      const std::size_t bytes = memory_(weight).size();
      if (bytes != weight.bytes)
        throw Error(Code::kInvalidValue,
                    fmt::format("weight '{}' has {} bytes in memory, but {} {} takes {}", weight.name, bytes,
                                data_type_name(weight.type), shape_text(weight.shape), weight.bytes),
                    here);
    }
    if (!files_) continue;
    const TensorInfo& tensor = files_->at(weight.name, here);
    if (tensor.type != weight.type || tensor.shape != weight.shape)
      throw Error(Code::kInvalidValue,
                  fmt::format("weight '{}' is {} {} in the graph, but {} {} in '{}'", weight.name,
                              data_type_name(weight.type), shape_text(weight.shape), data_type_name(tensor.type),
                              shape_text(tensor.shape), files_->paths()[tensor.file]),
                  here);
  }
}

}  // namespace slip
