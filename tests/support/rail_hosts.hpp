// Hosts of a test with several network interfaces each. A host is a network namespace. One more namespace is the
// switch, with a bridge for each rail. The tools ip and tc set them up. A namespace ends when the object is destroyed
// and no process is in it.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/if_link.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace slip::test {

class RailHosts {
 public:
  struct Options {
    int rails = 2;
    std::string rate = {};    // of each interface, in the form of tc ("100mbit"); empty: not limited
    bool one_subnet = false;  // all rails are in the same subnet
  };

  explicit RailHosts(int hosts, Options options) : options_(std::move(options)) {
    for (int space = 0; space <= hosts && reason_.empty(); ++space) std::thread([&] { open_space(); }).join();
    for (int rail = 0; rail < options_.rails && reason_.empty(); ++rail) add_rail(rail, hosts);
  }
  ~RailHosts() {
    for (const int space : spaces_) ::close(space);
  }
  RailHosts(const RailHosts&) = delete;
  RailHosts& operator=(const RailHosts&) = delete;

  const std::string& reason() const { return reason_; }  // why the hosts could not be made; empty: they exist
  std::string address(int host, int rail = 0) const {
    return options_.one_subnet ? fmt::format("10.88.0.{}", 16 * rail + host + 1)
                               : fmt::format("10.88.{}.{}", rail, host + 1);
  }
  static std::string interface(int rail) { return fmt::format("rail{}", rail); }

  // Runs the body in a thread in the namespace of that host; its processes and sockets belong to that host.
  template <class Body>
  void within(int host, const Body& body) const {
    std::thread([&] {
      if (::setns(spaces_[static_cast<std::size_t>(host + 1)], CLONE_NEWNET) != 0) std::abort();
      body();
    }).join();
  }
  // The switch drops all packets of this interface. The host's kernel does not notice.
  void cut(int host, int rail) const {
    within(kSwitch, [&] { in_shell(fmt::format("ip link set {} nomaster", port(host, rail))); });
  }
  void mend(int host, int rail) const {
    within(kSwitch, [&] { in_shell(fmt::format("ip link set {} master bridge{}", port(host, rail), rail)); });
  }
  // Takes the interface down, which the host's kernel notices.
  void take_down(int host, int rail) const {
    within(host, [&] { in_shell(fmt::format("ip link set {} down", interface(rail))); });
  }
  // Bytes that the host has sent through this interface.
  std::uint64_t sent_bytes(int host, int rail) const {
    std::uint64_t result = 0;
    within(host, [&] {
      ifaddrs* first = nullptr;
      if (::getifaddrs(&first) != 0) std::abort();
      for (const ifaddrs* one = first; one; one = one->ifa_next) {
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_PACKET && interface(rail) == one->ifa_name)
          result = static_cast<const rtnl_link_stats*>(one->ifa_data)->tx_bytes;
      }
      ::freeifaddrs(first);
    });
    return result;
  }

 private:
  static constexpr int kSwitch = -1;
  static bool in_shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }
  static std::string port(int host, int rail) { return fmt::format("port{}-{}", host, rail); }

  void open_space() {
    if (::unshare(CLONE_NEWNET) != 0) {
      reason_ = "network namespaces are not permitted here";
      return;
    }
    spaces_.push_back(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    if (!in_shell("ip link set lo up")) reason_ = "the tool ip cannot set up an interface here";
  }

  void add_rail(int rail, int hosts) {
    within(kSwitch, [&] {
      if (!in_shell(fmt::format("ip link add bridge{0} type bridge && ip link set bridge{0} up", rail)))
        reason_ = "the tool ip cannot make a bridge here";
      for (int host = 0; host < hosts && reason_.empty(); ++host) {
        const int space = spaces_[static_cast<std::size_t>(host + 1)];
        if (!in_shell(fmt::format("ip link add {0} type veth peer name {1} netns /proc/{2}/fd/{3} && ip link set {0} "
                                  "master bridge{4} up",
                                  port(host, rail), interface(rail), ::getpid(), space, rail)))
          reason_ = "the tool ip cannot make a veth pair here";
      }
    });
    for (int host = 0; host < hosts && reason_.empty(); ++host) within(host, [&] { set_up(host, rail); });
  }

  void set_up(int host, int rail) {
    const std::string name = interface(rail);
    if (!in_shell(fmt::format("ip addr add {}/24 dev {} && ip link set {} up", address(host, rail), name, name)))
      reason_ = "the tool ip cannot set up an interface here";
    // Otherwise the kernel answers for the address of one interface at another one.
    static_cast<void>(in_shell("cd /proc/sys/net/ipv4/conf/all && echo 1 >arp_ignore && echo 2 >arp_announce"));
    if (options_.rate.empty() || !reason_.empty()) return;
    if (!in_shell(fmt::format("tc qdisc add dev {} root tbf rate {} burst 256kb limit 4mb", name, options_.rate)))
      reason_ = "the tool tc cannot limit the rate of an interface here";
  }

  const Options options_;
  std::string reason_;
  std::vector<int> spaces_;  // the switch, then the hosts
};

}  // namespace slip::test
