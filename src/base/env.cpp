#include "base/env.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "base/thread.hpp"

namespace slip::base {
namespace {

constexpr const char* kCudaConnections = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr int kDefaultCudaConnections = 8;

bool flag(const char* variable) {
  const std::string value = env_text(variable);
  if (value.empty() || value == "0") return false;
  if (value == "1") return true;
  fail(ErrorCode::kInvalidValue, {}, "{}={}: must be 0 or 1", variable, value);
}

int number(const char* variable, int low, int high) {
  const std::string value = env_text(variable);
  if (value.empty()) return 0;
  const std::optional<int> result = parse_number(value, low, high);
  if (!result) fail(ErrorCode::kInvalidValue, {}, "{}={}: must be {} to {}", variable, value, low, high);
  return *result;
}

Env read() {
  Env result;
  result.launch_blocking = flag("SLIP_LAUNCH_BLOCKING");
  result.max_connections = number("SLIP_MAX_CONNECTIONS", 1, 32);
  result.policy = env_text("SLIP_POLICY");
  result.strict = flag("SLIP_STRICT");
  result.check = flag("SLIP_CHECK");
  result.trace = env_text("SLIP_TRACE");
  result.topo_file = env_text("SLIP_TOPO_FILE");
  if (!env_text("SLIP_TOPO_DEVICE").empty()) result.topo_device = number("SLIP_TOPO_DEVICE", 0, 1 << 20);
  result.algorithm = env_text("SLIP_ALGORITHM");
  result.transport = env_text("SLIP_TRANSPORT");
  result.net = env_text("SLIP_NET");
  result.ucx_library = env_text("SLIP_UCX_LIBRARY");
  result.host_id = env_text("SLIP_HOST_ID");
  result.min_channels = number("SLIP_MIN_CHANNELS", 1, 32);
  result.max_channels = number("SLIP_MAX_CHANNELS", 1, 32);
  result.sockets = number("SLIP_SOCKETS", 1, 16);
  result.zero_copy = number("SLIP_ZERO_COPY", 1, std::numeric_limits<int>::max());
  result.nccl_polled = flag("SLIP_NCCL_POLLED");
  result.nccl = env_text("SLIP_NCCL");
  result.debug = env_text("SLIP_DEBUG");
  result.ports = parse_ports(env_text("SLIP_PORTS"));
  return result;
}

// The variables of each launcher, in the order in which transport/launch_info checks them. If `marker` is not set, that
// launcher did not start this process.
struct Launcher {
  const char* marker;
  const char* rank;
  const char* ranks;
};
constexpr Launcher kLaunchers[] = {
    {"SLIP_RANK", "SLIP_RANK", "SLIP_NRANKS"},
    {"JOB_COMPLETION_INDEX", "JOB_COMPLETION_INDEX", "SLIP_NRANKS"},
    {"PMIX_RANK", "PMIX_RANK", "SLIP_NRANKS"},
    {"MASTER_ADDR", "RANK", "WORLD_SIZE"},
    {"JOB_COMPLETION_INDEX", "JOB_COMPLETION_INDEX", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"MPI_LOCALNRANKS", "PMI_RANK", "PMI_SIZE"},
    {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS"},
    {"PMI_RANK", "PMI_RANK", "PMI_SIZE"},
};

std::optional<int> number_of(const std::string& text) { return parse_number(text, 0, std::numeric_limits<int>::max()); }

}  // namespace

bool debugs(std::string_view topic) {
  const std::string& listed = env().debug;
  return !listed.empty() && fmt::format(",{},", listed).find(fmt::format(",{},", topic)) != std::string::npos;
}

const Env& env() {
  struct ReadOnce : Env {
    ReadOnce() : Env(read()) {}
  };
  return process_wide<ReadOnce>();
}

PortRange parse_ports(const std::string& text) {
  if (text.empty()) return {};
  constexpr int kMax = 65'535;
  const std::size_t dash = std::min(text.find('-'), text.size());
  const std::optional<int> first = parse_number(text.substr(0, dash), 1, kMax);
  const std::optional<int> last = dash == text.size() ? first : parse_number(text.substr(dash + 1), 1, kMax);
  if (!first || !last || *last < *first)
    fail(ErrorCode::kInvalidValue, {}, "SLIP_PORTS={}: must be LOW-HIGH, two ports from 1 to {}", text, kMax);
  return {*first, *last};
}

std::string env_text(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

std::string socket_interface_rule() {
  const std::string own = env_text("SLIP_SOCKET_IFNAME");
  return own.empty() ? env_text("NCCL_SOCKET_IFNAME") : own;
}

std::vector<std::string> env_with(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view line(*entry);
    if (!changes.contains(std::string(line.substr(0, line.find('='))))) result.emplace_back(line);
  }
  for (const auto& [name, value] : changes) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

std::map<std::string, std::string> env_named(std::string_view prefix) {
  std::map<std::string, std::string> result;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view line(*entry);
    const std::size_t equals = line.find('=');
    if (line.starts_with(prefix) && equals != std::string_view::npos && equals >= prefix.size())
      result.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return result;
}

bool nvtx_wanted() {
  static const bool kWanted = !env_text("NVTX_INJECTION64_PATH").empty();
  return kWanted;
}

int cuda_connections() {
  const int set = std::atoi(env_text(kCudaConnections).c_str());
  return set > 0 ? set : kDefaultCudaConnections;
}

void set_cuda_connections(int count) { setenv(kCudaConnections, std::to_string(count).c_str(), 0); }

std::optional<JobRank> read_job_rank(const std::function<std::string(const char*)>& variables) {
  for (const Launcher& launcher : kLaunchers) {
    if (variables(launcher.marker).empty()) continue;
    const std::optional<int> rank = number_of(variables(launcher.rank)), ranks = number_of(variables(launcher.ranks));
    if (rank && ranks && *rank < *ranks) return JobRank{*rank, *ranks};
  }
  return std::nullopt;
}

std::optional<JobRank> job_rank() {
  return read_job_rank([](const char* name) { return env_text(name); });
}

}  // namespace slip::base
