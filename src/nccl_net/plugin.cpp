// libnccl-net-slip.so: Slipstream's TCP transport as a network plug-in of NCCL, versions 8 to 11 of the interface. NCCL
// loads it with NCCL_NET_PLUGIN=slip. No exception leaves these functions: an error is logged with NCCL's logger and
// becomes a result code.
//
// NCCL gets pointers to the objects of the TCP transport: a NetListener, a NetConnection, a NetMemory and a NetRequest.
// NCCL ensures that only one thread at a time uses each of them.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/sync.hpp"
#include "base/thread.hpp"
#include "slip/error.hpp"
#include "transport/bootstrap/secret.hpp"
#include "transport/net/net.hpp"
#include "transport/net/tcp.hpp"
#include "transport/net_plugin/nccl_net.h"
#include "transport/socket/address.hpp"

namespace slip::nccl_net {
namespace {

constexpr const char* kName = "Slipstream";
constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;  // test() reports lengths as int
constexpr int kMaxComms = 65'536;

std::atomic<net_logger> g_logger{nullptr};

void log(net_log_level level, const std::string& text) {
  const net_logger logger = g_logger.load(std::memory_order_acquire);  // acquire: pairs with the release in init()
  if (logger) logger(level, NET_LOG_OF_INIT | NET_LOG_OF_NET, "slipstream", 0, "NET/%s : %s", kName, text.c_str());
}

net_result result_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kRankLost: return NET_REMOTE_ERROR;
    case ErrorCode::kInvalidValue:
    case ErrorCode::kMismatch:
    case ErrorCode::kUnsupported: return NET_INVALID_USAGE;
    case ErrorCode::kIo:
    case ErrorCode::kTimeout:
    case ErrorCode::kOutOfMemory: return NET_SYSTEM_ERROR;
    default: return NET_INTERNAL_ERROR;
  }
}

// Runs the body and turns an exception into a result code. Always inlined, like isend() and irecv(): every message
// calls them, and a whole message takes only a few hundred instructions.
template <class Body>
[[gnu::always_inline]] inline net_result guarded(const Body& body) noexcept {
  try {
    try {
      return body();
    } catch (const Error& error) {
      log(NET_LOG_WARN, base::bare_text(error));
      return result_of(error.code());
    } catch (const std::exception& error) {
      log(NET_LOG_WARN, error.what());
    }
  } catch (...) {  // another type, or logging itself threw
  }
  return NET_INTERNAL_ERROR;
}

net_result refuse(const std::string& text) {
  log(NET_LOG_WARN, text);
  return NET_INVALID_USAGE;
}

// A network device of the plug-in. There is one for each network interface that the rules of SLIP_SOCKET_IFNAME accept.
struct NetDevice {
  std::string name;      // of the interface
  std::string host;      // the address at which a listener of this device listens, without a port
  std::string pci_path;  // in /sys; empty: a virtual interface
  int speed_mbps = 0;
};

// The speed of an interface that does not report one, for example a virtual one. NCCL assumes the same.
constexpr int kUnknownSpeedMbps = 10'000;

int speed_of(const std::string& interface) {
  int mbps = 0;
  std::ifstream file("/sys/class/net/" + interface + "/speed");
  return file >> mbps && mbps > 0 ? mbps : kUnknownSpeedMbps;
}

std::string pci_path_of(const std::string& interface) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical("/sys/class/net/" + interface + "/device", error);
  return error ? std::string() : path.string();
}

// Throws if the rules of SLIP_SOCKET_IFNAME accept no interface.
std::vector<NetDevice> find_devices() {
  std::vector<NetDevice> devices;
  for (const transport::Interface& one :
       transport::usable_interfaces(transport::InterfaceFilter(base::socket_interface_rule())))
    devices.push_back({one.name, one.address.host(), pci_path_of(one.name), speed_of(one.name)});
  return devices;
}

// The options of all connections. The key is derived from SLIP_SECRET or SLIP_SECRET_FILE, if one of them is set.
// Otherwise all processes use the same key: then only the random salt in the listener's handle keeps processes of other
// jobs from connecting.
transport::NetOptions connection_options(const NetDevice& device) {
  transport::NetOptions options;
  options.rank = -1;  // unknown: NCCL does not pass ranks to a plug-in
  options.host = device.host;
  const bool has_secret = !base::env_text("SLIP_SECRET").empty() || !base::env_text("SLIP_SECRET_FILE").empty();
  if (has_secret) options.key = transport::shared_secret("nccl net plug-in", false);
  if (base::env().sockets > 0) options.sockets = base::env().sockets;
  options.zero_copy_from = static_cast<std::size_t>(base::env().zero_copy);
  return options;
}

