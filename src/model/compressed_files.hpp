// Compressed weights in safetensors files. Every safetensors reader can open such a file. It has the names of the
// original tensors; each tensor is U8, with the bytes of a compressed tensor (codec/tensor.hpp). With the metadata the
// original file can be restored byte for byte:
//
//   slip.check    checksum of the whole header, 16 hexadecimal digits, computed with 0 for these digits; comes first
//   slip.codec    "slip weights"
//   slip.version  "1"
//   slip.bytes    size of the original file
//   slip.header   the header of the original file, unchanged
//   others        the metadata of the original file
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "model/codec/tensor.hpp"
#include "model/safetensors.hpp"

namespace slip::model {

struct CompressedHeader {
  std::string original_text;                                    // the header of the original file
  SafetensorsHeader original, stored;                           // of the original file, and of the compressed one
  std::uint64_t original_bytes = 0;                             // size of the original file
  std::unordered_map<std::string, std::size_t> stored_by_name;  // index into stored.tensors: a file may have many

  // The entry of the compressed file for this tensor of the original file. Throws kParse if there is none.
  const TensorInfo& stored_tensor(const TensorInfo& of, const std::string& path, Here here) const;
};
bool is_compressed(const SafetensorsHeader& header);
// Throws kParse, which names the file and the reason: not compressed, another version, or damaged.
CompressedHeader read_compressed_header(const store::File& file, Here here);

// A tensor of a compressed file: its table, and the place of its blocks in the file. `file` must outlive it.
class CompressedTensor {
 public:
  // Reads and checks the head. Throws kParse with the file and the tensor.
  CompressedTensor(const store::File& file, const CompressedHeader& header, const TensorInfo& original, Here here);

  const BlockTable& table() const { return table_; }
  std::uint64_t blocks_offset() const { return offset_ + table_.head_bytes(); }  // in the file
  // Decodes blocks [first, first + count) into `into`, which has room for exactly their weights. Throws kParse, which
  // names the file, the tensor and the block.
  void decode(std::size_t first, std::size_t count, std::span<std::byte> into, Here here) const;
  // Decodes as many bytes of the weights as `into` has, from byte `offset` on, in pieces of some MiB.
  void read(std::uint64_t offset, std::span<std::byte> into, Here here) const;
  const std::string& text() const { return what_; }  // names the file and the tensor

 private:
  const store::File* file_;
  std::uint64_t offset_;
  std::string what_;
  BlockTable table_;
};

struct FilesProgress {
  std::string file;                   // the file that is being written
  std::uint64_t done = 0, total = 0;  // bytes of original tensors
};

struct FilesOptions {
  // true: continues an interrupted call. Compares the files and tensors that exist with the source, and writes the
  // others. false: the target folder must be empty or absent.
  bool resume = false;
  std::function<void(const FilesProgress&)> progress = {};  // called after each piece of some MiB
};

struct FilesResult {
  std::size_t files = 0, tensors = 0;
  std::size_t kept = 0;                                    // tensors that existed already
  std::uint64_t original_bytes = 0, compressed_bytes = 0;  // of all safetensors files
};

// `from` is a folder or a safetensors file, `to` a folder. Writes a file for each safetensors file, with its name, and
// copies the other files of the folder. Throws kIo, kParse or kInvalidValue, which names the file, the
// tensor and the block. Never replaces a file. The name of a file that is not complete ends with ".partial".
FilesResult compress_files(const std::string& from, const std::string& to, const FilesOptions& options, Here here);
FilesResult decompress_files(const std::string& from, const std::string& to, const FilesOptions& options, Here here);

// Constants and the checksum of a compressed file's header, shared by its reader and its writer.

inline constexpr std::string_view kCodecName = "slip weights";
inline constexpr std::string_view kChecksumPrefix = R"({"__metadata__":{"slip.check":")";
inline constexpr std::size_t kChecksumDigits = 16;

// The checksum of a header that begins with kChecksumPrefix; its own digits count as 0.
std::uint64_t header_checksum(std::string text);

}  // namespace slip::model
