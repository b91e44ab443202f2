#include "slip/tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <set>
#include <unordered_map>

#include "base/fail.hpp"
#include "base/json_reader.hpp"
#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "model/compressed_files.hpp"
#include "model/safetensors.hpp"
#include "store/file.hpp"

namespace slip {

struct TensorFiles::State {
  std::deque<store::File> files;  // compressed tensors refer to them: they must not move
  std::vector<std::string> paths;
  std::vector<TensorInfo> tensors;
  std::vector<std::unique_ptr<const model::CompressedTensor>> compressed;  // by tensor; null: it is stored as it is
  std::unordered_map<std::string_view, std::size_t> by_name;               // index into `tensors`
  std::vector<std::pair<std::string, std::string>> metadata;
  std::uint64_t bytes = 0;

  void add(const std::string& path, Here here);
  void index_names(Here here);
};

void TensorFiles::State::add(const std::string& path, Here here) {
  files.push_back(store::File::open(path, here));
  paths.push_back(path);
  model::SafetensorsHeader header = model::read_header(files.back(), here);
  std::optional<model::CompressedHeader> stored;
  if (model::is_compressed(header)) {
    stored = model::read_compressed_header(files.back(), here);
    header = stored->original;
  }
  for (TensorInfo& tensor : header.tensors) {
    compressed.push_back(stored ? std::make_unique<const model::CompressedTensor>(files.back(), *stored, tensor, here)
                                : nullptr);
    if (stored) tensor.offset = compressed.back()->blocks_offset();
    tensor.file = static_cast<std::uint32_t>(files.size() - 1);
    if (__builtin_add_overflow(bytes, tensor.bytes, &bytes))
      base::fail(ErrorCode::kParse, here, "'{}' and those before it have more than 2^64 bytes", path);
    tensors.push_back(std::move(tensor));
  }
  for (auto& text : header.metadata) {  // every shard repeats the metadata that all shards share
    if (std::find(metadata.begin(), metadata.end(), text) == metadata.end()) metadata.push_back(std::move(text));
  }
}

void TensorFiles::State::index_names(Here here) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto [other, first] = by_name.emplace(tensors[i].name, i);
    if (first) continue;
    base::fail(ErrorCode::kParse, here, "tensor {} is in '{}' and in '{}'", model::shown(tensors[i].name),
               paths[tensors[other->second].file], paths[tensors[i].file]);
  }
}

namespace {

constexpr std::uint64_t kMaxIndexBytes = 256'000'000;

// Reads an index: the file of each tensor.
std::vector<std::pair<std::string, std::string>> read_index(const std::string& path, Here here) {
  const std::string text = store::read_text(path, kMaxIndexBytes, "an index", here);
  base::JsonReader json(path, base::JsonReader::from_text(text), here);
  std::vector<std::pair<std::string, std::string>> result;
  std::set<std::string> names;
  bool found = false;
  json.members([&](std::string_view key) {
    if (key != "weight_map") return json.skip();
    if (found) json.fail("a second \"weight_map\"");
    found = true;
    json.members([&](std::string_view tensor) {
      std::string name(tensor);
      if (!names.insert(name).second) json.fail(fmt::format("tensor {} is there twice", model::shown(name)));
      json.within("tensor " + model::shown(name));
      result.emplace_back(std::move(name), std::string(json.text()));
      json.within("");
    });
  });
  json.finish();
  if (result.empty())
    json.fail(found ? "its \"weight_map\" names no tensor" : "no \"weight_map\": not an index of safetensors files");
  return result;
}

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

// The file to open for a folder: its index if there is one, otherwise its only safetensors file.
std::string main_file(const std::string& folder, Here here) {
  for (const char* ending : {".safetensors.index.json", ".safetensors"}) {
    const std::vector<std::string> names = store::files_in(folder, ending, here);
    if (names.size() == 1) return folder + "/" + names[0];
    if (names.size() > 1)
      base::fail(ErrorCode::kIo, here, "'{}' has {} files *{} ('{}', '{}', ...) and nothing says which: name one",
                 folder, names.size(), ending, names[0], names[1]);
  }
  base::fail(ErrorCode::kIo, here, "no *.safetensors file in '{}'", folder);
}

constexpr std::size_t kAlign = 64;
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

using Metadata = std::vector<std::pair<std::string, std::string>>;

// Refuses texts that JSON cannot hold.
void require_text(const char* what, const std::string& text, Here here) {
  if (!base::is_utf8(text)) base::fail(ErrorCode::kInvalidValue, here, "{} is not UTF-8: {}", what, model::shown(text));
}

std::uint64_t bytes_in(const TensorShape& tensor, Here here) {
  const std::optional<std::uint64_t> bytes = bytes_of(tensor.type, tensor.shape);
  if (!bytes)
    base::fail(ErrorCode::kInvalidValue, here, "tensor '{}' of {} {} is larger than 2^64 bytes", tensor.name,
               data_type_name(tensor.type), shape_text(tensor.shape));
  return *bytes;
}

void require_texts(std::span<const TensorShape> tensors, const Metadata& metadata, Here here) {
  std::set<std::string_view> names;
  for (const TensorShape& tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second)
      base::fail(ErrorCode::kInvalidValue, here, "tensor '{}': the name is taken", tensor.name);
    require_text("a tensor's name", tensor.name, here);
  }
  for (const auto& [name, text] : metadata) {
    require_text("a name in the metadata", name, here);
    require_text("a text in the metadata", text, here);
  }
}