// The unfinished attempts to connect. The plug-in's connect() must not wait: NCCL calls it again, with the same handle,
// until it returns a connection. So an attempt lasts for several calls.
class Dialers {
 public:
  // Continues the attempt for the handle, or begins one. Null: not connected yet. Throws if the attempt failed.
  std::unique_ptr<transport::NetSender> dial(void* handle, const NetDevice& device);

 private:
  struct Dialer {
    Dialer(void* at, const transport::NetHandle& to, const transport::NetOptions& with)
        : place(at), handle(to), options(with), dialer(transport::dial_tcp(to, with)) {}

    void* const place;  // the address at which NCCL keeps the handle; it identifies the attempt
    const transport::NetHandle handle;
    const transport::NetOptions options;
    transport::GreetingDialer dialer;
  };

  base::Mutex mutex_;
  std::vector<std::shared_ptr<Dialer>> all_ SLIP_GUARDED_BY(mutex_);
};

std::unique_ptr<transport::NetSender> Dialers::dial(void* handle, const NetDevice& device) {
  transport::NetHandle bytes;
  std::memcpy(bytes.data(), handle, bytes.size());
  std::shared_ptr<Dialer> one;
  {
    const base::LockGuard lock(mutex_);
    // NCCL does not notify the plug-in when it gives up an attempt. Such an attempt stays in `all_` until NCCL passes
    // another handle at the same address.
    std::erase_if(all_, [&](const auto& dialer) { return dialer->place == handle && dialer->handle != bytes; });
    const auto found = std::ranges::find_if(all_, [&](const auto& dialer) { return dialer->place == handle; });
    one = found != all_.end() ? *found : std::make_shared<Dialer>(handle, bytes, connection_options(device));
    if (found == all_.end()) all_.push_back(one);
  }
  const auto forget = [&] {
    const base::LockGuard lock(mutex_);
    std::erase(all_, one);
  };
  try {
    if (!one->dialer.advance()) return nullptr;
  } catch (...) {
    forget();
    throw;
  }
  forget();
  return transport::make_tcp_sender(one->dialer.take(), one->options);
}

struct Plugin {
  base::Mutex mutex;
  bool initialized SLIP_GUARDED_BY(mutex) = false;
  std::vector<NetDevice> devices;  // constant after init(): NCCL holds pointers into its strings
  Dialers dialers;
};
Plugin& plugin() { return base::process_wide<Plugin>(); }  // NCCL's threads may use it while the process exits

net_result init(net_logger logger) {
  return guarded([&] {
    // release: a thread that sees the logger sees what NCCL prepared for it.
    g_logger.store(logger, std::memory_order_release);
    const base::LockGuard lock(plugin().mutex);
    if (plugin().initialized) return NET_SUCCESS;
    plugin().devices = find_devices();
    plugin().initialized = true;
    std::string text;
    for (const NetDevice& one : plugin().devices) text += fmt::format(" {} ({})", one.name, one.host);
    log(NET_LOG_INFO, "TCP over" + text);
    return NET_SUCCESS;
  });
}

net_result devices(int* count) {
  *count = static_cast<int>(plugin().devices.size());
  return NET_SUCCESS;
}

const NetDevice* find_device(int index) {
  const std::vector<NetDevice>& all = plugin().devices;
  return index >= 0 && static_cast<std::size_t>(index) < all.size() ? &all[static_cast<std::size_t>(index)] : nullptr;
}

template <class Properties>
net_result get_properties(int index, Properties* properties) {
  const NetDevice* const device = find_device(index);
  if (!device) return refuse(fmt::format("there is no device {}", index));
  *properties = {};
  // NCCL's type is char*, but it only reads the text.
  properties->name = const_cast<char*>(device->name.c_str());
  properties->pci_path = device->pci_path.empty() ? nullptr : const_cast<char*>(device->pci_path.c_str());
  properties->guid = static_cast<std::uint64_t>(index);
  properties->ptr_support = NET_PTR_HOST;
  properties->speed = device->speed_mbps;
  properties->max_comms = kMaxComms;
  properties->max_recvs = static_cast<int>(transport::kNetMaxParts);
  properties->device_type = NET_DEVICE_HOST;
  if constexpr (requires { properties->max_p2p_bytes; }) {
    properties->virtual_device.ndevs = 1;
    properties->virtual_device.devs[0] = index;
    properties->max_p2p_bytes = kMaxMessageBytes;
    properties->max_coll_bytes = kMaxMessageBytes;
  }
  if constexpr (requires { properties->max_multi_request_size; }) properties->max_multi_request_size = 1;
  return NET_SUCCESS;
}

