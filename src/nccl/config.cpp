#include <strings.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/env.hpp"
#include "base/quantity_text.hpp"
#include "nccl/api.hpp"
#include "nccl/comm.hpp"

namespace slip::nccl {
namespace {

constexpr unsigned kMagic = 0xcafebeef;
// The first version with a config (2.14) had one option, `blocking`.
constexpr std::size_t kSmallestConfig = 24;
// NCCL waits for ever until all ranks have joined; a job scheduler may start them minutes apart.
constexpr int kInitSeconds = 600, kCallSeconds = 600;

std::chrono::milliseconds seconds_of(const char* variable, int default_seconds) {
  const std::string text = base::env_text(variable);
  if (text.empty()) return std::chrono::seconds(default_seconds);
  const std::optional<int> value = base::parse_number<int>(text, 1, INT_MAX);
  if (!value) invalid_usage("{}={}: a positive number of seconds is expected", variable, text);
  return std::chrono::seconds(*value);
}

// Sets the fields that the caller's version did not have to NCCL_CONFIG_UNDEF_INT or null. The size of the struct does
// not exclude all of them: that of 2.14 ends with padding where cgaClusterSize is now, that of 2.18 where
// trafficClass is.
void reset_newer_fields(ncclConfig_t& config) {
  const ncclConfig_t undefined = NCCL_CONFIG_INITIALIZER;
  const auto reset_before = [&](unsigned version, auto... fields) {
    if (config.version < version) ((config.*fields = undefined.*fields), ...);
  };
  using C = ncclConfig_t;
  reset_before(NCCL_VERSION(2, 17, 0), &C::cgaClusterSize, &C::minCTAs, &C::maxCTAs, &C::netName);
  reset_before(NCCL_VERSION(2, 18, 0), &C::splitShare);
  reset_before(NCCL_VERSION(2, 25, 0), &C::trafficClass);
  reset_before(NCCL_VERSION(2, 27, 0), &C::collnetEnable, &C::CTAPolicy, &C::shrinkShare, &C::nvlsCTAs);
  reset_before(NCCL_VERSION(2, 28, 0), &C::nChannelsPerNetPeer, &C::nvlinkCentricSched);
}

// The fields of the caller's struct. Those that it does not have are NCCL_CONFIG_UNDEF_INT or null.
ncclConfig_t fields_of(const ncclConfig_t* config) {
  ncclConfig_t result = NCCL_CONFIG_INITIALIZER;
  if (!config) return result;
  if (config->magic != kMagic || config->size < kSmallestConfig)
    invalid_argument("config has size {}, magic {:#x}, version {}: it was not made by NCCL_CONFIG_INITIALIZER",
                     config->size, config->magic, config->version);
  std::memcpy(&result, config, std::min(config->size, sizeof(ncclConfig_t)));
  reset_newer_fields(result);
  return result;
}

void require_field(const char* name, int value, int low, int high) {
  if (value == NCCL_CONFIG_UNDEF_INT || (value >= low && value <= high)) return;
  invalid_argument("config.{} is {}: {} to {} are possible, or NCCL_CONFIG_UNDEF_INT", name, value, low, high);
}

void require_fields(const ncclConfig_t& config) {
  require_field("blocking", config.blocking, 0, 1);
  require_field("cgaClusterSize", config.cgaClusterSize, 0, 8);
  require_field("minCTAs", config.minCTAs, 1, INT_MAX);
  require_field("maxCTAs", config.maxCTAs, 1, INT_MAX);
  if (config.minCTAs != NCCL_CONFIG_UNDEF_INT && config.maxCTAs != NCCL_CONFIG_UNDEF_INT &&
      config.minCTAs > config.maxCTAs)
    invalid_argument("config.minCTAs is {} and config.maxCTAs {}", config.minCTAs, config.maxCTAs);
  require_field("splitShare", config.splitShare, 0, 1);
  require_field("collnetEnable", config.collnetEnable, 0, 1);
  require_field("CTAPolicy", config.CTAPolicy, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO);
  require_field("shrinkShare", config.shrinkShare, 0, 1);
  require_field("nvlsCTAs", config.nvlsCTAs, 1, INT_MAX);
  require_field("nChannelsPerNetPeer", config.nChannelsPerNetPeer, 1, INT_MAX);
  require_field("nvlinkCentricSched", config.nvlinkCentricSched, 0, 1);
  if (config.netName && strcasecmp(config.netName, "socket") != 0)
    invalid_usage("config.netName is '{}': this library has the network 'Socket' only", config.netName);
}

bool blocks_by_default() { return base::env_text("NCCL_COMM_BLOCKING") != "0"; }

CommConfig defaults() {
  CommConfig result;
  result.blocking = blocks_by_default();
  result.options.init_timeout = init_timeout();
  result.options.timeout = seconds_of("SLIP_NCCL_TIMEOUT", kCallSeconds);
  if (base::env().topo_file.empty()) result.options.topology = base::env_text("NCCL_TOPO_FILE");
  if (base::env().host_id.empty()) result.options.host = base::env_text("NCCL_HOSTID");
  return result;
}

}  // namespace

std::chrono::milliseconds init_timeout() { return seconds_of("SLIP_NCCL_INIT_TIMEOUT", kInitSeconds); }

CommConfig read_config(const ncclConfig_t* config, const CommConfig& parent) {
  const ncclConfig_t fields = fields_of(config);
  require_fields(fields);
  CommConfig result = parent;
  if (config) result.blocking = blocks_by_default();
  if (fields.blocking != NCCL_CONFIG_UNDEF_INT) result.blocking = fields.blocking == 1;
  if (fields.commName) result.options.name = fields.commName;
  return result;
}

CommConfig read_config(const ncclConfig_t* config) { return read_config(config, defaults()); }

}  // namespace slip::nccl
