#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "slip/tensors.hpp"

namespace slip {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

using Metadata = std::vector<std::pair<std::string, std::string>>;

// Bytes of a tensor; the greatest number where they are too many to count.
std::uint64_t bytes_in(DataType type, const Shape& shape) {
  std::uint64_t bytes = bytes_of(type);
  for (const std::uint64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) bytes = ~std::uint64_t{0};
  }
  return bytes;
}

template <class Tensor>
void require_names(std::span<const Tensor> tensors, Here here) {
  std::set<std::string_view> names;
  for (const Tensor& tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second)
      throw Error(Code::kInvalidValue, fmt::format("tensor '{}': the name is taken", tensor.name), here);
    if (!is_utf8(tensor.name)) throw Error(Code::kInvalidValue, "a tensor's name that is not UTF-8", here);
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
    const std::uint64_t end = at + bytes_in(tensor.type, tensor.shape);
    next(tensor.name);
    put(fmt::format("{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", data_type_name(tensor.type),
                    shape_text(tensor.shape), at, end));
    at = end;
  }
  put(json.size() == 0 ? "{}" : "}");
  while ((8 + json.size()) % kAlign != 0) put(" ");
  return fmt::to_string(json);
}

void write_header(OutputFile& out, const std::string& json) {
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
  require_names(tensors, here);
  for (const TensorData& tensor : tensors) {
    const std::uint64_t bytes = bytes_in(tensor.type, tensor.shape);
    if (bytes != tensor.bytes.size())
      throw Error(Code::kInvalidValue,
                  fmt::format("tensor '{}' of {} {} takes {} bytes, and {} are given", tensor.name,
                              data_type_name(tensor.type), shape_text(tensor.shape), bytes, tensor.bytes.size()),
                  here);
  }
  const std::vector<std::size_t> order = order_of(tensors);
  OutputFile out(path, here);
  write_header(out, header_of(tensors, order, metadata));
  for (const std::size_t index : order) out.write(as_text(tensors[index].bytes));
  out.finish();
}

void write_tensors(const std::string& path, std::span<const TensorShape> tensors, const FillTensor& fill,
                   const Metadata& metadata, Here here) {
  require_names(tensors, here);
  std::uint64_t total = 0;
  for (const TensorShape& tensor : tensors) {
    if (__builtin_add_overflow(total, bytes_in(tensor.type, tensor.shape), &total) || total > std::uint64_t{1} << 62)
      throw Error(Code::kInvalidValue,
                  fmt::format("tensor '{}' of {} {} makes '{}' larger than a file can be", tensor.name,
                              data_type_name(tensor.type), shape_text(tensor.shape), path),
                  here);
  }
  const std::vector<std::size_t> order = order_of(tensors);
  OutputFile out(path, here);
  write_header(out, header_of(tensors, order, metadata));
  std::vector<std::byte> piece(std::min<std::uint64_t>(kPieceBytes, total));
  for (const std::size_t index : order) {
    const std::uint64_t bytes = bytes_in(tensors[index].type, tensors[index].shape);
    for (std::uint64_t offset = 0; offset < bytes; offset += piece.size()) {
      const std::span<std::byte> part(piece.data(), std::min<std::uint64_t>(piece.size(), bytes - offset));
      fill(index, offset, part);
      out.write(as_text(part));
    }
  }
  out.finish();
}

}  // namespace slip
