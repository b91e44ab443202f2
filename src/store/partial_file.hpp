// PartialFile: a large file that is written over a long time. It has the name PATH.partial until finish() renames it to
// PATH. If the process ends earlier, the partial file stays, and a later process continues it. Two processes cannot
// write the same one. finish() never replaces a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/descriptor.hpp"
#include "slip/error.hpp"

namespace slip::store {

class PartialFile {
 public:
  // Opens or makes PATH.partial. Throws kIo with the path and the reason; also if another process writes it.
  PartialFile(const std::string& path, Here here);

  static std::string partial_path(const std::string& path) { return path + ".partial"; }

  std::uint64_t size() const { return size_; }  // bytes in the file, including those of an earlier process
  // Reads exactly these bytes. Returns false if the file ends before the last of these bytes.
  bool read(std::uint64_t offset, std::span<std::byte> into) const;
  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  void truncate(std::uint64_t size);
  // Waits until all bytes are on the disk, then renames the file. Throws kIo if a file of that name exists.
  void finish();
  // Removes the partial file.
  void discard() noexcept;

 private:
  bool open_locked();
  [[noreturn]] void fail(const char* what, int error) const;

  std::string path_, partial_;
  Here here_;
  base::OwnedDescriptor file_;
  std::uint64_t size_ = 0;
};

}  // namespace slip::store
