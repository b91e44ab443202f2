// The header of one safetensors file: 8 bytes with its length, then JSON, then the tensors' bytes without holes.
#pragma once

#include "slip/tensors.hpp"
#include "store/file.hpp"

namespace slip {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // as they lie; offsets from the begin of the file
  std::vector<std::pair<std::string, std::string>> metadata;
};

// A name from a file, fit for a message: in quotes, what could fool a terminal escaped, cut where it gets long.
std::string shown(std::string_view name);
// Names are for people, and on their way to a file or a terminal nothing may hide in them.
bool has_control_characters(std::string_view text);

// Throws kParse with the file, the tensor and the numbers.
SafetensorsHeader read_header(const File& file, Here here);
// The same from text, for tests: `file_bytes` is what the whole file has.
SafetensorsHeader parse_header(std::string_view json, std::uint64_t file_bytes, const std::string& path, Here here);

// The open file that a tensor lies in, for who reads it in another way than TensorFiles does. Throws kInvalidValue for
// a tensor of other files.
const File& file_of(const TensorFiles& files, const TensorInfo& tensor, Here here);

}  // namespace slip
