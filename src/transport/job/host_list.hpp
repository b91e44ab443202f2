// The hosts of a job, from `slip launch --hosts` or --hostfile, and the ranks that each host gets.
//
//   --hosts a,b:4,me@c,[fd00::1]:2      names or addresses; the number of ranks that a host takes (slots) is optional
//   --hostfile FILE                     one host per line: "a", "b:4" or "b slots=4"; # begins a comment
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace slip::transport {

struct HostEntry {
  std::string name;
  int slots = 0;  // 0: not given
};

// Throw kInvalidValue, which names the wrong entry. `path` is for the error.
std::vector<HostEntry> parse_hosts(std::string_view list);
std::vector<HostEntry> parse_host_file(std::string_view text, const std::string& path);

// One host and its ranks; each host occurs once.
struct HostRanks {
  std::string name;
  std::vector<int> ranks;  // ascending; the index is the local rank
};

// Ranks are numbered in the order of the entries. An entry with slots takes that many ranks, the first entries first.
// The entries without slots share the rest evenly. `nranks` 0: as many as there are slots, one for an entry without.
// Hosts that get no rank are left out. Throws kInvalidValue if the ranks do not fit.
std::vector<HostRanks> place_ranks(std::span<const HostEntry> hosts, int nranks);

// The name is "localhost", the name of this host, or an address of one of its interfaces. Asks no name server.
bool is_this_host(const std::string& name);
std::string without_user(const std::string& name);  // "b" of "me@b"

}  // namespace slip::transport
