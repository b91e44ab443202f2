// Hosts of a test: network namespaces, each with a tun device, and a thread that forwards packets between them. The
// thread can drop packets, delay them and limit their rate; the only tool that it needs is ip. Ranks that are started
// in these namespaces are ranks of different hosts.
#pragma once

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"

namespace slip::test {

// The properties of all links between the hosts.
struct WireQuality {
  double loss = 0;              // the share of packets that are dropped, 0 to 1
  std::int64_t delay_ns = 0;    // of each packet
  double bytes_per_second = 0;  // 0: not limited
};

enum class Family { kIpv4, kIpv6 };  // of all addresses; with kIpv6 the hosts have no IPv4 address at all

class Hosts {
 public:
  explicit Hosts(int count, Family family = Family::kIpv4) : family_(family) {
    for (int host = 0; host < count && reason_.empty(); ++host) std::thread([&] { add(host); }).join();
    if (reason_.empty()) relay_ = std::thread([this] { forward_packets(); });
  }
  ~Hosts() {
    over_.store(true, std::memory_order_relaxed);  // relaxed: publishes no other data
    if (relay_.joinable()) relay_.join();
    for (const Host& host : hosts_) {
      ::close(host.wire);
      ::close(host.space);
    }
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  const std::string& reason() const { return reason_; }  // why the hosts could not be made; empty: they exist
  std::string address(int host) const {
    return (family_ == Family::kIpv4 ? "10.77.0." : "fd77::") + std::to_string(host + 1);
  }

  // Runs the body in a thread in the namespace of that host; its processes and sockets belong to that host.
  template <class Body>
  void within(int host, const Body& body) const {
    std::thread([&] {
      if (::setns(hosts_[static_cast<std::size_t>(host)].space, CLONE_NEWNET) != 0) std::abort();
      body();
    }).join();
  }
  void shape(const WireQuality& quality) {
    const std::lock_guard lock(mutex_);
    quality_ = quality;
  }
  // Drops all packets from and to the host. Its kernel does not notice.
  void cut(int host, bool is_cut = true) {
    const std::lock_guard lock(mutex_);
    hosts_[static_cast<std::size_t>(host)].cut = is_cut;
  }
  // A firewall: from now on, drops the SYN of each TCP connection to a port that is not 22 or one of these ports.
  void allow_ports(int first, int last) {
    const std::lock_guard lock(mutex_);
    first_port_ = first;
    last_port_ = last;
  }
  int refused_connections() {  // packets that the firewall dropped
    const std::lock_guard lock(mutex_);
    return refused_;
  }
  // Takes the host's own interface down, which its kernel notices.
  void take_down(int host) const {
    within(host, [this] { static_cast<void>(in_shell("ip link set " + wire_ + " down")); });
  }

 private:
  static constexpr std::size_t kPacket = 9000;
  static constexpr std::size_t kQueue =
      64;  // packets waiting for a slow link; further ones are dropped, as in a switch
  struct Host {
    int wire = -1;   // file descriptor of the tun device
    int space = -1;  // file descriptor of the network namespace
    bool cut = false;
  };
  struct Packet {
    std::int64_t due_ns = 0;
    std::size_t to = 0;
    std::vector<char> bytes;
  };

  static bool in_shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

  void add(int number) {
    if (::unshare(CLONE_NEWNET) != 0) {
      reason_ = "network namespaces are not permitted here";
      return;
    }
    Host host;
    host.space = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    host.wire = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    ifreq request{};
    std::strncpy(request.ifr_name, wire_.c_str(), IFNAMSIZ - 1);
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    if (host.wire < 0 || ::ioctl(host.wire, TUNSETIFF, &request) != 0) reason_ = "tun devices are not permitted here";
    else if (!in_shell("ip link set lo up && " + give_address(number) + " && ip link set " + wire_ + " mtu " +
                       std::to_string(kPacket) + " up"))
      reason_ = "the tool ip cannot set up an interface here";
    hosts_.push_back(host);
  }

  std::string give_address(int number) const {
    if (family_ == Family::kIpv4) return "ip addr add " + address(number) + "/24 dev " + wire_;
    return "ip -4 addr flush dev lo && ip addr add " + address(number) + "/64 dev " + wire_ + " nodad";
  }

  void forward_packets() {
    std::vector<char> buffer(kPacket);
    while (!over_.load(std::memory_order_relaxed)) {
      std::vector<pollfd> watched;
      for (const Host& host : hosts_) watched.push_back({host.wire, POLLIN, 0});
      static_cast<void>(::poll(watched.data(), watched.size(), deliver() ? 1 : 20));
      for (std::size_t from = 0; from < watched.size(); ++from) {
        for (int i = 0; i < 64 && watched[from].revents != 0; ++i) {
          const ssize_t bytes = ::read(watched[from].fd, buffer.data(), buffer.size());
          if (bytes <= 0) break;
          accept_packet(from, {buffer.data(), buffer.data() + bytes});
        }
      }
    }
  }

  void accept_packet(std::size_t from, std::vector<char> bytes) {
    // The destination address is at bytes `first` to `last` of the header; its last byte is the number of the host
    // plus 1. Multicast and broadcast packets are dropped.
    const bool four = family_ == Family::kIpv4;
    const std::size_t first = four ? 16 : 24, last = four ? 19 : 39;
    if (bytes.size() <= last || (bytes[0] & 0xf0) != (four ? 0x40 : 0x60) || bytes[first] == '\xff') return;
    const auto to = static_cast<std::size_t>(static_cast<unsigned char>(bytes[last])) - 1;
    const std::lock_guard lock(mutex_);
    if (to >= hosts_.size() || hosts_[from].cut || hosts_[to].cut) return;
    if (first_port_ != 0 && !is_allowed(bytes)) {
      ++refused_;
      return;
    }
    if (quality_.loss > 0 && std::uniform_real_distribution<>(0, 1)(random_) < quality_.loss) return;
    std::int64_t due = 0;
    if (quality_.bytes_per_second > 0) {
      if (waiting_.size() >= kQueue) return;
      free_ns_ = std::max(free_ns_, base::now_ns()) +
                 static_cast<std::int64_t>(static_cast<double>(bytes.size()) / quality_.bytes_per_second * 1e9);
      due = free_ns_;
    }
    if (quality_.delay_ns > 0) due = std::max(due, base::now_ns()) + quality_.delay_ns;
    if (due == 0 && waiting_.empty()) static_cast<void>(!::write(hosts_[to].wire, bytes.data(), bytes.size()));
    else waiting_.push_back({due, to, std::move(bytes)});
  }

  // Whether the firewall lets the packet pass: all but the SYN of a TCP connection to another port.
  bool is_allowed(const std::vector<char>& bytes) const {
    constexpr unsigned kTcp = 6, kSynAck = 0x12, kSyn = 0x02;
    const auto at = [&](std::size_t i) { return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0U; };
    const bool four = family_ == Family::kIpv4;
    const std::size_t tcp = four ? (at(0) & 0xf) * 4 : 40;
    if (at(four ? 9 : 6) != kTcp || (at(tcp + 13) & kSynAck) != kSyn) return true;
    const int port = static_cast<int>(at(tcp + 2) << 8 | at(tcp + 3));
    return port == 22 || (port >= first_port_ && port <= last_port_);
  }

  // Delivers the packets that are due. True: more packets wait.
  bool deliver() {
    const std::lock_guard lock(mutex_);
    for (; !waiting_.empty() && waiting_.front().due_ns <= base::now_ns(); waiting_.pop_front()) {
      const Packet& packet = waiting_.front();
      static_cast<void>(!::write(hosts_[packet.to].wire, packet.bytes.data(), packet.bytes.size()));
    }
    return !waiting_.empty();
  }

  // UCX reads the names of interfaces from /sys/class/net, which lists those of the namespace that mounted it, not of
  // the current one. So the interface of each host gets one of the listed names.
  static std::string name_wire() {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net", error)) {
      if (entry.path().filename() != "lo" && entry.path().filename().native().size() < IFNAMSIZ)
        return entry.path().filename();
    }
    return "wire0";
  }

  const Family family_;
  const std::string wire_ = name_wire();  // the interface of each host
  std::string reason_;
  std::vector<Host> hosts_;
  std::atomic<bool> over_{false};
  std::thread relay_;
  std::mutex mutex_;  // guards all members below, and Host::cut
  WireQuality quality_;
  std::mt19937 random_{20260};
  std::deque<Packet> waiting_;
  int first_port_ = 0, last_port_ = 0;  // of the firewall; 0: none
  int refused_ = 0;
  std::int64_t free_ns_ = 0;  // the time at which the slow link has sent all accepted packets
};

}  // namespace slip::test
