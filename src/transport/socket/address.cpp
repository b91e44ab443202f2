#include "transport/socket/address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"

namespace slip::transport {
namespace {

sockaddr_in& v4(sockaddr_storage& storage) { return reinterpret_cast<sockaddr_in&>(storage); }
const sockaddr_in& v4(const sockaddr_storage& storage) { return reinterpret_cast<const sockaddr_in&>(storage); }
sockaddr_in6& v6(sockaddr_storage& storage) { return reinterpret_cast<sockaddr_in6&>(storage); }
const sockaddr_in6& v6(const sockaddr_storage& storage) { return reinterpret_cast<const sockaddr_in6&>(storage); }

constexpr std::size_t kNameOffset = offsetof(sockaddr_un, sun_path) + 1;  // an abstract name begins with a zero byte

// Lower is better: IPv4, then IPv6, then link-local addresses.
int preference(const SocketAddress& address) {
  if (address.is_link_local()) return 2;
  return address.family() == AF_INET6 ? 1 : 0;
}

int prefix_bits(const SocketAddress& netmask) {
  int bits = 0;
  for (const std::uint8_t byte : netmask.wire().address) bits += std::popcount(byte);
  return bits;
}

template <class Wanted>
std::optional<SocketAddress> best(const std::vector<Interface>& all, const Wanted& wanted) {
  std::optional<SocketAddress> result;
  for (const Interface& one : all) {
    if (wanted(one) && (!result || preference(one.address) < preference(*result))) result = one.address;
  }
  return result;
}

// A host may have an IPv6 loopback only.
SocketAddress own_loopback(const std::vector<Interface>& all) {
  const auto found = best(all, [](const Interface& one) { return one.address.is_loopback(); });
  return found ? *found : SocketAddress::loopback(AF_INET);
}

[[noreturn]] void fail_none(const InterfaceFilter& filter, const std::vector<Interface>& all, const char* family) {
  std::string names;
  for (const Interface& one : all)
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", one.name, one.address.host());
  base::fail(ErrorCode::kInvalidValue, {},
             "SLIP_SOCKET_IFNAME={}: no interface {}is accepted by this rule; there are {}", filter.rule(), family,
             names.empty() ? "none" : names);
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t bytes)
    : bytes_(std::min<socklen_t>(bytes, sizeof(storage_))) {
  std::memcpy(&storage_, address, bytes_);
}

SocketAddress::SocketAddress(const WireFormat& wire) {
  if (wire.family == 4) {
    v4(storage_).sin_family = AF_INET;
    v4(storage_).sin_port = htons(wire.port);
    std::memcpy(&v4(storage_).sin_addr, wire.address, 4);
    bytes_ = sizeof(sockaddr_in);
  } else if (wire.family == 6) {
    v6(storage_).sin6_family = AF_INET6;
    v6(storage_).sin6_port = htons(wire.port);
    v6(storage_).sin6_scope_id = wire.scope;
    std::memcpy(&v6(storage_).sin6_addr, wire.address, 16);
    bytes_ = sizeof(sockaddr_in6);
  } else {
    base::fail(ErrorCode::kParse, {}, "an address of family {} in a message: 4 or 6 is expected", wire.family);
  }
}

SocketAddress SocketAddress::unix_name(std::string_view name) {
  SocketAddress result;
  auto& address = reinterpret_cast<sockaddr_un&>(result.storage_);
  if (name.empty() || name.size() > sizeof(address.sun_path) - 1)
    base::fail(ErrorCode::kInvalidValue, {}, "the Unix socket name '{}' has {} bytes: 1 to {} are possible", name,
               name.size(), sizeof(address.sun_path) - 1);
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  result.bytes_ = static_cast<socklen_t>(kNameOffset + name.size());
  return result;
}

SocketAddress SocketAddress::any(int family, std::uint16_t port) {
  WireFormat wire;
  wire.family = family == AF_INET6 ? 6 : 4;
  wire.port = port;
  return SocketAddress(wire);
}

SocketAddress SocketAddress::loopback(int family, std::uint16_t port) {
  SocketAddress result = any(family, port);
  if (family == AF_INET6) v6(result.storage_).sin6_addr = in6addr_loopback;
  else v4(result.storage_).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return result;
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return (ntohl(v4(storage_).sin_addr.s_addr) >> 24) == 127;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6(storage_).sin6_addr);
}

bool SocketAddress::is_link_local() const {
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6(storage_).sin6_addr);
}

