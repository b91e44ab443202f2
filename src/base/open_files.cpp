#include "base/open_files.hpp"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "base/fail.hpp"

namespace slip::base {
namespace {

std::string limit_text(rlim_t limit) { return limit == RLIM_INFINITY ? "any number" : fmt::format("{}", limit); }

std::string limit_of(int error) {
  if (error == ENFILE) return "the limit of this host is in /proc/sys/fs/file-max";
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return "see ulimit -n";
  const std::string more = files.rlim_max > files.rlim_cur
                               ? fmt::format("up to {} without root", limit_text(files.rlim_max))
                               : "a higher limit needs root";
  return fmt::format("this process may have {} open; raise the limit before it starts with ulimit -n ({})",
                     limit_text(files.rlim_cur), more);
}

}  // namespace

bool is_out_of_descriptors(int error) { return error == EMFILE || error == ENFILE; }

void fail_errno(const std::string& what, int error) {
  if (!is_out_of_descriptors(error)) fail(ErrorCode::kIo, {}, "{}: {}", what, std::strerror(error));
  throw TooManyFiles(ErrorCode::kIo, fmt::format("{}: {}: {}", what, std::strerror(error), limit_of(error)), {});
}

}  // namespace slip::base
