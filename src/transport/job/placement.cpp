#include "transport/job/placement.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

#include "base/clock.hpp"
#include "base/quantity_text.hpp"
#include "transport/bootstrap/secret.hpp"

namespace slip::transport {
namespace {

// A hash of the device and inode of a file: the same in all processes that see the same file. 0: there is no such file.
std::uint64_t identity_of(const char* path) {
  struct stat found {};
  if (::stat(path, &found) != 0) return 0;
  return number_of(std::to_string(found.st_dev) + ":" + std::to_string(found.st_ino));
}

}  // namespace

std::string RankId::text() const { return fmt::format("rank {} of {}", rank, nranks); }

std::string rank_list(std::span<const int> ranks) {
  constexpr std::size_t kShown = 16;
  std::string result = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t shown = std::min(ranks.size(), kShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == ranks.size();
    result += fmt::format("{}{}", i == 0 ? "" : last ? " and " : ", ", ranks[i]);
  }
  if (shown < ranks.size()) result += fmt::format(" and {} more", ranks.size() - shown);
  return result;
}

// The third, the fourth and the 22nd field of /proc/PID/stat. The second field is the program's name in parentheses,
// which may contain any character.
ProcessState process_state(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");  // reads the whole file: the name may contain a newline
  const std::string line(std::istreambuf_iterator<char>(file), {});
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream words(line.substr(name_end + 1));
  std::string word;
  ProcessState result;
  for (int i = 3; i <= 22 && words >> word; ++i) {
    if (i == 3) result.state = word.front();
    if (i == 4)
      result.parent = base::parse_number<std::int32_t>(word, 0, std::numeric_limits<std::int32_t>::max()).value_or(0);
  }
  result.started = number_of(word);
  const std::size_t name = line.find('(');
  if (name < name_end) result.program = line.substr(name + 1, name_end - name - 1);
  return result;
}

Placement Placement::own() {
  Placement result;
  static_cast<void>(::gethostname(result.host, sizeof(result.host) - 1));
  const std::string boot = base::boot_id();
  result.boot = number_of(boot.empty() ? std::string(result.host) : boot);
  result.net_space = identity_of("/proc/thread-self/ns/net");
  result.pid_space = identity_of("/proc/self/ns/pid");
  result.started = process_state("self").started;
  result.pid = ::getpid();
  result.user = ::geteuid();
  return result;
}

bool same_host(const Placement& a, const Placement& b) { return a.boot == b.boot; }

bool same_process(const Placement& a, const Placement& b) {
  return same_host(a, b) && a.pid_space == b.pid_space && a.pid == b.pid && a.started == b.started;
}

bool share_memory(const Placement& a, const Placement& b) {
  return same_host(a, b) && a.net_space == b.net_space && a.user == b.user;
}

}  // namespace slip::transport
