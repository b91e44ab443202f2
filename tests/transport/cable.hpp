// Two network namespaces that a veth pair joins, one for each of two threads. The tools ip and tc make them; they end
// with the threads.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>

namespace slip::test {

inline constexpr const char* kCableHosts[2] = {"10.77.0.1", "10.77.0.2"};

// Acts on the namespace of the calling thread.
inline bool in_shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

class Cable {
 public:
  // Runs body(end) in two threads, 0 and 1. Returns why it cannot, or nothing.
  static std::string run(const std::function<void(int end)>& body) {
    std::promise<pid_t> second_is;
    std::promise<bool> joined;
    std::string reason;
    std::thread second([&] {
      second_is.set_value(::unshare(CLONE_NEWNET) == 0 ? ::gettid() : 0);
      if (joined.get_future().get()) body(1);
    });
    std::thread first([&] {
      const bool alone = ::unshare(CLONE_NEWNET) == 0;
      const pid_t other = second_is.get_future().get();
      if (!alone || other == 0) reason = "network namespaces are not permitted here";
      else if (!join(other)) reason = "the tool ip cannot make a veth pair here";
      joined.set_value(reason.empty());
      if (reason.empty()) body(0);
    });
    first.join();
    second.join();
    return reason;
  }
  static bool shape(const std::string& discipline) {
    return in_shell("tc qdisc replace dev cable0 root " + discipline);
  }
  static bool cut() { return in_shell("ip link set cable0 down"); }

 private:
  static bool join(pid_t other) {
    const std::string enter = "nsenter --net=/proc/" + std::to_string(other) + "/ns/net ";
    return in_shell("ip link add cable0 type veth peer name cable1 netns " + std::to_string(other)) &&
           in_shell(std::string("ip addr add ") + kCableHosts[0] + "/24 dev cable0 && ip link set cable0 up") &&
           in_shell(enter + "ip addr add " + kCableHosts[1] + "/24 dev cable1") &&
           in_shell(enter + "ip link set cable1 up");
  }
};

}  // namespace slip::test
