// Tensors in safetensors files: one file, or several with an index. Opening reads the headers only and checks all of
// them: whatever the files hold, a tensor that is told of lies within its file, has the bytes that its type and shape
// say, and shares them with no other.
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
// Of all elements; nothing if 64 bits do not hold the number.
std::optional<std::uint64_t> bytes_of(DataType type, const Shape& shape);

struct TensorInfo {
  std::string name;
  DataType type = DataType::kF32;
  Shape shape;
  std::uint32_t file = 0;    // which of TensorFiles::paths()
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

  std::span<const TensorInfo> tensors() const;                                // by file, and there as they lie
  const TensorInfo* find(std::string_view name) const;                        // null: there is none
  const TensorInfo& at(std::string_view name, Here here = Here::at()) const;  // throws kInvalidValue
  const std::vector<std::string>& paths() const;
  std::uint64_t bytes() const;  // of all tensors
  // The texts that the files carry beside their tensors; what several say alike is there once.
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

// Writes it whole or not at all: a failure throws kIo and leaves what was there. What open() would refuse is not
// written. The first tensor begins at a multiple of 64 bytes; the format allows no holes, so the widest types come
// first, each in the order given.
void write_tensors(const std::string& path, std::span<const TensorData> tensors,
                   const std::vector<std::pair<std::string, std::string>>& metadata = {}, Here here = Here::at());

// The same for tensors that need not be in memory: `fill` is asked for the bytes of tensors[index] from `offset` on,
// piece by piece in the order in which they are written.
struct TensorShape {
  std::string name;
  DataType type = DataType::kF32;
  Shape shape;
};
using FillTensor = std::function<void(std::size_t index, std::uint64_t offset, std::span<std::byte> into)>;
void write_tensors(const std::string& path, std::span<const TensorShape> tensors, const FillTensor& fill,
                   const std::vector<std::pair<std::string, std::string>>& metadata = {}, Here here = Here::at());

}  // namespace slip
