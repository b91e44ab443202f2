// NetPlugin: a loaded network plug-in of NCCL (nccl_net.h). PluginCalls: its functions, with the same signatures for
// all versions of the interface. The library stays loaded until the process ends, because it may have threads of its
// own.
//
// Any thread may call the functions. As in NCCL, one thread at a time uses a connection; threads with different
// connections call the plug-in concurrently.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sync.hpp"
#include "slip/error.hpp"
#include "transport/bootstrap/secret.hpp"
#include "transport/net/net.hpp"
#include "transport/net_plugin/nccl_net.h"

namespace slip::transport {

struct PluginDevice {
  std::string name, pci_path;
  int speed_mbps = 0;
  std::size_t max_parts = 1;  // of one receive
  std::size_t max_bytes = 0;  // of one message
  bool takes_gpu_memory = false, takes_dma_buf = false;
};

// The parts of a receive, in the form that plug-ins take them: arrays of the same length.
struct PluginParts {
  int count = 0;
  std::array<void*, kNetMaxParts> data, memories;
  std::array<std::size_t, kNetMaxParts> bytes;
  std::array<int, kNetMaxParts> tags;
};

// The functions of a plug-in, with the same signatures for all versions of the interface. Functions that take
// PluginCalls translate the call for one version; the others are the plug-in's own.
struct PluginCalls {
  const void* table = nullptr;  // a net_table_v8 to net_table_v11

  // Versions 8 to 10 have no contexts and no finalize(): init() is called once in a process. Since version 11, init()
  // makes a context for one communicator. `communicator` is its number, which is the same on all ranks.
  net_result (*init)(const PluginCalls& calls, std::uint64_t communicator, void** context, net_logger logger,
                     net_profiler profiler) = nullptr;
  net_result (*finalize)(void* context) = nullptr;
  net_result (*get_properties)(const PluginCalls& calls, int device, net_properties_v11& properties) = nullptr;
  net_result (*listen)(const PluginCalls& calls, void* context, int device, void* handle, void** listener) = nullptr;
  net_result (*connect)(const PluginCalls& calls, void* context, int device, void* handle, void** sender) = nullptr;

  net_result (*devices)(int* count) = nullptr;
  net_result (*accept)(void* listener, void** receiver, net_device_handle** on_device) = nullptr;
  net_result (*reg_mr)(void* comm, void* data, std::size_t bytes, int type, void** memory) = nullptr;
  net_result (*reg_mr_dma_buf)(void* comm, void* data, std::size_t bytes, int type, std::uint64_t offset, int fd,
                               void** memory) = nullptr;
  net_result (*dereg_mr)(void* comm, void* memory) = nullptr;
  net_result (*iflush)(void* receiver, int parts, void** data, int* bytes, void** memories, void** request) = nullptr;
  net_result (*close_send)(void* sender) = nullptr;
  net_result (*close_recv)(void* receiver) = nullptr;
  net_result (*close_listen)(void* listener) = nullptr;

