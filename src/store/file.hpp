// File: a file opened for reading at any offset by any thread. It records the state of the file at open. So a file that
// is truncated or written during a run gives an error instead of wrong bytes. Also has queries of the page cache. Used
// by BlockReader and by the readers of model, weight and topology files.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.hpp"
#include "slip/error.hpp"

namespace slip::store {

// The maximum alignment for direct I/O that is supported. A file that needs more is read through the page cache.
inline constexpr std::size_t kMaxDirectAlignment = std::size_t{64} << 10;

class File {
 public:
  // Opens a file for reading. Throws kIo with the path and the reason.
  static File open(const std::string& path, Here here = Here::at());

  // Reads all the bytes, or throws kIo with the path, the offset and the bytes found. Thread-safe.
  void read(std::uint64_t offset, void* into, std::size_t bytes, Here here = Here::at()) const;
  // Throws kIo if the file has another size or was written since it was opened.
  void require_unchanged(Here here = Here::at()) const;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return static_cast<std::uint64_t>(state_.st_size); }
  int descriptor() const { return descriptor_.number(); }
  // For direct I/O, which bypasses the page cache. The descriptor is -1 if the file system does not support it. The
  // alignment is required of offsets, lengths and addresses.
  int direct_descriptor() const { return direct_.number(); }
  std::size_t direct_alignment() const { return direct_alignment_; }

 private:
  void open_direct();

  std::string path_;
  base::OwnedDescriptor descriptor_, direct_;
  std::size_t direct_alignment_ = 1;
  struct stat state_ {};  // at the time of opening
};

// Returns the number of bytes read: fewer than `bytes` at the end of the file, or if `error` is set to an errno.
std::size_t read_up_to(int descriptor, std::uint64_t offset, void* into, std::size_t bytes, int& error);

bool is_folder(const std::string& path);
// Sorted names of the files in a folder that end with `ending`. Throws kIo with the path and the reason.
std::vector<std::string> files_in(const std::string& folder, std::string_view ending, Here here = Here::at());

// The whole text of a small file. Throws kIo with the path and the reason, and kParse if it has more than `max_bytes`.
// `what` names the expected content in that error.
std::string read_text(const std::string& path, std::uint64_t max_bytes, const char* what, Here here);

// Copies from `offset` up to the first byte that is not in the page cache, without reading the disk. Returns the number
// of bytes; 0 also if the system does not support it.
std::size_t read_cached(const File& file, std::uint64_t offset, void* into, std::size_t bytes);

// True: the system reports that all of the range is in the page cache.
bool all_cached(const File& file, std::uint64_t offset, std::size_t bytes);
// True: the system reports that no page of the range is in the page cache.
bool none_cached(const File& file, std::uint64_t offset, std::size_t bytes);

}  // namespace slip::store
