// Compressed weights in safetensors files. Every safetensors reader opens such a file: it has the names of the original
// tensors, each as U8 with the bytes of a compressed tensor (codec/tensor.hpp). Its metadata has what gives the
// original file back, byte for byte:
//
//   slip.check    16 hexadecimal digits: a check of the whole header, computed with 0 for these digits; the first
//   member slip.codec    "slip weights" slip.version  "1" slip.bytes    size of the original file slip.header   the
//   header of the original file, as it was written and the metadata of the original file
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "model/codec/tensor.hpp"
#include "model/safetensors.hpp"

namespace slip::model {

struct CompressedHeader {
  std::string original_text;
  SafetensorsHeader original, stored;
  std::uint64_t original_bytes = 0;  // of the whole file

  const TensorInfo& stored_tensor(const TensorInfo& of, const std::string& path, Here here) const;
};
bool is_compressed(const SafetensorsHeader& header);
// Throws kParse with the file and the reason: not compressed, another version, or changed.
CompressedHeader read_compressed_header(const store::File& file, Here here);

// A tensor of a compressed file: its table, and its blocks in the file.
class CompressedTensor {
 public:
  // Reads and checks the head. Throws kParse with the file and the tensor.
  CompressedTensor(const store::File& file, const CompressedHeader& header, const TensorInfo& original, Here here);

  const BlockTable& table() const { return table_; }
  std::uint64_t blocks_offset() const { return offset_ + table_.head_bytes(); }  // in the file
  // Decodes some blocks into `into`, which has room for exactly their weights. Throws kParse with file, tensor, block.
  void decode(std::size_t first, std::size_t count, std::span<std::byte> into, Here here) const;
  // Decodes the weights' bytes from `offset` on, in pieces of some MiB.
  void read(std::uint64_t offset, std::span<std::byte> into, Here here) const;
  const std::string& text() const { return what_; }  // names the file and the tensor

 private:
  const store::File* file_;
  std::uint64_t offset_;
  std::string what_;
  BlockTable table_;
};

struct FilesProgress {
  std::string file;                   // that is being written
  std::uint64_t done = 0, total = 0;  // bytes of original tensors
};

struct FilesOptions {
  // Continues what an earlier call left behind: compares the files and tensors that are there with the source, and
  // writes the others. Otherwise the target must be empty or absent.
  bool resume = false;
  std::function<void(const FilesProgress&)> progress = {};  // called after each piece of some MiB
};

struct FilesResult {
  std::size_t files = 0, tensors = 0;
  std::size_t kept = 0;                                    // tensors that were there already
  std::uint64_t original_bytes = 0, compressed_bytes = 0;  // of all safetensors files
};

// `from` is a folder or a safetensors file, `to` a folder. Writes a file for each safetensors file, with its name, and
// copies the other files of the folder. Throws kIo, kParse or kInvalidValue with the file, the tensor and the block. No
// file is ever replaced; files that are not complete end with ".partial".
FilesResult compress_files(const std::string& from, const std::string& to, const FilesOptions& options, Here here);
FilesResult decompress_files(const std::string& from, const std::string& to, const FilesOptions& options, Here here);

}  // namespace slip::model
