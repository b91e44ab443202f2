#include "nccl_net/devices.hpp"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/env.hpp"

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

}  // namespace slip::nccl_net
