#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "model/safetensors.hpp"
#include "slip/tensors.hpp"

namespace slip {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

using Metadata = std::vector<std::pair<std::string, std::string>>;

// What JSON would change on its way is refused.
void require_text(const char* what, const std::string& text, Here here) {
  if (!is_utf8(text)) throw Error(Code::kInvalidValue, fmt::format("{} is not UTF-8: {}", what, shown(text)), here);
}

template <class Tensor>
std::uint64_t bytes_in(const Tensor& tensor, Here here) {
  const std::optional<std::uint64_t> bytes = bytes_of(tensor.type, tensor.shape);
  if (!bytes)
    throw Error(Code::kInvalidValue,
                fmt::format("tensor '{}' of {} {} is larger than 2^64 bytes", tensor.name, data_type_name(tensor.type),
                            shape_text(tensor.shape)),
                here);
  return *bytes;
}

template <class Tensor>
void require_texts(std::span<const Tensor> tensors, const Metadata& metadata, Here here) {
  std::set<std::string_view> names;
  for (const Tensor& tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second)
      throw Error(Code::kInvalidValue, fmt::format("tensor '{}': the name is taken", tensor.name), here);
    require_text("a tensor's name", tensor.name, here);
  }
  for (const auto& [name, text] : metadata) {
    require_text("a name in the metadata", name, here);
    require_text("a text in the metadata", text, here);
  }
}

// Indices in the order in which tensors lie: the widest types first.
template <class Tensor>
std::vector<std::size_t> order_of(std::span<const Tensor> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return bytes_of(tensors[a].type) > bytes_of(tensors[b].type); });
  return order;
}

template <class Tensor>
std::string header_of(std::span<const Tensor> tensors, const std::vector<std::size_t>& order,
                      const Metadata& metadata) {
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
  for (const std::size_t index : order) {
    const Tensor& tensor = tensors[index];
    const std::uint64_t end = at + bytes_in(tensor, {});
    next(tensor.name);
    put(fmt::format("{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", data_type_name(tensor.type),
                    shape_text(tensor.shape), at, end));
    at = end;
  }
  put(json.size() == 0 ? "{}" : "}");
  while ((8 + json.size()) % kAlign != 0) put(" ");
  return fmt::to_string(json);
}

// Only what the reader takes is written.
void write_header(OutputFile& out, const std::string& json, std::uint64_t bytes, const std::string& path, Here here) {
  if (json.size() > kMaxHeaderBytes)
    throw Error(Code::kInvalidValue,
                fmt::format("'{}': a header of {} bytes, and at most {} are allowed: write several files", path,
                            json.size(), kMaxHeaderBytes),
                here);
  static_cast<void>(parse_header(json, 8 + json.size() + bytes, path, here));
  std::string length;
  for (std::size_t i = 0; i < 8; ++i) length += static_cast<char>(json.size() >> (8 * i) & 0xff);
  out.write(length);
  out.write(json);
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void write_tensors(const std::string& path, std::span<const TensorData> tensors, const Metadata& metadata, Here here) {
  require_texts(tensors, metadata, here);
  std::uint64_t total = 0;
  for (const TensorData& tensor : tensors) {
    const std::uint64_t bytes = bytes_in(tensor, here);
    if (bytes != tensor.bytes.size())
      throw Error(Code::kInvalidValue,
                  fmt::format("tensor '{}' of {} {} takes {} bytes, and {} are given", tensor.name,
                              data_type_name(tensor.type), shape_text(tensor.shape), bytes, tensor.bytes.size()),
                  here);
    total += bytes;
  }
  const std::vector<std::size_t> order = order_of(tensors);
  OutputFile out(path, here);
  write_header(out, header_of(tensors, order, metadata), total, path, here);
  for (const std::size_t index : order) out.write(as_text(tensors[index].bytes));
  out.finish();
}

void write_tensors(const std::string& path, std::span<const TensorShape> tensors, const FillTensor& fill,
                   const Metadata& metadata, Here here) {
  require_texts(tensors, metadata, here);
  std::uint64_t total = 0;
  for (const TensorShape& tensor : tensors) {
    if (__builtin_add_overflow(total, bytes_in(tensor, here), &total) || total > std::uint64_t{1} << 62)
      throw Error(Code::kInvalidValue,
                  fmt::format("tensor '{}' of {} {} makes '{}' larger than a file can be", tensor.name,
                              data_type_name(tensor.type), shape_text(tensor.shape), path),
                  here);
  }
  const std::vector<std::size_t> order = order_of(tensors);
  OutputFile out(path, here);
  write_header(out, header_of(tensors, order, metadata), total, path, here);
  std::vector<std::byte> piece(std::min<std::uint64_t>(kPieceBytes, total));
  for (const std::size_t index : order) {
    const std::uint64_t bytes = bytes_in(tensors[index], here);
    for (std::uint64_t offset = 0; offset < bytes; offset += piece.size()) {
      const std::span<std::byte> part(piece.data(), std::min<std::uint64_t>(piece.size(), bytes - offset));
      fill(index, offset, part);
      out.write(as_text(part));
    }
  }
  out.finish();
}

}  // namespace slip