// The tensors' indices in the order of the file: the widest types first.
std::vector<std::size_t> order_of(std::span<const TensorShape> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return bytes_of(tensors[i].type); });
  return order;
}

std::string header_of(std::span<const TensorShape> tensors, const std::vector<std::size_t>& order,
                      const Metadata& metadata) {
  std::vector<std::string> texts, members;
  for (const auto& [name, text] : metadata) texts.push_back(base::json_string(name) + ":" + base::json_string(text));
  if (!texts.empty()) members.push_back(fmt::format("\"__metadata__\":{{{}}}", fmt::join(texts, ",")));
  std::uint64_t at = 0;
  for (const std::size_t index : order) {
    const TensorShape& tensor = tensors[index];
    const std::uint64_t end = at + bytes_in(tensor, {});
    members.push_back(fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                                  base::json_string(tensor.name), data_type_name(tensor.type), shape_text(tensor.shape),
                                  at, end));
    at = end;
  }
  std::string json = fmt::format("{{{}}}", fmt::join(members, ","));
  json.append((kAlign - (8 + json.size()) % kAlign) % kAlign, ' ');
  return json;
}

// Refuses a header that the reader would refuse.
void write_header(base::OutputFile& out, const std::string& json, std::uint64_t bytes, const std::string& path,
                  Here here) {
  if (json.size() > model::kMaxHeaderBytes)
    base::fail(ErrorCode::kInvalidValue, here,
               "'{}': a header of {} bytes, and at most {} are allowed: write several files", path, json.size(),
               model::kMaxHeaderBytes);
  static_cast<void>(model::parse_header(json, 8 + json.size() + bytes, path, here));
  out.write(model::length_text(json.size()));
  out.write(json);
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Writes a file of `total` bytes of tensors. write(out, index) writes the bytes of a tensor.
template <class Write>
void write_all(const std::string& path, std::span<const TensorShape> tensors, const Metadata& metadata,
               std::uint64_t total, Here here, const Write& write) {
  const std::vector<std::size_t> order = order_of(tensors);
  base::OutputFile out(path, here);
  write_header(out, header_of(tensors, order, metadata), total, path, here);
  for (const std::size_t index : order) write(out, index);
  out.finish();
}

}  // namespace

TensorFiles::TensorFiles(std::unique_ptr<State> state) : state_(std::move(state)) {}
TensorFiles::TensorFiles(TensorFiles&&) noexcept = default;
TensorFiles& TensorFiles::operator=(TensorFiles&&) noexcept = default;
TensorFiles::~TensorFiles() = default;

TensorFiles TensorFiles::open(const std::string& path, Here here) {
  auto state = std::make_unique<State>();
  const std::string file = store::is_folder(path) ? main_file(path, here) : path;
  if (!file.ends_with(".json")) {
    state->add(file, here);
    state->index_names(here);
    return TensorFiles(std::move(state));
  }
  const auto index = read_index(file, here);
  std::unordered_map<std::string_view, std::uint32_t> shards;
  for (const auto& [tensor, shard] : index) {
    if (shard.empty() || shard.find('/') != std::string::npos || model::has_control_characters(shard))
      base::fail(ErrorCode::kParse, here, "'{}': tensor {} in {}, which is no file's name", file, model::shown(tensor),
                 model::shown(shard));
    if (!shards.emplace(shard, static_cast<std::uint32_t>(state->files.size())).second) continue;
    state->add(folder_of(file) + shard, here);
  }
  state->index_names(here);
  for (const auto& [tensor, shard] : index) {
    const auto found = state->by_name.find(tensor);
    if (found == state->by_name.end() || state->tensors[found->second].file != shards[shard])
      base::fail(ErrorCode::kParse, here, "'{}' says that tensor {} is in {}, where it is not", file,
                 model::shown(tensor), model::shown(shard));
  }
  return TensorFiles(std::move(state));
}

std::span<const TensorInfo> TensorFiles::tensors() const { return state_->tensors; }
const std::vector<std::string>& TensorFiles::paths() const { return state_->paths; }
std::uint64_t TensorFiles::bytes() const { return state_->bytes; }
const std::vector<std::pair<std::string, std::string>>& TensorFiles::metadata() const { return state_->metadata; }

const TensorInfo* TensorFiles::find(std::string_view name) const {
  const auto found = state_->by_name.find(name);
  return found == state_->by_name.end() ? nullptr : &state_->tensors[found->second];
}

