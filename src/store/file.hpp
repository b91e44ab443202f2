// File: bytes on disk, read at any place by any thread. It remembers what the file was when it was opened, so that one
// that is cut short or replaced under a run is noticed instead of giving wrong bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "slip/error.hpp"

namespace slip {

// No file system asks for more; a file that would is read through the page cache.
inline constexpr std::size_t kMaxDirectAlignment = std::size_t{64} << 10;

// What tells a file from another one, and from itself after it was written to.
struct FileState {
  std::uint64_t size = 0;
  std::uint64_t device = 0, inode = 0;
  std::uint64_t names = 0;  // in folders
  std::int64_t written_ns = 0, changed_ns = 0;
};

class File {
 public:
  // For reading. Throws kIo with the path and the reason.
  static File open(const std::string& path, Here here = Here::at());

  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  // All of them, or kIo with the path, the place and how many there were. Thread-safe.
  void read(std::uint64_t offset, void* into, std::size_t bytes, Here here = Here::at()) const;
  // Throws kIo if the file is not what it was: another size, or written to since.
  void require_unchanged(Here here = Here::at()) const;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return state_.size; }
  int descriptor() const { return descriptor_; }
  // Direct I/O, past the page cache: its own descriptor, -1 where the file system has none, and what offsets, lengths
  // and addresses must be multiples of.
  int direct_descriptor() const { return direct_; }
  std::size_t direct_alignment() const { return direct_alignment_; }

 private:
  void open_direct();

  std::string path_;
  int descriptor_ = -1;
  int direct_ = -1;
  std::size_t direct_alignment_ = 1;
  FileState state_;  // when it was opened
};

bool is_folder(const std::string& path);
// Names of the files in a folder that end like this, sorted. Throws kIo with the path and the reason.
std::vector<std::string> files_in(const std::string& folder, std::string_view ending, Here here = Here::at());

}  // namespace slip