bool SocketAddress::same_subnet(const SocketAddress& other, int prefix_bits) const {
  if (!is_tcp() || family() != other.family()) return false;
  const WireFormat a = wire(), b = other.wire();
  for (int bit = 0; bit < std::min(prefix_bits, a.family == 4 ? 32 : 128); ++bit) {
    const auto byte = static_cast<std::size_t>(bit / 8);
    if (((a.address[byte] ^ b.address[byte]) >> (7 - bit % 8) & 1) != 0) return false;
  }
  return true;
}

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(v4(storage_).sin_port);
  return family() == AF_INET6 ? ntohs(v6(storage_).sin6_port) : std::uint16_t{0};
}

SocketAddress SocketAddress::with_port(std::uint16_t port) const {
  SocketAddress result = *this;
  if (family() == AF_INET) v4(result.storage_).sin_port = htons(port);
  if (family() == AF_INET6) v6(result.storage_).sin6_port = htons(port);
  return result;
}

SocketAddress::WireFormat SocketAddress::wire() const {
  WireFormat result;
  result.port = port();
  if (family() == AF_INET) {
    result.family = 4;
    std::memcpy(result.address, &v4(storage_).sin_addr, 4);
  } else if (family() == AF_INET6) {
    result.family = 6;
    result.scope = v6(storage_).sin6_scope_id;
    std::memcpy(result.address, &v6(storage_).sin6_addr, 16);
  }
  return result;
}

std::string SocketAddress::host() const {
  char name[NI_MAXHOST] = {};
  if (is_tcp() && ::getnameinfo(data(), bytes_, name, sizeof(name), nullptr, 0, NI_NUMERICHOST) == 0) return name;
  if (family() == AF_UNIX && bytes_ > kNameOffset)
    return std::string(reinterpret_cast<const sockaddr_un&>(storage_).sun_path + 1, bytes_ - kNameOffset);
  return {};
}

std::string SocketAddress::text() const {
  if (family() == AF_INET) return fmt::format("{}:{}", host(), port());
  if (family() == AF_INET6) return fmt::format("[{}]:{}", host(), port());
  if (family() != AF_UNIX) return "no address";
  return bytes_ > kNameOffset ? "unix:" + host() : "an unnamed Unix socket";
}

std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &wanted, &found);
  if (error != 0)
    base::fail(ErrorCode::kInvalidValue, {},
               "the host '{}' has no address: {}; give a name that every host knows, or a number", host,
               ::gai_strerror(error));
  std::vector<SocketAddress> result;
  for (const addrinfo* one = found; one; one = one->ai_next)
    result.push_back(SocketAddress(one->ai_addr, one->ai_addrlen).with_port(port));
  ::freeaddrinfo(found);
  return result;
}

std::vector<Interface> list_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0)
    base::fail(ErrorCode::kIo, {}, "cannot list the network interfaces: {}", std::strerror(errno));
  std::vector<Interface> result;
  for (const ifaddrs* one = first; one; one = one->ifa_next) {
    if (!one->ifa_addr || !(one->ifa_flags & IFF_UP)) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const int bits = one->ifa_netmask ? prefix_bits(SocketAddress(one->ifa_netmask, bytes)) : 0;
    result.push_back({one->ifa_name, SocketAddress(one->ifa_addr, bytes), bits});
  }
  ::freeifaddrs(first);
  return result;
}

