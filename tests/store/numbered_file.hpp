// A file whose every byte is known from its place, so that any range of it can be checked.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "store/reader.hpp"

namespace slip::test {

inline std::byte byte_at(std::uint64_t offset) {
  std::uint64_t word = (offset / 8 + 1) * 0x9E3779B97F4A7C15;
  word = (word ^ word >> 29) * 0xBF58476D1CE4E5B9;
  return static_cast<std::byte>((word ^ word >> 32) >> offset % 8 * 8);
}

inline std::string running_test() {
  std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
  for (char& letter : name) letter = letter == '/' ? '-' : letter;  // of a parameter
  return name;
}

// In the working folder, which is on a disk more often than the one for temporary files.
class NumberedFile {
 public:
  explicit NumberedFile(std::size_t bytes)
      : path_((std::filesystem::current_path() / ("numbered-" + std::to_string(::getpid()) + "-" + running_test()))
                  .string()) {
    std::vector<char> content(bytes);
    for (std::size_t i = 0; i < bytes; ++i) content[i] = static_cast<char>(byte_at(i));
    std::ofstream(path_, std::ios::binary).write(content.data(), static_cast<std::streamsize>(bytes));
  }
  ~NumberedFile() { std::filesystem::remove(path_); }
  NumberedFile(const NumberedFile&) = delete;
  NumberedFile& operator=(const NumberedFile&) = delete;

  const std::string& path() const { return path_; }

  // Out of the page cache, as far as the file system does that.
  void forget(std::uint64_t offset, std::size_t bytes) const {
    const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(file);  // dirty pages stay
    ::posix_fadvise(file, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
    ::close(file);
  }

 private:
  std::string path_;
};

// The kernel cannot write to the first whole page behind this address: a read that reaches it fails.
class UnwritablePage {
 public:
  explicit UnwritablePage(std::byte* address) : bytes_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
    const auto number = reinterpret_cast<std::uintptr_t>(address);
    page_ = address + (bytes_ - number % bytes_) % bytes_;
    protect(PROT_READ);
  }
  ~UnwritablePage() { protect(PROT_READ | PROT_WRITE); }
  UnwritablePage(const UnwritablePage&) = delete;
  UnwritablePage& operator=(const UnwritablePage&) = delete;

 private:
  void protect(int access) const { EXPECT_EQ(::mprotect(page_, bytes_, access), 0); }

  std::size_t bytes_;
  std::byte* page_ = nullptr;
};

inline bool has_ring() {
  store::ReaderOptions options;
  options.disk = store::ReaderOptions::Disk::kRing;
  try {
    const store::BlockReader reader(options);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The first place that is wrong, or "right".
inline std::string wrong_place(const std::byte* bytes, std::uint64_t offset, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (bytes[i] != byte_at(offset + i)) return "wrong at byte " + std::to_string(offset + i);
  }
  return "right";
}

}  // namespace slip::test
