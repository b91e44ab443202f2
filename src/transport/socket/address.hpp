// SocketAddress: an IPv4, IPv6 or Unix socket address. The Unix sockets have abstract names: they exist on this host
// only, and need no file. Interface and InterfaceFilter choose the network interface at which other hosts reach this
// rank. Used by the bootstrap and the TCP transport.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace slip::transport {

class SocketAddress {
 public:
  // The format in messages between ranks, IPv4 and IPv6 only. The family is 4 or 6, the port is in host byte order.
  struct WireFormat {
    std::uint16_t family = 0;
    std::uint16_t port = 0;
    std::uint32_t scope = 0;
    std::uint8_t address[16] = {};
  };

  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t bytes);
  explicit SocketAddress(const WireFormat& wire);  // throws kParse if the family is neither 4 nor 6
  static SocketAddress unix_name(std::string_view name);
  static SocketAddress loopback(int family, std::uint16_t port = 0);
  static SocketAddress any(int family, std::uint16_t port = 0);

  int family() const { return storage_.ss_family; }
  bool is_tcp() const { return family() == AF_INET || family() == AF_INET6; }
  bool is_loopback() const;
  bool is_link_local() const;  // IPv6 fe80::, not valid on another host
  // Whether the first `prefix_bits` bits of both addresses are equal, and their families, too.
  bool same_subnet(const SocketAddress& other, int prefix_bits) const;
  std::uint16_t port() const;
  SocketAddress with_port(std::uint16_t port) const;
  WireFormat wire() const;
  std::string host() const;  // without the port
  std::string text() const;  // 192.0.2.1:80, [::1]:80, unix:name

  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t bytes() const { return bytes_; }

 private:
  sockaddr_storage storage_{};
  socklen_t bytes_ = 0;
};

// All addresses of a host, given as a name or a number. A name may need a query over the network, for which the
// resolver's own time limits apply.
std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port);

struct Interface {
  std::string name;
  SocketAddress address;
  int prefix_bits = 0;  // of the subnet
};

std::vector<Interface> list_interfaces();  // the interfaces that are up, one entry for each of their addresses

// What the driver of an interface reports.
struct InterfaceHardware {
  int mbps = 0;        // line rate; 0: unknown
  std::string bus_id;  // "0000:3b:00.0"; empty: not a device on a bus, for example a bridge
};
InterfaceHardware hardware_of(const std::string& interface);

// The rule of SLIP_SOCKET_IFNAME, with the syntax of NCCL_SOCKET_IFNAME: "eth,ib" are prefixes of names, "=eth0" is a
// whole name. After a '^' the names are excluded: "^docker,lo" excludes prefixes, "^=eth0" a whole name.
class InterfaceFilter {
 public:
  InterfaceFilter() = default;  // accepts all
  explicit InterfaceFilter(std::string_view rule);
  bool empty() const { return names_.empty(); }
  bool accepts(std::string_view name) const;
  const std::string& rule() const { return rule_; }

 private:
  std::string rule_;
  std::vector<std::string> names_;
  bool exact_ = false, excludes_ = false;
};

// The address at which other hosts reach this one: the first IPv4 address of the interfaces that the rule accepts; if
// there is none, the first IPv6 address. An empty rule accepts all interfaces except the loopback and the bridges of
// containers and virtual machines; the result is the loopback if there is no other.
SocketAddress own_address(const InterfaceFilter& filter);
// All interfaces that own_address() chooses among, each with its best address. Interfaces that only have a link-local
// address are left out unless there are no others. Throws if the rule accepts none.
std::vector<Interface> usable_interfaces(const InterfaceFilter& filter);
// The address that other ranks should use, inferred from the local end of a connection. With a rule: the address of an
// accepted interface, of the same family.
SocketAddress own_address_towards(const SocketAddress& local_end, const InterfaceFilter& filter);

}  // namespace slip::transport