  // The functions below are called for each message. Only the isend and irecv of the table's version are set.
  // start_send() and start_receive() choose by a branch, which costs less than a function that translates.
  net_result (*test)(void* request, int* done, int* bytes) = nullptr;
  decltype(net_table_v8::isend) isend_v8 = nullptr;
  decltype(net_table_v9::isend) isend_v9 = nullptr;
  decltype(net_table_v10::isend) isend_v10 = nullptr;  // also of version 11
  decltype(net_table_v8::irecv) irecv_v8 = nullptr;
  decltype(net_table_v9::irecv) irecv_v9 = nullptr;
  decltype(net_table_v10::irecv) irecv_v10 = nullptr;  // also of version 11
};

inline net_result start_send(const PluginCalls& calls, void* sender, std::span<std::byte> bytes, int tag, void* memory,
                             void** request) {
  if (calls.isend_v10) return calls.isend_v10(sender, bytes.data(), bytes.size(), tag, memory, nullptr, request);
  if (calls.isend_v9) return calls.isend_v9(sender, bytes.data(), bytes.size(), tag, memory, request);
  return calls.isend_v8(sender, bytes.data(), static_cast<int>(bytes.size()), tag, memory, request);
}

inline net_result start_receive(const PluginCalls& calls, void* receiver, PluginParts& parts, void** request) {
  if (calls.irecv_v10) {
    std::array<void*, kNetMaxParts> profiler_handles{};
    return calls.irecv_v10(receiver, parts.count, parts.data.data(), parts.bytes.data(), parts.tags.data(),
                           parts.memories.data(), profiler_handles.data(), request);
  }
  if (calls.irecv_v9)
    return calls.irecv_v9(receiver, parts.count, parts.data.data(), parts.bytes.data(), parts.tags.data(),
                          parts.memories.data(), request);
  std::array<int, kNetMaxParts> bytes{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(parts.count); ++i) bytes[i] = static_cast<int>(parts.bytes[i]);
  return calls.irecv_v8(receiver, parts.count, parts.data.data(), bytes.data(), parts.tags.data(),
                        parts.memories.data(), request);
}

class NetPlugin;

// A plug-in's context for one rank of a communicator, see PluginCalls::init. In versions 8 to 10, get() returns null.
class PluginContext : base::NoCopy {
 public:
  PluginContext(const NetPlugin& plugin, std::uint64_t communicator);  // throws if init() fails
  ~PluginContext();
  void* get() const { return context_; }

 private:
  const NetPlugin& plugin_;
  const pid_t process_;  // in a forked child, the context belongs to the parent
  void* context_ = nullptr;
};

// Finds the newest table that the library has and fills in the calls. Returns the table's version; 0: the library has
// no table of versions 8 to 11. `name` gets the plug-in's name, `missing` the first function that the table lacks.
int find_plugin_calls(void* library, PluginCalls& calls, const char*& name, std::string& missing);
// The tables of other versions that the library has, for error texts: "ncclNetPlugin_v6".
std::string other_plugin_tables(void* library);

class NetPlugin : base::NoCopy {
 public:
  // Loads a plug-in by the rules of NCCL_NET_PLUGIN: `name` is a file, or FOO for libnccl-net-FOO.so; if it is empty,
  // libnccl-net.so. Each process loads and initialises a plug-in once; a forked child initialises its copy again.
  static const NetPlugin& load(const std::string& name);

  const PluginCalls& calls() const { return calls_; }
  const std::string& file() const { return file_; }  // without the folder
  const std::string& name() const { return name_; }  // from the plug-in's table
  int version() const { return version_; }
  std::string text() const;  // "libnccl-net-foo.so (Foo, interface version 9)"
  std::span<const PluginDevice> devices() const { return devices_; }
  // The device that carries a channel, as an index of devices(): see SLIP_NET_DEVICE in docs/networks.md.
  int device_of(int channel) const;

  // The context for `rank` of the communicator whose secret is `key`. All connections of the rank share it, and it ends
  // with the last of them. Null: the plug-in has no contexts (versions 8 to 10). Throws if init() fails.
  std::shared_ptr<const PluginContext> context_of(const Secret& key, int rank) const;

  // The error of a function that failed. `peer`: the other end, may be empty. The text ends with the last warning that
  // the plug-in logged in this thread.
  Error error(std::string_view function, net_result result, std::string_view peer) const;

 private:
  explicit NetPlugin(const std::string& name);
  void open(const std::string& name);
  void find_devices();
  void choose_devices();
  PluginDevice read_device(int index) const;

  void* library_ = nullptr;
  std::string path_, file_, name_;
  int version_ = 0;
  PluginCalls calls_;
  std::vector<PluginDevice> devices_;
  std::vector<int> used_;  // the devices that carry channels, in turn
  // devices() and get_properties() need an earlier call of init(), which this context makes. Never deleted, because the
  // library stays loaded.
  const PluginContext* first_context_ = nullptr;
  mutable base::Mutex mutex_;
  mutable std::map<std::pair<Secret, int>, std::weak_ptr<const PluginContext>> contexts_ SLIP_GUARDED_BY(mutex_);
};

}  // namespace slip::transport
