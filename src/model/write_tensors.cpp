#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "model/safetensors.hpp"

namespace slip {
namespace {

constexpr std::size_t kAlign = 64;

// What JSON would change on its way is refused.
void require_text(const char* what, const std::string& text, Here here) {
  if (!is_utf8(text)) throw Error(Code::kInvalidValue, fmt::format("{} is not UTF-8: {}", what, shown(text)), here);
}

void require_good(std::span<const TensorData> tensors, Here here) {
  std::set<std::string_view> names;
  for (const TensorData& tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second)
      throw Error(Code::kInvalidValue, fmt::format("tensor '{}': the name is taken", tensor.name), here);
    require_text("a tensor's name", tensor.name, here);
    const std::optional<std::uint64_t> bytes = bytes_of(tensor.type, tensor.shape);
    if (!bytes)
      throw Error(Code::kInvalidValue,
                  fmt::format("tensor '{}' of {} {} is larger than 2^64 bytes", tensor.name,
                              data_type_name(tensor.type), shape_text(tensor.shape)),
                  here);
    if (*bytes != tensor.bytes.size())
      throw Error(Code::kInvalidValue,
                  fmt::format("tensor '{}' of {} {} takes {} bytes, and {} are given", tensor.name,
                              data_type_name(tensor.type), shape_text(tensor.shape), *bytes, tensor.bytes.size()),
                  here);
  }
}

std::string header_of(const std::vector<const TensorData*>& tensors,
                      const std::vector<std::pair<std::string, std::string>>& metadata) {
  fmt::memory_buffer json;
  const auto put = [&json](std::string_view text) { json.append(text); };
  const auto next = [&](std::string_view name) {
    put(json.size() == 0 ? "{" : ",");
    append_string(json, name);
    put(":");
  };
  if (!metadata.empty()) {
    next("__metadata__");
    for (std::size_t i = 0; i < metadata.size(); ++i) {
      put(i == 0 ? "{" : ",");
      append_string(json, metadata[i].first);
      put(":");
      append_string(json, metadata[i].second);
    }
    put("}");
  }
  std::uint64_t at = 0;
  for (const TensorData* tensor : tensors) {
    next(tensor->name);
    put(fmt::format("{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", data_type_name(tensor->type),
                    shape_text(tensor->shape), at, at + tensor->bytes.size()));
    at += tensor->bytes.size();
  }
  put(json.size() == 0 ? "{}" : "}");
  while ((8 + json.size()) % kAlign != 0) put(" ");
  return fmt::to_string(json);
}

}  // namespace

void write_tensors(const std::string& path, std::span<const TensorData> tensors,
                   const std::vector<std::pair<std::string, std::string>>& metadata, Here here) {
  require_good(tensors, here);
  std::vector<const TensorData*> order;
  for (const TensorData& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](const TensorData* a, const TensorData* b) { return bytes_of(a->type) > bytes_of(b->type); });
  std::uint64_t bytes = 0;
  for (const TensorData& tensor : tensors) bytes += tensor.bytes.size();
  for (const auto& [name, text] : metadata) {
    require_text("a name in the metadata", name, here);
    require_text("a text in the metadata", text, here);
  }
  const std::string json = header_of(order, metadata);
  if (json.size() > kMaxHeaderBytes)
    throw Error(Code::kInvalidValue,
                fmt::format("'{}': a header of {} bytes, and at most {} are allowed: write several files", path,
                            json.size(), kMaxHeaderBytes),
                here);
  static_cast<void>(parse_header(json, 8 + json.size() + bytes, path, here));
  OutputFile out(path, here);
  std::string length;
  for (std::size_t i = 0; i < 8; ++i) length += static_cast<char>(json.size() >> (8 * i) & 0xff);
  out.write(length);
  out.write(json);
  for (const TensorData* tensor : order)
    out.write({reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size()});
  out.finish();
}

}  // namespace slip
