// RankId: a rank and the number of ranks. Placement: the host and the process that a rank runs in. Ranks exchange their
// placements; two ranks choose their transport by them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace slip::transport {

struct RankId {
  int rank = 0, nranks = 1;
  int successor() const { return (rank + 1) % nranks; }  // in the ring of all ranks
  int predecessor() const { return (rank + nranks - 1) % nranks; }
  std::string text() const;  // "rank 3 of 8"
};

std::string rank_list(std::span<const int> ranks);  // "ranks 2, 5 and 7"; a long list is abbreviated

struct Placement {
  std::uint64_t boot = 0;       // hash of the boot id of the running kernel
  std::uint64_t net_space = 0;  // the network namespace: each container of a host may have its own
  std::uint64_t pid_space = 0;  // the pid namespace of `pid`
  // Start time of the process, in clock ticks of its host. It differs between processes with the same, reused pid.
  std::uint64_t started = 0;
  std::int32_t pid = 0;
  std::uint32_t user = 0;
  char host[64] = {};

  static Placement own();
};

// The state of a process, read from /proc; `pid` is a number or "self".
struct ProcessState {
  char state = 0;           // as in proc(5): 'R', 'S', 'T' (stopped), 'Z' (dead); 0: no such process
  std::int32_t parent = 0;  // its pid; 0: none in this namespace
  std::uint64_t started = 0;
  std::string program;
};
ProcessState process_state(const std::string& pid);

bool same_host(const Placement& a, const Placement& b);
bool same_process(const Placement& a, const Placement& b);
// True: the two processes can share memory by passing a memfd over a Unix socket.
bool share_memory(const Placement& a, const Placement& b);

}  // namespace slip::transport
