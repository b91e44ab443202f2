#include "transport/job/port_reservation.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fail.hpp"
#include "transport/socket/socket.hpp"

namespace slip::transport {

SocketAddress rendezvous_address(const std::string& rule, const std::string& preferred) {
  const InterfaceFilter filter(rule);
  if (!filter.empty()) return own_address(filter);
  const std::vector<Interface> interfaces = list_interfaces();
  for (std::size_t at = 0; at < preferred.size();) {
    const std::size_t end = std::min(preferred.find(',', at), preferred.size());
    const std::string wanted = preferred.substr(at, end - at);
    at = end + 1;
    const auto found = std::ranges::find_if(interfaces, [&](const Interface& one) {
      return one.address.host() == wanted && !one.address.is_loopback() && !one.address.is_link_local();
    });
    if (found != interfaces.end()) return found->address;
  }
  return own_address({});
}

// bind() without SO_REUSEADDR takes only a port that no other socket has. SO_REUSEADDR is set afterwards, so that rank
// 0 can listen at the port.
PortReservation::PortReservation(const SocketAddress& address, const base::PortRange& ports) {
  const auto reserve = [&](std::uint16_t port) {
    const SocketAddress wanted = address.with_port(port);
    socket_.reset(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    return socket_.number() >= 0 && ::bind(socket_.number(), wanted.data(), wanted.bytes()) == 0 ? 0 : errno;
  };
  const std::string what = "cannot reserve a port at " + address.host();
  const int error = ports.first == 0 ? reserve(0) : try_ports(ports, reserve);
  if (error != 0) fail_ports(ports, what, error);
  const int on = 1;
  sockaddr_storage chosen{};
  socklen_t bytes = sizeof(chosen);
  if (::setsockopt(socket_.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::getsockname(socket_.number(), reinterpret_cast<sockaddr*>(&chosen), &bytes) != 0)
    base::fail(Code::kIo, {}, "{}: {}", what, std::strerror(errno));
  address_ = SocketAddress(reinterpret_cast<const sockaddr*>(&chosen), bytes);
}

}  // namespace slip::transport
