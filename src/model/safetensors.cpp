#include "model/safetensors.hpp"

#include <algorithm>
#include <set>

#include "base/fail.hpp"
#include "base/json_reader.hpp"
#include "base/json_text.hpp"

namespace slip::model {
namespace {

constexpr std::size_t kMaxShapeLength = 64;
constexpr std::size_t kMaxShownBytes = 200;  // of a name in an error message

// Reads the JSON of a header and checks that its tensors cover the data of the file without gaps and overlaps.
class HeaderReader {
 public:
  HeaderReader(std::string_view json, std::uint64_t file_bytes, const std::string& path, Here here)
      : json_(path, base::JsonReader::from_text(json), here),
        data_begin_(8 + json.size()),
        data_bytes_(file_bytes - data_begin_),
        path_(path),
        here_(here) {}

  SafetensorsHeader read() {
    json_.members([this](std::string_view key) {
      const std::string name(key);
      if (has_control_characters(name)) fail("tensor {}: a name with control characters", shown(name));
      if (!names_.insert(name).second) fail("{} is there twice", shown(name));
      json_.within(name == "__metadata__" ? name : "tensor " + shown(name));
      if (name == "__metadata__") read_metadata();
      else read_tensor(name);
      json_.within("");
    });
    json_.finish();
    require_no_gaps();
    return std::move(header_);
  }

 private:
  template <class... Values>
  [[noreturn]] void fail(fmt::format_string<Values...> what, Values&&... values) const {
    base::fail(ErrorCode::kParse, here_, "'{}': {}", path_, fmt::format(what, std::forward<Values>(values)...));
  }

  void read_metadata() {
    std::set<std::string> known;
    json_.members([&](std::string_view key) {
      std::string name(key);
      if (!known.insert(name).second) fail("__metadata__ has {} twice", shown(name));
      header_.metadata.emplace_back(std::move(name), std::string(json_.text()));
    });
  }

  void read_tensor(const std::string& name) {
    TensorInfo tensor{.name = name, .type = {}, .shape = {}};
    std::optional<DataType> type;
    std::optional<std::pair<std::uint64_t, std::uint64_t>> offsets;
    bool has_shape = false;
    json_.members([&](std::string_view key) {
      if (key == "dtype" && !type) type = read_type(name);
      else if (key == "shape" && !has_shape) tensor.shape = read_shape(name), has_shape = true;
      else if (key == "data_offsets" && !offsets) offsets = read_offsets(name);
      else fail("tensor {} has {}, which is an unknown or repeated key", shown(name), shown(key));
    });
    if (!type || !has_shape || !offsets) fail("tensor {} lacks its dtype, shape or data_offsets", shown(name));
    tensor.type = *type;
    set_range(tensor, offsets->first, offsets->second);
    header_.tensors.push_back(std::move(tensor));
  }

  DataType read_type(const std::string& name) {
    const std::string text(json_.text());
    const std::optional<DataType> type = data_type_of(text);
    if (!type) fail("tensor {} is of type {}, which is not supported", shown(name), shown(text));
    return *type;
  }

  Shape read_shape(const std::string& name) {
    Shape shape;
    json_.items([&] {
      if (shape.size() == kMaxShapeLength) fail("tensor {} has more than {} dimensions", shown(name), kMaxShapeLength);
      shape.push_back(json_.unsigned_number());
    });
    return shape;
  }

  std::pair<std::uint64_t, std::uint64_t> read_offsets(const std::string& name) {
    std::vector<std::uint64_t> numbers;
    json_.items([&] {
      if (numbers.size() == 2) fail("tensor {}: data_offsets must be two numbers", shown(name));
      numbers.push_back(json_.unsigned_number());
    });
    if (numbers.size() != 2) fail("tensor {}: data_offsets must be two numbers", shown(name));
    return {numbers[0], numbers[1]};
  }

