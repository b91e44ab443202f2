// Which network interface a rank is reached at: the one that its route to the others leaves by, or what the user named
// in SLIP_SOCKET_IFNAME, with NCCL's rules: "eth,ib" are beginnings of names, "=eth0" is one name, "^docker,lo" are
// beginnings that are not wanted, "^=eth0" one name that is not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/socket/address.hpp"

namespace slip {

struct Interface {
  std::string name;
  SocketAddress address;
};

std::vector<Interface> list_interfaces();  // that are up, an entry for each address

class InterfaceFilter {
 public:
  InterfaceFilter() = default;  // everything
  explicit InterfaceFilter(std::string_view rule);
  bool empty() const { return names_.empty(); }
  bool accepts(std::string_view name) const;
  const std::string& rule() const { return rule_; }

 private:
  std::string rule_;
  std::vector<std::string> names_;
  bool exact_ = false, unwanted_ = false;
};

// Where this host is reached by strangers: the first interface that the rule accepts; without a rule one that is not
// the loopback and not of containers, and the loopback if there is nothing else.
SocketAddress own_address(const InterfaceFilter& filter);
// The address for others that this end of a connection shows; with a rule, one of that family that it accepts.
SocketAddress own_address_towards(const SocketAddress& local_end, const InterfaceFilter& filter);

}  // namespace slip
