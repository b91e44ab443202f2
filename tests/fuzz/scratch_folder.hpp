// A folder of this process, gone with the object.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace slip {

class ScratchFolder {
 public:
  explicit ScratchFolder(const char* name) : path_(fmt::format("{}.{}", name, ::getpid())) {
    std::filesystem::create_directory(path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string at(const std::string& file) const { return path_ + "/" + file; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace slip