  void set_range(TensorInfo& tensor, std::uint64_t begin, std::uint64_t end) const {
    if (begin > end || end > data_bytes_)
      fail("tensor {} lies at {} to {}, and the file has {} bytes of data", shown(tensor.name), begin, end,
           data_bytes_);
    const std::optional<std::uint64_t> bytes = bytes_of(tensor.type, tensor.shape);
    if (!bytes) fail("tensor {} of shape {} is larger than 2^64 bytes", shown(tensor.name), shape_text(tensor.shape));
    if (*bytes != end - begin)
      fail("tensor {} of {} {} takes {} bytes, and {} are set aside for it ({} to {})", shown(tensor.name),
           data_type_name(tensor.type), shape_text(tensor.shape), *bytes, end - begin, begin, end);
    tensor.offset = data_begin_ + begin;
    tensor.bytes = *bytes;
  }

  void require_no_gaps() {
    std::ranges::stable_sort(header_.tensors, {},
                             [](const TensorInfo& tensor) { return std::pair(tensor.offset, tensor.bytes); });
    std::uint64_t end = data_begin_;
    const TensorInfo* last = nullptr;
    for (const TensorInfo& tensor : header_.tensors) {
      if (tensor.offset != end)
        fail("tensor {} begins {} bytes {} the end of {}", shown(tensor.name),
             tensor.offset < end ? end - tensor.offset : tensor.offset - end, tensor.offset < end ? "before" : "behind",
             last ? shown(last->name) : "the header");
      end = tensor.offset + tensor.bytes;
      last = &tensor;
    }
    if (end != data_begin_ + data_bytes_)
      fail("the last {} bytes belong to no tensor", data_begin_ + data_bytes_ - end);
  }

  base::JsonReader json_;
  std::uint64_t data_begin_, data_bytes_;
  const std::string& path_;
  Here here_;
  SafetensorsHeader header_;
  std::set<std::string> names_;
};

}  // namespace

std::string shown(std::string_view name) {
  const std::string quoted = base::json_string(name.substr(0, kMaxShownBytes));
  const std::string_view inside(quoted.data() + 1, quoted.size() - 2);
  return fmt::format("'{}'{}", inside, name.size() > kMaxShownBytes ? "..." : "");
}

bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

std::string length_text(std::uint64_t bytes) {
  std::string result;
  for (std::size_t i = 0; i < 8; ++i) result += static_cast<char>(bytes >> (8 * i) & 0xff);
  return result;
}

SafetensorsHeader parse_header(std::string_view json, std::uint64_t file_bytes, const std::string& path, Here here) {
  const auto fail = [&](const char* what) { base::fail(ErrorCode::kParse, here, "'{}': {}", path, what); };
  // Two rules of the format that the JSON reader does not check.
  if (!json.starts_with('{')) fail("its header does not begin with '{': not a safetensors file");
  if (!base::is_utf8(json)) fail("its header is not UTF-8");
  return HeaderReader(json, file_bytes, path, here).read();
}

std::string read_header_text(const store::File& file, Here here) {
  const auto fail = [&](const std::string& what) {
    base::fail(ErrorCode::kParse, here, "'{}': {}", file.path(), what);
  };
  unsigned char length[8];
  if (file.size() < sizeof length) fail(fmt::format("{} bytes are no safetensors file", file.size()));
  file.read(0, length, sizeof length, here);
  std::uint64_t bytes = 0;
  for (int i = 7; i >= 0; --i) bytes = bytes << 8 | length[i];
  if (bytes > kMaxHeaderBytes)
    fail(fmt::format("its header would have {} bytes, and at most {} are allowed: not a safetensors file", bytes,
                     kMaxHeaderBytes));
  if (bytes > file.size() - sizeof length)
    fail(fmt::format("its header has {} bytes, and the whole file {}: it was cut short", bytes, file.size()));
  std::string json(bytes, '\0');
  file.read(sizeof length, json.data(), bytes, here);
  return json;
}

SafetensorsHeader read_header(const store::File& file, Here here) {
  return parse_header(read_header_text(file, here), file.size(), file.path(), here);
}

}  // namespace slip::model
