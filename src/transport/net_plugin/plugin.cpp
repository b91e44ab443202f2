#include "transport/net_plugin/plugin.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "base/terminal.hpp"
#include "transport/net/net.hpp"

namespace slip::transport {
namespace {

constexpr std::string_view kPrefix = "libnccl-net", kSuffix = ".so";
constexpr int kMaxDevices = 1024;
constexpr const char* kDeviceVariable = "SLIP_NET_DEVICE";
constexpr std::size_t kLineBytes = 1024;  // a longer line of a plug-in's log is cut off
// A plug-in must accept messages of at least this size.
constexpr std::size_t kMinMessageBytes = 1024;
// The number for the first call of init(), which makes a context for no communicator.
constexpr std::uint64_t kNoCommunicator = 0;

// The last warning that the plug-in logged in this thread. It explains the error that the plug-in returns next.
thread_local char t_warning[kLineBytes];

// Lines of the plug-in are printed up to this level: NCCL_DEBUG=WARN, INFO or TRACE, as in NCCL. SLIP_DEBUG=net: INFO.
int log_limit() {
  static const int kLimit = [] {
    const std::string level = base::env_text("NCCL_DEBUG");
    const auto is = [&](std::string_view name) { return ::strcasecmp(level.c_str(), name.data()) == 0; };
    if (is("TRACE")) return static_cast<int>(NET_LOG_TRACE);
    if (is("INFO") || base::debugs("net")) return static_cast<int>(NET_LOG_INFO);
    return static_cast<int>(is("WARN") ? NET_LOG_WARN : NET_LOG_NONE);
  }();
  return kLimit;
}

[[gnu::format(printf, 5, 6)]] void log(net_log_level level, unsigned long, const char*, int, const char* format, ...) {
  char line[kLineBytes];
  va_list values;
  va_start(values, format);
  std::vsnprintf(line, sizeof(line), format, values);
  va_end(values);
  if (level == NET_LOG_WARN) std::copy(std::begin(line), std::end(line), std::begin(t_warning));
  if (static_cast<int>(level) > log_limit()) return;
  try {
    base::log_line(base::single_line_text(fmt::format("plug-in: {}", line)));
  } catch (...) {  // no memory: the plug-in's C code must not see an exception
  }
}

// Returns the last warning that the plug-in logged in this thread, and clears it.
std::string take_warning() {
  std::string text = base::single_line_text(t_warning);
  t_warning[0] = '\0';
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

// The profiler callback that init() requires: records nothing.
net_result profile(void**, int, void*, std::int64_t, void*) { return NET_SUCCESS; }

const char* result_name(net_result result) {
  switch (result) {
    case NET_SUCCESS: return "ncclSuccess";
    case NET_UNHANDLED_CUDA_ERROR: return "ncclUnhandledCudaError";
    case NET_SYSTEM_ERROR: return "ncclSystemError";
    case NET_INTERNAL_ERROR: return "ncclInternalError";
    case NET_INVALID_ARGUMENT: return "ncclInvalidArgument";
    case NET_INVALID_USAGE: return "ncclInvalidUsage";
    case NET_REMOTE_ERROR: return "ncclRemoteError";
    case NET_IN_PROGRESS: return "ncclInProgress";
  }
  return "a result that NCCL does not define";
}

ErrorCode code_of(net_result result) {
  switch (result) {
    case NET_INVALID_ARGUMENT:
    case NET_INVALID_USAGE: return ErrorCode::kInvalidValue;
    case NET_REMOTE_ERROR: return ErrorCode::kRankLost;
    default: return ErrorCode::kIo;
  }
}

// The files that dlopen() tries, in this order.
std::vector<std::string> files_of(const std::string& name) {
  if (name.empty()) return {fmt::format("{}{}", kPrefix, kSuffix)};
  std::vector<std::string> files{name};
  const bool is_file = name.find('/') != std::string::npos || (name.starts_with("lib") && name.ends_with(kSuffix));
  if (!is_file) files.push_back(fmt::format("{}-{}{}", kPrefix, name, kSuffix));
  return files;
}

// The path of a loaded library; if it is unknown, `otherwise`.
std::string path_of(void* library, const std::string& otherwise) {
  link_map* map = nullptr;
  return ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0' ? map->l_name : otherwise;
}

}  // namespace

const NetPlugin& NetPlugin::load(const std::string& name) {
  struct Loaded {
    base::Mutex mutex;
    std::unique_ptr<const NetPlugin> plugin SLIP_GUARDED_BY(mutex);
  };
  static base::ForkMutex all_mutex;
  // Never deleted: connections may use a plug-in until the process ends.
  static auto* const kAll SLIP_PT_GUARDED_BY(all_mutex) = new std::map<std::pair<pid_t, std::string>, Loaded>;
  const auto find = [&] {
    const base::LockGuard lock(all_mutex);
    return &(*kAll)[{::getpid(), name}];
  };
  Loaded& one = *find();
  // The lock of the table is not held here, because fork() waits for it: loading takes long, and a plug-in may fork
  // meanwhile.
  const base::LockGuard lock(one.mutex);
  if (!one.plugin) one.plugin.reset(new NetPlugin(name));
  return *one.plugin;
}

NetPlugin::NetPlugin(const std::string& name) {
  open(name);
  const char* own_name = nullptr;
  std::string missing;
  version_ = find_plugin_calls(library_, calls_, own_name, missing);
  if (version_ == 0) {
    const std::string others = other_plugin_tables(library_);
    base::fail(ErrorCode::kUnsupported, {}, "{}: the library has no ncclNetPlugin_v8, v9, v10 or v11{}: {}", path_,
               others.empty() ? std::string() : fmt::format(", only {}", others),
               others.empty()
                   ? "it is no network plug-in of NCCL; SLIP_NET=plugin:NAME or NCCL_NET_PLUGIN must name one"
                   : "use a release of the plug-in that has one of them");
  }
  if (!missing.empty())
    base::fail(ErrorCode::kUnsupported, {},
               "{}: its table ncclNetPlugin_v{} has no function {}: use another release of the "
               "plug-in",
               path_, version_, missing);
  name_ = base::single_line_text(own_name && own_name[0] != '\0' ? own_name : "unnamed");
  static_cast<void>(take_warning());
  first_context_ = new PluginContext(*this, kNoCommunicator);
  find_devices();
  choose_devices();
}

PluginContext::PluginContext(const NetPlugin& plugin, std::uint64_t communicator)
    : plugin_(plugin), process_(::getpid()) {
  const PluginCalls& calls = plugin.calls();
  if (const net_result result = calls.init(calls, communicator, &context_, &log, &profile); result != NET_SUCCESS)
    throw plugin.error("init", result, "");
}

PluginContext::~PluginContext() {
  if (plugin_.calls().finalize && process_ == ::getpid())
    static_cast<void>(plugin_.calls().finalize(context_));  // nothing can be done if it fails
}

std::shared_ptr<const PluginContext> NetPlugin::context_of(const Secret& key, int rank) const {
  if (!calls_.finalize) return nullptr;
  const base::LockGuard lock(mutex_);
  std::erase_if(contexts_, [](const auto& one) { return one.second.expired(); });
  std::weak_ptr<const PluginContext>& place = contexts_[{key, rank}];
  std::shared_ptr<const PluginContext> context = place.lock();
  if (context) return context;
  const Secret number = derive(key, "communicator of a plug-in");  // not the key itself, which is secret
  std::uint64_t communicator = kNoCommunicator;
  std::memcpy(&communicator, number.data(), sizeof(communicator));
  context = std::make_shared<const PluginContext>(*this, communicator);
  place = context;
  return context;
}

void NetPlugin::open(const std::string& name) {
  std::string reasons;
  for (const std::string& file : files_of(name)) {
    // RTLD_LOCAL: as NCCL does; the plug-in's names must not replace those of the program.
    library_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_) {
      path_ = path_of(library_, file);
      file_ = path_.substr(path_.rfind('/') + 1);
      return;
    }
    const char* const why = ::dlerror();
    reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", why ? why : file);
  }
  base::fail(
      ErrorCode::kIo, {},
      "the network plug-in '{}' cannot be loaded ({}): name the file with SLIP_NET=plugin:/PATH/libnccl-net.so, or "
      "put its folder into LD_LIBRARY_PATH; ldd shows which of its libraries are missing",
      name.empty() ? std::string("libnccl-net.so") : name, reasons);
}

std::string NetPlugin::text() const { return fmt::format("{} ({}, interface version {})", file_, name_, version_); }

Error NetPlugin::error(std::string_view function, net_result result, std::string_view peer) const {
  const std::string warning = take_warning();
  return base::make_error(code_of(result), {}, "{}{}the plug-in {} failed in {}: {} ({}){}{}", peer,
                          peer.empty() ? "" : ": ", text(), function, result_name(result), static_cast<int>(result),
                          warning.empty() ? "; NCCL_DEBUG=INFO prints the log of the plug-in" : ": ", warning);
}

void NetPlugin::find_devices() {
  int count = 0;
  if (const net_result result = calls_.devices(&count); result != NET_SUCCESS) throw error("devices", result, "");
  if (count <= 0 || count > kMaxDevices)
    base::fail(ErrorCode::kIo, {},
               "the plug-in {} found {} network devices: at least 1 is needed{}; NCCL_DEBUG=INFO prints "
               "the log of the plug-in",
               text(), count, count > kMaxDevices ? fmt::format(", at most {} are possible", kMaxDevices) : "");
  for (int index = 0; index < count; ++index) devices_.push_back(read_device(index));
}

PluginDevice NetPlugin::read_device(int index) const {
  net_properties_v11 properties{};
  if (const net_result result = calls_.get_properties(calls_, index, properties); result != NET_SUCCESS)
    throw error(fmt::format("getProperties of device {}", index), result, "");
  if (properties.max_recvs < 1 || properties.max_p2p_bytes < kMinMessageBytes)
    base::fail(ErrorCode::kIo, {},
               "the plug-in {} says that its device {} receives {} messages at a time, of {} bytes at most: "
               "at least 1 of {} bytes is needed; use another release of the plug-in",
               text(), index, properties.max_recvs, properties.max_p2p_bytes, kMinMessageBytes);
  PluginDevice device;
  device.name = base::single_line_text(properties.name ? properties.name : fmt::format("device {}", index));
  device.pci_path = properties.pci_path ? properties.pci_path : "";
  device.speed_mbps = properties.speed;
  device.max_parts = std::min(static_cast<std::size_t>(properties.max_recvs), kNetMaxParts);
  device.max_bytes = properties.max_p2p_bytes;
  // If a GPU kernel must unpack received bytes (NET_DEVICE_UNPACK), the plug-in is used for host memory only.
  device.takes_gpu_memory = properties.device_type == NET_DEVICE_HOST && (properties.ptr_support & NET_PTR_CUDA) != 0;
  device.takes_dma_buf =
      device.takes_gpu_memory && (properties.ptr_support & NET_PTR_DMABUF) != 0 && calls_.reg_mr_dma_buf != nullptr;
  return device;
}

// Chooses the devices that SLIP_NET_DEVICE lists, by name or number. If it is not set: all of the highest speed.
void NetPlugin::choose_devices() {
  const std::string wanted = base::env_text(kDeviceVariable);
  for (const std::string_view entry : base::split(wanted, ",")) {
    if (entry.empty()) continue;
    const auto named = std::find_if(devices_.begin(), devices_.end(), [&](const PluginDevice& one) {
      return one.name == entry || std::to_string(&one - devices_.data()) == entry;
    });
    if (named == devices_.end()) {
      std::vector<std::string> all;
      for (const PluginDevice& one : devices_) all.push_back(one.name);
      base::fail(ErrorCode::kInvalidValue, {}, "{}={}: the plug-in {} has no device '{}'; it has {}", kDeviceVariable,
                 wanted, text(), entry, fmt::join(all, ", "));
    }
    used_.push_back(static_cast<int>(named - devices_.begin()));
  }
  if (!used_.empty()) return;
  const int fastest = std::ranges::max_element(devices_, {}, &PluginDevice::speed_mbps)->speed_mbps;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].speed_mbps == fastest) used_.push_back(static_cast<int>(i));
  }
}

int NetPlugin::device_of(int channel) const {
  return used_[static_cast<std::size_t>(std::max(channel, 0)) % used_.size()];
}

}  // namespace slip::transport
