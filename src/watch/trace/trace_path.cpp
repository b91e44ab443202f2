#include "watch/trace/trace_path.hpp"

#include <string_view>

namespace slip {
namespace {

bool replace_all(std::string& text, std::string_view what, const std::string& by) {
  bool found = false;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
    found = true;
  }
  return found;
}

}  // namespace

std::string trace_path(const std::string& pattern, std::optional<JobRank> rank, int process) {
  std::string path = pattern;
  const std::string number = std::to_string(rank ? rank->rank : 0);
  const bool ranked = replace_all(path, "%r", number);
  const bool apart = replace_all(path, "%p", std::to_string(process));
  if (ranked || apart || !rank || rank->ranks < 2) return path;
  const std::size_t folder = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  std::size_t dot = path.rfind('.');
  if (dot == std::string::npos || dot <= folder) dot = path.size();  // a name may begin with a dot
  return path.insert(dot, "." + number);
}

}  // namespace slip
