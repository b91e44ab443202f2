#include "model/folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/fail.hpp"
#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "model/graph_file.hpp"
#include "store/file.hpp"

namespace slip::model {
namespace {

constexpr const char* kGraphFile = "graph.json";

struct Shard {
  std::string name;
  std::vector<Value> weights;
};

// Distributes the weights, in the order of the graph, to shards of about the same size. No shard is empty.
std::vector<Shard> share_out(const Graph& graph, std::size_t count) {
  std::vector<Value> weights;
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    if (graph.values()[i].role == ValueRole::kWeight) weights.push_back({i});
  }
  count = std::clamp<std::size_t>(count, 1, std::max<std::size_t>(weights.size(), 1));
  std::vector<Shard> shards(count);
  std::uint64_t left = graph.bytes_of(ValueRole::kWeight), filled = 0;
  std::size_t current = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    // Starts the next shard when this one has its share of the remaining bytes, or when there are as many shards left
    // as weights.
    const bool full = !shards[current].weights.empty() && filled * (count - current) >= left + filled;
    const bool must = weights.size() - i < count - current && !shards[current].weights.empty();
    if (current + 1 < count && (full || must)) ++current, filled = 0;
    shards[current].weights.push_back(weights[i]);
    filled += graph[weights[i]].bytes;
    left -= graph[weights[i]].bytes;
  }
  for (std::size_t i = 0; i < count; ++i)
    shards[i].name = count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count);
  return shards;
}

void require_empty(const std::string& folder, Here here) {
  for (const char* ending : {kGraphFile, ".safetensors", ".safetensors.index.json"}) {
    const std::vector<std::string> names = store::files_in(folder, ending, here);
    if (!names.empty())
      base::fail(Code::kInvalidValue, here, "'{}' holds '{}' already: name another folder, or remove this model first",
                 folder, names[0]);
  }
}

void write_text(const std::string& path, std::string_view text, Here here) {
  base::OutputFile file(path, here);
  file.write(text);
  file.finish();
}

std::string index_of(const Graph& graph, const std::vector<Shard>& shards) {
  fmt::memory_buffer out;
  fmt::format_to(fmt::appender(out), "{{\"metadata\": {{\"total_size\": {}}}, \"weight_map\": {{",
                 graph.bytes_of(ValueRole::kWeight));
  bool first = true;
  for (const Shard& shard : shards) {
    for (const Value weight : shard.weights) {
      out.append(std::string_view(first ? "\n " : ",\n "));
      first = false;
      base::append_string(out, graph[weight].name);
      fmt::format_to(fmt::appender(out), ": \"{}\"", shard.name);
    }
  }
  out.append(std::string_view("}}\n"));
  return fmt::to_string(out);
}

}  // namespace

void require_weights(const Graph& graph, const TensorFiles& tensors, Here here) {
  for (const GraphValue& value : graph.values()) {
    if (value.role != ValueRole::kWeight) continue;
    const TensorInfo& tensor = tensors.at(value.name, here);
    if (tensor.type != value.type || tensor.shape != value.shape)
      base::fail(Code::kInvalidValue, here, "weight '{}' is {} {} in the graph, and {} {} in '{}'", value.name,
                 data_type_name(value.type), shape_text(value.shape), data_type_name(tensor.type),
                 shape_text(tensor.shape), tensors.paths()[tensor.file]);
  }
}

Model open_model(const std::string& folder, Here here) {
  Model model{read_graph(folder + "/" + kGraphFile, here), TensorFiles::open(folder, here)};
  require_weights(model.graph, model.tensors, here);
  return model;
}

void write_model(const Graph& graph, const std::string& folder, const FillWeight& fill, std::size_t shards, Here here) {
  const std::string text = graph_text(graph, here);
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) base::fail(Code::kIo, here, "cannot make the folder '{}': {}", folder, failed.message());
  require_empty(folder, here);
  const std::vector<Shard> parts = share_out(graph, shards);
  for (const Shard& shard : parts) {
    std::vector<TensorShape> tensors;
    for (const Value weight : shard.weights)
      tensors.push_back({graph[weight].name, graph[weight].type, graph[weight].shape});
    const FillTensor fill_one = [&](std::size_t index, std::uint64_t offset, std::span<std::byte> into) {
      fill(shard.weights[index], offset, into);
    };
    write_tensors(folder + "/" + shard.name, tensors, fill_one, {}, here);
  }
  if (parts.size() > 1) write_text(folder + "/model.safetensors.index.json", index_of(graph, parts), here);
  write_text(folder + "/" + kGraphFile, text, here);
}

}  // namespace slip::model
