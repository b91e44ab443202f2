// Translates the tables of versions 8 to 11 into PluginCalls.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "transport/net/net.hpp"
#include "transport/net_plugin/plugin.hpp"

namespace slip::transport {
namespace {

// The limit of one message if the plug-in names none (version 8). Also the limit of all versions: test() reports
// lengths as int.
constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;

net_config& default_config() {
  static net_config config{NET_TRAFFIC_CLASS_UNDEF};
  return config;
}

template <class TableOf, class Properties, int Version>
struct Translation {
  using Table = TableOf;
  static constexpr int kVersion = Version;
  static const Table& table_of(const PluginCalls& calls) { return *static_cast<const Table*>(calls.table); }

  static net_result init(const PluginCalls& calls, std::uint64_t communicator, void** context, net_logger logger,
                         net_profiler profiler) {
    const Table& table = table_of(calls);
    if constexpr (kVersion <= 9) return table.init(logger);
    else if constexpr (kVersion == 10) return table.init(logger, profiler);
    else return table.init(context, communicator, &default_config(), logger, profiler);
  }

  static net_result get_properties(const PluginCalls& calls, int device, net_properties_v11& all) {
    Properties own{};
    const net_result result = table_of(calls).get_properties(device, &own);
    all.name = own.name;
    all.pci_path = own.pci_path;
    all.ptr_support = own.ptr_support;
    all.speed = own.speed;
    all.max_recvs = own.max_recvs;
    all.device_type = own.device_type;
    all.max_p2p_bytes = kMaxMessageBytes;
    if constexpr (kVersion >= 9) all.max_p2p_bytes = std::min(own.max_p2p_bytes, kMaxMessageBytes);
    return result;
  }

  static net_result listen(const PluginCalls& calls, void* context, int device, void* handle, void** listener) {
    if constexpr (kVersion <= 10) return table_of(calls).listen(device, handle, listener);
    else return table_of(calls).listen(context, device, handle, listener);
  }

  // Passes a null device handle: no GPU kernel unpacks the received bytes.
  static net_result connect(const PluginCalls& calls, void* context, int device, void* handle, void** sender) {
    const Table& table = table_of(calls);
    net_device_handle* on_device = nullptr;
    if constexpr (kVersion <= 9) return table.connect(device, handle, sender, &on_device);
    else if constexpr (kVersion == 10) return table.connect(device, &default_config(), handle, sender, &on_device);
    else return table.connect(context, device, handle, sender, &on_device);
  }
};

template <class To>  // a Translation
int fill(const void* found, PluginCalls& calls, const char*& name, std::string& missing) {
  const auto& table = *static_cast<const typename To::Table*>(found);
  // Calls the plug-in's function through a translation, which must not be used if the function is missing.
  const auto translate = [&](auto& to, auto with, auto from, const char* function) {
    to = with;
    if (!from && missing.empty()) missing = function;
  };
  const auto take = [&](auto& to, auto from, const char* function) { translate(to, from, from, function); };
  calls.table = found;
  name = table.name;
  translate(calls.init, &To::init, table.init, "init");
  take(calls.devices, table.devices, "devices");
  translate(calls.get_properties, &To::get_properties, table.get_properties, "getProperties");
  translate(calls.listen, &To::listen, table.listen, "listen");
  translate(calls.connect, &To::connect, table.connect, "connect");
  take(calls.accept, table.accept, "accept");
  take(calls.reg_mr, table.reg_mr, "regMr");
  take(calls.dereg_mr, table.dereg_mr, "deregMr");
  if constexpr (To::kVersion >= 11) take(calls.finalize, table.finalize, "finalize");
  if constexpr (To::kVersion == 8) {
    take(calls.isend_v8, table.isend, "isend");
    take(calls.irecv_v8, table.irecv, "irecv");
  } else if constexpr (To::kVersion == 9) {
    take(calls.isend_v9, table.isend, "isend");
    take(calls.irecv_v9, table.irecv, "irecv");
  } else {
    take(calls.isend_v10, table.isend, "isend");
    take(calls.irecv_v10, table.irecv, "irecv");
  }
  take(calls.test, table.test, "test");
  take(calls.close_send, table.close_send, "closeSend");
  take(calls.close_recv, table.close_recv, "closeRecv");
  take(calls.close_listen, table.close_listen, "closeListen");
  calls.iflush = table.iflush;                  // needed for GPU memory only
  calls.reg_mr_dma_buf = table.reg_mr_dma_buf;  // needed with NET_PTR_DMABUF only
  return To::kVersion;
}

std::string symbol_of(int version) { return fmt::format("ncclNetPlugin_v{}", version); }

}  // namespace

int find_plugin_calls(void* library, PluginCalls& calls, const char*& name, std::string& missing) {
  const auto find = [&](int version) { return ::dlsym(library, symbol_of(version).c_str()); };
  if (const void* const table = find(11))
    return fill<Translation<net_table_v11, net_properties_v11, 11>>(table, calls, name, missing);
  if (const void* const table = find(10))
    return fill<Translation<net_table_v10, net_properties_v10, 10>>(table, calls, name, missing);
  if (const void* const table = find(9))
    return fill<Translation<net_table_v9, net_properties_v9, 9>>(table, calls, name, missing);
  if (const void* const table = find(8))
    return fill<Translation<net_table_v8, net_properties_v8, 8>>(table, calls, name, missing);
  return 0;
}

std::string other_plugin_tables(void* library) {
  constexpr int kOldest = 3, kNewest = 20;
  std::string found;
  for (int version = kOldest; version <= kNewest; ++version) {
    if ((version < 8 || version > 11) && ::dlsym(library, symbol_of(version).c_str()))
      found += (found.empty() ? "" : ", ") + symbol_of(version);
  }
  return found;
}

}  // namespace slip::transport
