// TensorFiles: tensors in safetensors files, one file or several with an index. open() reads and checks all headers
// only. It guarantees that each listed tensor lies within its file, has the size of its type and shape, and overlaps no
// other. Files that `slip compress` has written are listed with their original tensors, and read() decodes them.
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

namespace slip::store {
class File;
}  // namespace slip::store
namespace slip::model {
class CompressedTensor;
}  // namespace slip::model

namespace slip {

using Shape = std::vector<std::uint64_t>;
std::string shape_text(const Shape& shape);  // "[4096, 11008]"
// Bytes of all elements; empty if the number overflows 64 bits.
std::optional<std::uint64_t> bytes_of(DataType type, const Shape& shape);

struct TensorInfo {
  std::string name;
  DataType type = DataType::kF32;
  Shape shape;
  std::uint32_t file = 0;    // index into TensorFiles::paths()
  std::uint64_t offset = 0;  // in that file
  std::uint64_t bytes = 0;   // of the tensor, also if the file has it compressed
};

class TensorFiles {
 public:
  // `path` is a .safetensors file, an index (.json), or a folder that contains one of them. Throws kIo or kParse with
  // the file, the tensor and the numbers.
  static TensorFiles open(const std::string& path, Here here = Here::at());

  TensorFiles(TensorFiles&&) noexcept;
  TensorFiles& operator=(TensorFiles&&) noexcept;
  ~TensorFiles();

  std::span<const TensorInfo> tensors() const;                                // by file, then by offset
  const TensorInfo* find(std::string_view name) const;                        // null: no such tensor
  const TensorInfo& at(std::string_view name, Here here = Here::at()) const;  // throws kInvalidValue
  const std::vector<std::string>& paths() const;
  std::uint64_t bytes() const;  // of all tensors
  // The metadata of all files as (key, value); equal pairs appear once.
  const std::vector<std::pair<std::string, std::string>>& metadata() const;

  // Reads a tensor, or some of its bytes. Throws kIo if the file changed after open(), and kParse if a compressed block
  // was damaged.
  void read(const TensorInfo& tensor, void* into, Here here = Here::at()) const;
  void read(const TensorInfo& tensor, std::uint64_t offset, void* into, std::size_t bytes,
            Here here = Here::at()) const;

 private:
  friend const store::File& file_of(const TensorFiles& files, const TensorInfo& tensor, Here here);
  friend const model::CompressedTensor* compressed_of(const TensorFiles& files, const TensorInfo& tensor);
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

// Replaces the file atomically: a failure throws kIo and keeps the old file. It refuses tensors that open() would
// refuse. The first tensor starts at a multiple of 64 bytes. The format allows no gaps, so tensors are ordered by
// decreasing element size, and otherwise as given: all are aligned.
void write_tensors(const std::string& path, std::span<const TensorData> tensors,
                   const std::vector<std::pair<std::string, std::string>>& metadata = {}, Here here = Here::at());

// The same for tensors that are not in memory: `fill` writes the bytes of tensors[index] from `offset` into `into`. It
// is called piece by piece, in file order.
struct TensorShape {
  std::string name;
  DataType type = DataType::kF32;
  Shape shape;
};
using FillTensor = std::function<void(std::size_t index, std::uint64_t offset, std::span<std::byte> into)>;
void write_tensors(const std::string& path, std::span<const TensorShape> tensors, const FillTensor& fill,
                   const std::vector<std::pair<std::string, std::string>>& metadata = {}, Here here = Here::at());

}  // namespace slip