InterfaceHardware hardware_of(const std::string& interface) {
  InterfaceHardware result;
  const int descriptor = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return result;
  // The ioctl asks the network namespace of the socket. /sys may show another namespace.
  const auto ask = [&](void* question) {
    ifreq request{};
    interface.copy(request.ifr_name, IFNAMSIZ - 1);
    request.ifr_data = static_cast<char*>(question);
    return ::ioctl(descriptor, SIOCETHTOOL, &request) == 0;
  };
  ethtool_cmd link{};
  link.cmd = ETHTOOL_GSET;
  if (ask(&link)) {
    const std::uint32_t mbps = ethtool_cmd_speed(&link);
    if (mbps != static_cast<std::uint32_t>(SPEED_UNKNOWN)) result.mbps = static_cast<int>(mbps);
  }
  ethtool_drvinfo driver{};
  driver.cmd = ETHTOOL_GDRVINFO;
  if (ask(&driver)) result.bus_id.assign(driver.bus_info, ::strnlen(driver.bus_info, sizeof(driver.bus_info)));
  if (result.bus_id == "N/A") result.bus_id.clear();
  ::close(descriptor);
  return result;
}

InterfaceFilter::InterfaceFilter(std::string_view rule) : rule_(rule) {
  excludes_ = rule.starts_with('^');
  if (excludes_) rule.remove_prefix(1);
  exact_ = rule.starts_with('=');
  if (exact_) rule.remove_prefix(1);
  for (const std::string_view part : base::split(rule, ",")) {
    const std::string_view name = part.substr(0, part.find(':'));  // NCCL also accepts a port, which is ignored here
    if (!name.empty()) names_.emplace_back(name);
  }
  if (names_.empty() && !rule_.empty())
    base::fail(ErrorCode::kInvalidValue, {},
               "SLIP_SOCKET_IFNAME={}: names no interface; write eth, =eth0 or ^docker,lo", rule_);
}

bool InterfaceFilter::accepts(std::string_view name) const {
  if (names_.empty()) return true;
  const bool named = std::any_of(names_.begin(), names_.end(),
                                 [&](const std::string& one) { return exact_ ? name == one : name.starts_with(one); });
  return named != excludes_;
}

std::vector<Interface> usable_interfaces(const InterfaceFilter& filter) {
  const std::vector<Interface> all = list_interfaces();
  static const InterfaceFilter kOutside("^docker,veth,virbr,br-,lo");
  std::vector<Interface> result;
  for (const Interface& one : all) {
    const bool wanted =
        filter.empty() ? kOutside.accepts(one.name) && !one.address.is_loopback() : filter.accepts(one.name);
    if (!wanted) continue;
    const auto known =
        std::find_if(result.begin(), result.end(), [&](const Interface& it) { return it.name == one.name; });
    if (known == result.end()) result.push_back(one);
    else if (preference(one.address) < preference(known->address)) *known = one;
  }
  // Linux gives a link-local IPv6 address even to an interface that nobody has configured. Other hosts cannot use it.
  const auto is_link_local = [](const Interface& one) { return one.address.is_link_local(); };
  if (!std::ranges::all_of(result, is_link_local)) std::erase_if(result, is_link_local);
  if (result.empty() && !filter.empty()) fail_none(filter, all, "");
  if (result.empty()) result.push_back({"lo", own_loopback(all)});
  return result;
}

SocketAddress own_address(const InterfaceFilter& filter) {
  const std::vector<Interface> all = usable_interfaces(filter);
  return *best(all, [](const Interface&) { return true; });
}

SocketAddress own_address_towards(const SocketAddress& local_end, const InterfaceFilter& filter) {
  const bool tcp = local_end.is_tcp();  // otherwise a Unix socket: all ranks are on this host
  if (filter.empty()) return tcp ? local_end.with_port(0) : own_loopback(list_interfaces());
  const std::vector<Interface> all = list_interfaces();
  const auto found = best(all, [&](const Interface& one) {
    return filter.accepts(one.name) && (!tcp || one.address.family() == local_end.family());
  });
  if (!found) fail_none(filter, all, !tcp ? "" : local_end.family() == AF_INET6 ? "with IPv6 " : "with IPv4 ");
  return *found;
}

}  // namespace slip::transport
