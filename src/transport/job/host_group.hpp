// HostGroup: the hosts of a job on several hosts, as its launcher sees them.
#pragma once

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
    kGreeted,     // it has answered, and got the job
    kAccepted,    // it can run the job
    kRunning,     // it was told to start the ranks
    kDone,        // all its ranks have ended
    kFailed,      // the host was given up
  };

  Host(const HostRanks& host, const RemoteShell& shell, const std::string& program)
      : placed(host), name(without_user(host.name)), connection(host.name, shell, program) {}

  bool is_over() const { return state == State::kDone || state == State::kFailed; }

  const HostRanks& placed;
  const std::string name;  // without the user
  HostConnection connection;
  State state = State::kConnecting;
  AgentHello hello;
  std::string failure;  // of kFailed, before the ranks were started
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

  void send_running(const AgentFrame& frame);  // to all hosts whose ranks run
  void flush_running(std::int64_t until_ns);   // waits until those hosts have taken all frames, or until that time
  std::vector<int> running_ranks() const;      // ascending
  // Addresses of the first host that the launcher or another host uses: ends of ssh connections. A list with commas.
  std::string preferred_addresses() const;
  void throw_failures() const;  // kIo with the failures of all hosts; nothing if there is none

 private:
  std::list<Host> hosts_;
};

}  // namespace slip::transport
