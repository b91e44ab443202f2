// HostGroup: the launcher's data about each host of a job: its connection, its state and its ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <set>
#include <string>
#include <vector>

#include "transport/job/host_connection.hpp"
#include "transport/job/host_list.hpp"

namespace slip::transport {

struct Host {
  enum class State {
    kConnecting,  // the agent has not answered
    kGreeted,     // the agent has answered, and was sent the job
    kAccepted,    // the host can run the job
    kRunning,     // the agent was sent kStart
    kDone,        // all ranks of the host have ended
    kFailed,      // the connection to the host was closed after an error
  };

  Host(const HostRanks& host, const RemoteShell& shell, const std::string& program)
      : placed(host), name(without_user(host.name)), connection(host.name, shell, program) {}

  bool is_over() const { return state == State::kDone || state == State::kFailed; }

  const HostRanks& placed;
  const std::string name;  // without the user
  HostConnection connection;
  State state = State::kConnecting;
  AgentHello hello;
  std::string failure;  // reason of kFailed, if no rank was started yet; empty: the host itself has not failed
  std::set<int> running;
  std::int64_t heard_ns = 0;
};

class HostGroup {
 public:
  // The references must outlive the group.
  HostGroup(const std::vector<HostRanks>& hosts, const RemoteShell& shell, const std::string& program);

  std::list<Host>& all() { return hosts_; }
  const std::list<Host>& all() const { return hosts_; }
  Host& first() { return hosts_.front(); }  // the host of rank 0

  bool have_accepted() const {  // all of them
    return std::ranges::all_of(hosts_, [](const Host& host) { return host.state == Host::State::kAccepted; });
  }
  void send_running(const AgentFrame& frame);  // to all hosts whose ranks run
  // To all hosts whose agents have answered, also before the start: an agent may wait long for the other hosts.
  void send_heartbeat();
  void flush_running(std::int64_t until_ns);  // waits until those hosts have taken all frames, or until that time
  std::vector<int> running_ranks() const;     // ascending
  // Addresses of the first host that the launcher or another host uses, separated by commas. They are ends of ssh
  // connections.
  std::string preferred_addresses() const;
  void throw_failures() const;  // kIo with the failures of all hosts; nothing if there is none

 private:
  std::list<Host> hosts_;
};

}  // namespace slip::transport
