#include "nccl_net/comm.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/env.hpp"
#include "transport/bootstrap/secret.hpp"
#include "transport/net/tcp.hpp"

namespace slip::nccl_net {
namespace {

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

}  // namespace

std::vector<NetDevice> find_devices() {
  std::vector<NetDevice> devices;
  for (const transport::Interface& one :
       transport::usable_interfaces(transport::InterfaceFilter(base::socket_interface_rule())))
    devices.push_back({one.name, one.address.host(), pci_path_of(one.name), speed_of(one.name)});
  return devices;
}

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

struct Dialers::Dialer {
  Dialer(void* at, const transport::NetHandle& to, const transport::NetOptions& with)
      : place(at), handle(to), options(with), dialer(transport::dial_tcp(to, with)) {}

  void* const place;  // the address at which NCCL keeps the handle; it identifies the attempt
  const transport::NetHandle handle;
  const transport::NetOptions options;
  transport::GreetingDialer dialer;
};

std::unique_ptr<transport::NetSender> Dialers::dial(void* handle, const NetDevice& device) {
  transport::NetHandle bytes;
  std::memcpy(bytes.data(), handle, bytes.size());
  std::shared_ptr<Dialer> one;
  {
    const base::LockGuard lock(mutex_);
    // NCCL does not notify the plug-in when it gives up an attempt. Such an attempt stays here until NCCL connects
    // another handle at the same address.
    std::erase_if(all_, [&](const auto& dialer) { return dialer->place == handle && dialer->handle != bytes; });
    const auto found =
        std::find_if(all_.begin(), all_.end(), [&](const auto& dialer) { return dialer->place == handle; });
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

}  // namespace slip::nccl_net
