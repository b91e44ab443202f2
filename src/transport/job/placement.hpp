// RankId: which rank of how many. Placement: which host and process a rank runs in, as far as other ranks must know it
// to choose how to reach it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace slip {

struct RankId {
  int rank = 0, nranks = 1;
  int successor() const { return (rank + 1) % nranks; }  // in the ring of all ranks
  int predecessor() const { return (rank + nranks - 1) % nranks; }
  std::string text() const;  // "rank 3 of 8"
};

std::string rank_list(std::span<const int> ranks);  // "ranks 2, 5 and 7"; a long list is cut

struct Placement {
  std::uint64_t boot = 0;       // hash of the boot id of the running kernel
  std::uint64_t net_space = 0;  // the network namespace: each container of a host may have its own
  std::uint64_t pid_space = 0;  // the namespace of `pid`
  std::uint64_t started = 0;    // when the process began, in ticks of its host: pids are used again
  std::int32_t pid = 0;
  std::uint32_t user = 0;
  char host[64] = {};

  static Placement own();
};

// What /proc says about a process, given by its pid or "self".
struct ProcessState {
  char state = 0;  // as in proc(5): 'R', 'S', 'T' (stopped), 'Z' (dead); 0: no such process
  std::uint64_t started = 0;
  std::string program;
};
ProcessState process_state(const std::string& pid);

bool same_host(const Placement& a, const Placement& b);
bool same_process(const Placement& a, const Placement& b);
// Each can pass memory to the other over a Unix socket.
bool share_memory(const Placement& a, const Placement& b);

}  // namespace slip