net_result listen(int index, void* handle, void** listener) {
  *listener = nullptr;
  return guarded([&] {
    const NetDevice* const device = find_device(index);
    if (!device) return refuse(fmt::format("listen: there is no device {}", index));
    std::unique_ptr<transport::NetListener> made = transport::net_tcp().listen(connection_options(*device));
    static_assert(transport::kNetHandleBytes == NET_HANDLE_BYTES);
    std::copy(made->handle().begin(), made->handle().end(), static_cast<std::byte*>(handle));
    *listener = made.release();
    return NET_SUCCESS;
  });
}

// The void* that NCCL keeps points to a NetConnection, for senders and receivers: a void* may only be converted back to
// the type that it was made from.
void* pointer_to(std::unique_ptr<transport::NetConnection> connection) { return connection.release(); }
transport::NetConnection& connection_of(void* comm) { return *static_cast<transport::NetConnection*>(comm); }

net_result connect(int index, void* handle, void** sender) {
  *sender = nullptr;
  return guarded([&] {
    const NetDevice* const device = find_device(index);
    if (!device) return refuse(fmt::format("connect: there is no device {}", index));
    *sender = pointer_to(plugin().dialers.dial(handle, *device));
    return NET_SUCCESS;
  });
}

net_result accept(void* listener, void** receiver, net_device_handle**) {
  *receiver = nullptr;
  return guarded([&] {
    *receiver = pointer_to(static_cast<transport::NetListener*>(listener)->accept(nullptr));
    return NET_SUCCESS;
  });
}

net_result reg_mr(void* comm, void* data, std::size_t bytes, int type, void** memory) {
  *memory = nullptr;
  return guarded([&] {
    if (type != NET_PTR_HOST) return refuse("regMr: only host memory can be registered");
    *memory = connection_of(comm).register_memory({static_cast<std::byte*>(data), bytes}).release();
    return NET_SUCCESS;
  });
}

net_result dereg_mr(void*, void* memory) {
  return guarded([&] {
    delete static_cast<transport::NetMemory*>(memory);
    return NET_SUCCESS;
  });
}

template <class Bytes>
[[gnu::always_inline]] inline net_result isend(void* sender, void* data, Bytes bytes, int tag, void* memory,
                                               void** request) {
  *request = nullptr;
  return guarded([&] {
    const transport::NetPart part{static_cast<std::byte*>(data), static_cast<std::size_t>(bytes), tag,
                                  static_cast<transport::NetMemory*>(memory)};
    *request = static_cast<transport::NetSender&>(connection_of(sender)).isend(part, false);
    return NET_SUCCESS;
  });
}

template <class Bytes>
[[gnu::always_inline]] inline net_result irecv(void* receiver, int count, void** data, Bytes* bytes, int* tags,
                                               void** memories, void** request) {
  *request = nullptr;
  return guarded([&] {
    if (count < 1 || static_cast<std::size_t>(count) > transport::kNetMaxParts)
      return refuse(fmt::format("irecv of {} parts: 1 to {} are possible", count, transport::kNetMaxParts));
    const auto part = [&](int i) {
      return transport::NetPart{static_cast<std::byte*>(data[i]), static_cast<std::size_t>(bytes[i]), tags[i],
                                static_cast<transport::NetMemory*>(memories[i])};
    };
    auto& connection = static_cast<transport::NetReceiver&>(connection_of(receiver));
    if (count == 1) {  // the usual case
      const transport::NetPart only = part(0);
      *request = connection.irecv(std::span(&only, 1));
      return NET_SUCCESS;
    }
    std::array<transport::NetPart, transport::kNetMaxParts> parts;
    for (int i = 0; i < count; ++i) parts[static_cast<std::size_t>(i)] = part(i);
    *request = connection.irecv(std::span(parts).first(static_cast<std::size_t>(count)));
    return NET_SUCCESS;
  });
}

