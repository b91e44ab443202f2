// The header of a safetensors file. A file has 8 bytes with the header's length, the header as JSON, and the bytes of
// the tensors without gaps.
#pragma once

#include "slip/tensors.hpp"
#include "store/file.hpp"

namespace slip::model {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // by offset, which counts from the beginning of the file
  std::vector<std::pair<std::string, std::string>> metadata;
};

// A name from a file for an error message: quoted, with control characters escaped, and shortened if it is long.
std::string shown(std::string_view name);
// Names with control characters are refused: they could hide text in a file or a terminal.
bool has_control_characters(std::string_view text);

std::string length_text(std::uint64_t bytes);  // the 8 bytes before a header of this length

// Throws kParse with the file, the tensor and the numbers.
SafetensorsHeader read_header(const store::File& file, Here here);
std::string read_header_text(const store::File& file, Here here);  // the JSON, with the spaces behind it
// The same from text; `file_bytes` is the size of the whole file.
SafetensorsHeader parse_header(std::string_view json, std::uint64_t file_bytes, const std::string& path, Here here);

}  // namespace slip::model

namespace slip {

// The open file of a tensor, for the loader, which reads it with a BlockReader. Throws kInvalidValue if the tensor does
// not lie in these files.
const store::File& file_of(const TensorFiles& files, const TensorInfo& tensor, Here here);
// Null: the file has the tensor as it is.
const model::CompressedTensor* compressed_of(const TensorFiles& files, const TensorInfo& tensor);

}  // namespace slip
