#include "store/text.hpp"

#include <fmt/format.h>

#include "store/file.hpp"

namespace slip {

std::string read_text(const std::string& path, std::uint64_t max_bytes, const char* what, Here here) {
  const File file = File::open(path, here);
  if (file.size() > max_bytes)
    throw Error(Code::kParse, fmt::format("'{}' has {} bytes: not {}", path, file.size(), what), here);
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size(), here);
  return text;
}

}  // namespace slip