// The CPU itself writes the received bytes, so there is nothing to flush.
net_result iflush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return NET_SUCCESS;
}

net_result test(void* request, int* done, int* bytes) {
  *done = 0;
  return guarded([&] {
    auto& one = *static_cast<transport::NetRequest*>(request);
    if (!one.connection->test(&one)) return NET_SUCCESS;
    *done = 1;
    // The connection reuses the request at the next isend or irecv, so its lengths are still there.
    const bool sends = one.kind == transport::NetRequest::Kind::kSend;
    for (std::size_t i = 0; bytes && i < one.count; ++i)
      bytes[i] = static_cast<int>(sends ? one.parts[i].bytes : one.moved[i]);
    return NET_SUCCESS;
  });
}

net_result close_comm(void* comm) {
  return guarded([&] {
    delete &connection_of(comm);
    return NET_SUCCESS;
  });
}

net_result close_listen(void* listener) {
  return guarded([&] {
    delete static_cast<transport::NetListener*>(listener);
    return NET_SUCCESS;
  });
}

// A table with the functions that have the same signature in all versions.
template <class Table>
constexpr Table common_table() {
  Table table{};
  table.name = kName;
  table.devices = &devices;
  table.get_properties = &get_properties;
  table.accept = &accept;
  table.reg_mr = &reg_mr;
  table.dereg_mr = &dereg_mr;
  table.iflush = &iflush;
  table.test = &test;
  table.close_send = &close_comm;
  table.close_recv = &close_comm;
  table.close_listen = &close_listen;
  return table;
}

// Versions 8 and 9 differ in the type of sizes.
template <class Table, class Bytes>
constexpr Table plain_table() {
  auto table = common_table<Table>();
  table.init = &init;
  table.listen = &listen;
  table.connect = [](int device, void* handle, void** sender, net_device_handle**) {
    return connect(device, handle, sender);
  };
  table.isend = &isend<Bytes>;
  table.irecv = &irecv<Bytes>;
  return table;
}

// Versions 10 and 11 pass a handle for NCCL's profiler with each message. The plug-in ignores it.
template <class Table>
constexpr Table profiled_table() {
  auto table = common_table<Table>();
  table.isend = [](void* sender, void* data, std::size_t bytes, int tag, void* memory, void*, void** request) {
    return isend(sender, data, bytes, tag, memory, request);
  };
  table.irecv = [](void* receiver, int count, void** data, std::size_t* bytes, int* tags, void** memories, void**,
                   void** request) { return irecv(receiver, count, data, bytes, tags, memories, request); };
  return table;
}

constexpr net_table_v10 make_v10() {
  auto table = profiled_table<net_table_v10>();
  table.init = [](net_logger logger, net_profiler) { return init(logger); };
  table.listen = &listen;
  table.connect = [](int device, net_config*, void* handle, void** sender, net_device_handle**) {
    return connect(device, handle, sender);
  };
  return table;
}

constexpr net_table_v11 make_v11() {
  auto table = profiled_table<net_table_v11>();
  table.init = [](void** context, std::uint64_t, net_config*, net_logger logger, net_profiler) {
    *context = nullptr;
    return init(logger);
  };
  table.listen = [](void*, int device, void* handle, void** listener) { return listen(device, handle, listener); };
  table.connect = [](void*, int device, void* handle, void** sender, net_device_handle**) {
    return connect(device, handle, sender);
  };
  table.finalize = [](void*) { return NET_SUCCESS; };
  table.set_net_attr = [](void*, net_attributes*) { return NET_SUCCESS; };
  return table;
}

}  // namespace
}  // namespace slip::nccl_net

extern "C" {
// NOLINTBEGIN(readability-identifier-naming): NCCL looks for these names
[[gnu::visibility("default")]] extern constexpr net_table_v8 ncclNetPlugin_v8 =
    slip::nccl_net::plain_table<net_table_v8, int>();
[[gnu::visibility("default")]] extern constexpr net_table_v9 ncclNetPlugin_v9 =
    slip::nccl_net::plain_table<net_table_v9, std::size_t>();
[[gnu::visibility("default")]] extern constexpr net_table_v10 ncclNetPlugin_v10 = slip::nccl_net::make_v10();
[[gnu::visibility("default")]] extern constexpr net_table_v11 ncclNetPlugin_v11 = slip::nccl_net::make_v11();
// NOLINTEND(readability-identifier-naming)
}
