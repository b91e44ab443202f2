#include "transport/socket/interfaces.hpp"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "slip/error.hpp"

namespace slip {
namespace {

// IPv4 before IPv6, and addresses that only this link knows last.
int reach(const SocketAddress& address) {
  if (address.is_link_local()) return 2;
  return address.family() == AF_INET6 ? 1 : 0;
}

template <class Wanted>
std::optional<SocketAddress> best(const std::vector<Interface>& all, const Wanted& wanted) {
  std::optional<SocketAddress> result;
  for (const Interface& one : all) {
    if (wanted(one) && (!result || reach(one.address) < reach(*result))) result = one.address;
  }
  return result;
}

// A host may have one of IPv6 only.
SocketAddress own_loopback(const std::vector<Interface>& all) {
  const auto found = best(all, [](const Interface& one) { return one.address.is_loopback(); });
  return found ? *found : SocketAddress::loopback(AF_INET);
}

[[noreturn]] void fail_none(const InterfaceFilter& filter, const std::vector<Interface>& all, const char* family) {
  std::string names;
  for (const Interface& one : all)
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", one.name, one.address.host());
  throw Error(Code::kInvalidValue,
              fmt::format("SLIP_SOCKET_IFNAME={}: no interface {}is accepted by this rule; there are {}", filter.rule(),
                          family, names.empty() ? "none" : names),
              {});
}

}  // namespace

std::vector<Interface> list_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0)
    throw Error(Code::kIo, fmt::format("cannot list the network interfaces: {}", std::strerror(errno)), {});
  std::vector<Interface> result;
  for (const ifaddrs* one = first; one; one = one->ifa_next) {
    if (!one->ifa_addr || !(one->ifa_flags & IFF_UP)) continue;
    if (one->ifa_addr->sa_family == AF_INET)
      result.push_back({one->ifa_name, SocketAddress(one->ifa_addr, sizeof(sockaddr_in))});
    if (one->ifa_addr->sa_family == AF_INET6)
      result.push_back({one->ifa_name, SocketAddress(one->ifa_addr, sizeof(sockaddr_in6))});
  }
  ::freeifaddrs(first);
  return result;
}

InterfaceFilter::InterfaceFilter(std::string_view rule) : rule_(rule) {
  unwanted_ = rule.starts_with('^');
  if (unwanted_) rule.remove_prefix(1);
  exact_ = rule.starts_with('=');
  if (exact_) rule.remove_prefix(1);
  while (!rule.empty()) {
    const std::size_t comma = std::min(rule.find(','), rule.size());
    // "eth0:1234" names a port as well, which NCCL takes and ranks here have no use for.
    const std::string_view name = rule.substr(0, comma).substr(0, rule.substr(0, comma).find(':'));
    if (!name.empty()) names_.emplace_back(name);
    rule.remove_prefix(std::min(comma + 1, rule.size()));
  }
  if (names_.empty() && !rule_.empty())
    throw Error(Code::kInvalidValue,
                fmt::format("SLIP_SOCKET_IFNAME={}: names no interface; write eth, =eth0 or ^docker,lo", rule_), {});
}

bool InterfaceFilter::accepts(std::string_view name) const {
  if (names_.empty()) return true;
  const bool named = std::any_of(names_.begin(), names_.end(),
                                 [&](const std::string& one) { return exact_ ? name == one : name.starts_with(one); });
  return named != unwanted_;
}

SocketAddress own_address(const InterfaceFilter& filter) {
  const std::vector<Interface> all = list_interfaces();
  if (!filter.empty()) {
    if (const auto found = best(all, [&](const Interface& one) { return filter.accepts(one.name); })) return *found;
    fail_none(filter, all, "");
  }
  static const InterfaceFilter kOutside("^docker,veth,virbr,br-,lo");
  const auto outside =
      best(all, [](const Interface& one) { return kOutside.accepts(one.name) && !one.address.is_loopback(); });
  return outside ? *outside : own_loopback(all);
}

SocketAddress own_address_towards(const SocketAddress& local_end, const InterfaceFilter& filter) {
  const bool tcp = local_end.is_tcp();  // over a Unix socket only this host's processes meet
  if (filter.empty()) return tcp ? local_end.with_port(0) : own_loopback(list_interfaces());
  const std::vector<Interface> all = list_interfaces();
  const auto found = best(all, [&](const Interface& one) {
    return filter.accepts(one.name) && (!tcp || one.address.family() == local_end.family());
  });
  if (!found) fail_none(filter, all, !tcp ? "" : local_end.family() == AF_INET6 ? "with IPv6 " : "with IPv4 ");
  return *found;
}

}  // namespace slip
