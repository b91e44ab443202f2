// Tensors in safetensors files: one file, or several with an index. Opening reads and checks only the headers. Whatever
// the files contain, each tensor of an opened file lies within its file, has the size of its type and shape, and
// overlaps no other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slip/data_type.hpp"
#include "slip/error.hpp"

namespace slip {

using Shape = std::vector<std::uint64_t>;
std::string shape_text(const Shape& shape);  // "[4096, 11008]"
// The size of all elements; nothing if it does not fit into 64 bits.
std::optional<std::uint64_t> bytes_of(DataType type, const Shape& shape);

struct TensorInfo {
  std::string name;
  DataType type = DataType::kF32;
  Shape shape;
  std::uint32_t file = 0;    // index into TensorFiles::paths()
  std::uint64_t offset = 0;  // in that file
  std::uint64_t bytes = 0;
};

class File;

class TensorFiles {
 public:
  // A .safetensors file, an index (.json), or a folder with one of them. Throws kIo or kParse with the file, the tensor
  // and the numbers.
  static TensorFiles open(const std::string& path, Here here = Here::at());

  TensorFiles(TensorFiles&&) noexcept;
  TensorFiles& operator=(TensorFiles&&) noexcept;
  ~TensorFiles();

  std::span<const TensorInfo> tensors() const;                                // by file, then by offset
  const TensorInfo* find(std::string_view name) const;                        // null if there is none
  const TensorInfo& at(std::string_view name, Here here = Here::at()) const;  // throws kInvalidValue
  const std::vector<std::string>& paths() const;
  std::uint64_t bytes() const;  // of all tensors
  // The metadata of all files: keys and values; a pair that several files have occurs once.
  const std::vector<std::pair<std::string, std::string>>& metadata() const;

  // Reads a tensor, or bytes of it. Throws kIo if the file has changed since it was opened.
  void read(const TensorInfo& tensor, void* into, Here here = Here::at()) const;
  void read(const TensorInfo& tensor, std::uint64_t offset, void* into, std::size_t bytes,
            Here here = Here::at()) const;

 private:
  friend const File& file_of(const TensorFiles& files, const TensorInfo& tensor, Here here);
  struct State;
  explicit TensorFiles(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A tensor to write.
struct TensorData {
  std::string name;
  DataType type = DataType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
};

// Writes a file atomically: a failure throws kIo and leaves an existing file as it was. Refuses what open() would
// refuse. The first tensor begins at a multiple of 64 bytes. The format allows no gaps, so the widest types come first
// to keep tensors aligned; tensors of one width keep their order.
void write_tensors(const std::string& path, std::span<const TensorData> tensors,
                   const std::vector<std::pair<std::string, std::string>>& metadata = {}, Here here = Here::at());

// The same for tensors that need not be in memory: `fill` writes the bytes of tensors[index] from `offset` on. It is
// called piece by piece, in the order of the file.
struct TensorShape {
  std::string name;
  DataType type = DataType::kF32;
  Shape shape;
};
using FillTensor = std::function<void(std::size_t index, std::uint64_t offset, std::span<std::byte> into)>;
void write_tensors(const std::string& path, std::span<const TensorShape> tensors, const FillTensor& fill,
                   const std::vector<std::pair<std::string, std::string>>& metadata = {}, Here here = Here::at());

}  // namespace slip