const TensorInfo& TensorFiles::at(std::string_view name, Here here) const {
  if (const TensorInfo* tensor = find(name)) return *tensor;
  base::fail(ErrorCode::kInvalidValue, here, "no tensor '{}' among the {} of '{}'", name, state_->tensors.size(),
             state_->paths.front());
}

const store::File& file_of(const TensorFiles& files, const TensorInfo& tensor, Here here) {
  const std::deque<store::File>& all = files.state_->files;
  const model::CompressedTensor* const compressed = compressed_of(files, tensor);
  const std::uint64_t bytes =
      compressed ? compressed->table().bytes() - compressed->table().head_bytes() : tensor.bytes;
  if (tensor.file < all.size() && tensor.offset <= all[tensor.file].size() &&
      bytes <= all[tensor.file].size() - tensor.offset)
    return all[tensor.file];
  base::fail(ErrorCode::kInvalidValue, here, "tensor '{}' ({} bytes at {} of file {}) is not of '{}'", tensor.name,
             tensor.bytes, tensor.offset, tensor.file, files.paths().front());
}

const model::CompressedTensor* compressed_of(const TensorFiles& files, const TensorInfo& tensor) {
  const auto found = files.state_->by_name.find(tensor.name);
  return found == files.state_->by_name.end() ? nullptr : files.state_->compressed[found->second].get();
}

void TensorFiles::read(const TensorInfo& tensor, void* into, Here here) const {
  read(tensor, 0, into, tensor.bytes, here);
}

void TensorFiles::read(const TensorInfo& tensor, std::uint64_t offset, void* into, std::size_t bytes, Here here) const {
  if (offset > tensor.bytes || bytes > tensor.bytes - offset)
    base::fail(ErrorCode::kInvalidValue, here, "{} bytes at {} of tensor '{}', which has {}", bytes, offset,
               tensor.name, tensor.bytes);
  const store::File& file = file_of(*this, tensor, here);
  if (const model::CompressedTensor* const compressed = compressed_of(*this, tensor))
    compressed->read(offset, {static_cast<std::byte*>(into), bytes}, here);
  else file.read(tensor.offset + offset, into, bytes, here);
  file.require_unchanged(here);
}

void write_tensors(const std::string& path, std::span<const TensorData> tensors, const Metadata& metadata, Here here) {
  std::vector<TensorShape> shapes;
  for (const TensorData& tensor : tensors) shapes.push_back({tensor.name, tensor.type, tensor.shape});
  require_texts(shapes, metadata, here);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorData& tensor = tensors[i];
    const std::uint64_t bytes = bytes_in(shapes[i], here);
    if (bytes != tensor.bytes.size())
      base::fail(ErrorCode::kInvalidValue, here, "tensor '{}' of {} {} takes {} bytes, and {} are given", tensor.name,
                 data_type_name(tensor.type), shape_text(tensor.shape), bytes, tensor.bytes.size());
    total += bytes;
  }
  write_all(path, shapes, metadata, total, here,
            [&](base::OutputFile& out, std::size_t index) { out.write(as_text(tensors[index].bytes)); });
}

void write_tensors(const std::string& path, std::span<const TensorShape> tensors, const FillTensor& fill,
                   const Metadata& metadata, Here here) {
  require_texts(tensors, metadata, here);
  std::uint64_t total = 0;
  for (const TensorShape& tensor : tensors) {
    if (__builtin_add_overflow(total, bytes_in(tensor, here), &total) || total > std::uint64_t{1} << 62)
      base::fail(ErrorCode::kInvalidValue, here, "tensor '{}' of {} {} makes '{}' larger than a file can be",
                 tensor.name, data_type_name(tensor.type), shape_text(tensor.shape), path);
  }
  std::vector<std::byte> piece(std::min<std::uint64_t>(kPieceBytes, total));
  write_all(path, tensors, metadata, total, here, [&](base::OutputFile& out, std::size_t index) {
    const std::uint64_t bytes = bytes_in(tensors[index], here);
    for (std::uint64_t offset = 0; offset < bytes; offset += piece.size()) {
      const std::span<std::byte> part(piece.data(), std::min<std::uint64_t>(piece.size(), bytes - offset));
      fill(index, offset, part);
      out.write(as_text(part));
    }
  });
}

namespace {

// By DataType.
constexpr std::array<const char*, 15> kNames = {"BOOL", "U8",  "I8",  "F8_E4M3", "F8_E5M2", "U16", "I16", "F16",
                                                "BF16", "U32", "I32", "F32",     "U64",     "I64", "F64"};

}  // namespace

// Another process may send an invalid type in the signature of its call, so an unknown value has a name, too.
const char* data_type_name(DataType type) {
  const auto index = static_cast<std::size_t>(type);
  return index < kNames.size() ? kNames[index] : "unknown type";
}

std::optional<DataType> data_type_of(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found != kNames.end()) return static_cast<DataType>(found - kNames.begin());
  return std::nullopt;
}

std::optional<std::uint64_t> bytes_of(DataType type, const Shape& shape) {
  std::uint64_t bytes = bytes_of(type);
  for (const std::uint64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace slip
