#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cli/commands.hpp"
#include "slip/error.hpp"

namespace slip::cli {

void write_file(const std::string& path, std::string_view text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  int error = file ? 0 : errno;
  if (file) {
    // Some file systems report a full disk only when the file is closed.
    if (std::fwrite(text.data(), 1, text.size(), file) != text.size()) error = errno;
    if (std::fclose(file) != 0 && error == 0) error = errno;
  }
  if (error != 0) throw Error(Code::kIo, fmt::format("cannot write '{}': {}", path, std::strerror(error)), {});
}

}  // namespace slip::cli
