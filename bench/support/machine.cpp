#include "machine.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>

#include "timing.hpp"

namespace slip::bench {
namespace {

// The output of a command. Empty if it cannot be run or fails: a result without it is still useful.
std::string output_of(const char* command) {
  FILE* pipe = popen(command, "r");
  if (pipe == nullptr) return {};
  std::string text;
  char buffer[512];
  while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, got);
  return pclose(pipe) == 0 ? text : std::string{};
}

std::string trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const auto first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(kBlank) - first + 1));
}

std::string field_of(std::istream& lines, std::string_view key) {
  std::string line;
  while (std::getline(lines, line)) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    if (trim(std::string_view(line).substr(0, colon)) == key) return trim(line.substr(colon + 1));
  }
  return {};
}

std::string read_cpu_model() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  if (std::string model = field_of(cpuinfo, "model name"); !model.empty()) return model;
  // The Arm kernel gives part numbers only; lscpu has the table that names them.
  std::istringstream lscpu(output_of("LC_ALL=C lscpu 2>/dev/null"));
  if (std::string model = field_of(lscpu, "Model name"); !model.empty()) return model;
  return "unknown";
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "unknown";
#endif
}

std::string iso_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text, length};
}

}  // namespace

MachineInfo read_machine_info() {
  MachineInfo info;
  info.cpu_model = read_cpu_model();
  info.cores = std::thread::hardware_concurrency();
  utsname names{};
  if (uname(&names) == 0) {
    info.arch = names.machine;
    info.kernel = std::string(names.sysname) + " " + names.release;
  }
  info.compiler = compiler_name();
  info.date = iso_date();
  info.git_commit = trim(output_of("git rev-parse HEAD 2>/dev/null"));
  double load = 0;
  if (getloadavg(&load, 1) == 1) info.load_average = load;
  return info;
}

std::optional<std::uint64_t> current_rss_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t total_pages = 0;
  std::uint64_t resident_pages = 0;
  if (!(statm >> total_pages >> resident_pages)) return std::nullopt;
  return resident_pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace slip::bench
