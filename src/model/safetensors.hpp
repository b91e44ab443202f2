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

// Throws kParse with the file, the tensor and the numbers.
SafetensorsHeader read_header(const File& file, Here here);
// The same from text, for tests: `file_bytes` is what the whole file has.
SafetensorsHeader parse_header(std::string_view json, std::uint64_t file_bytes, const std::string& path, Here here);

}  // namespace slip
