// Description of a simulated device: a small JSON file, whose fields are those below; times, rates and sizes are texts
// with a unit ("3.9 us"). devices/h200.json uses most of them. Every field is checked, an unknown one refused; an error
// names the file, the field, the value and what is allowed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "slip/op.hpp"

namespace slip::sim {

// The greatest slowdown of kernels and copies beside each other: 1000 means that the work takes 1001 times as long.
// Costs have this limit, too, so that every plan made from them can be simulated.
inline constexpr std::uint32_t kMaxSlowdown = 1000;
inline constexpr std::uint64_t kMinRate = 1'000'000;              // of links and memory: 1 MB/s
inline constexpr std::uint64_t kMaxRate = 1'000'000'000'000'000;  // 1 PB/s
inline constexpr Picos kMaxTime = 1'000'000'000'000;              // of a single cost: 1 s

struct ComputeDescription {
  std::uint64_t flops = 0;              // per second, with the whole width
  std::uint64_t bandwidth = 0;          // of the device's memory, bytes per second, reads and writes together
  Picos launch = 0;                     // from the start of a kernel until it works
  std::uint32_t copy_slowdown_ppm = 0;  // how much longer a kernel takes while copies run beside it
};

struct CopyDescription {
  int engines = 2;  // 2: one a direction; 1: one for both; 0: copies run in place of kernels (rule 47)
  std::uint64_t in = 0, out = 0;
  std::uint64_t both = 0;                 // both directions together; 0: they do not share
  std::uint64_t pageable = 0;             // bound for copies of pageable memory; 0: none
  Picos latency = 0;                      // from the start of a copy until bytes move
  std::uint32_t kernel_slowdown_ppm = 0;  // how much longer its bytes take while a kernel runs on a device it touches
};

// What calls cost the host.
struct HostDescription {
  Picos launch = 0, copy = 0, fill = 0, function = 0, record = 0, timed_record = 0, wait = 0, value = 0;
  Picos query = 1;     // asking, or waiting for what is done already; never 0, so that a loop of queries gets on
  Picos sync = 0;      // from the end of the work until the host that waits goes on
  Picos callback = 0;  // time that a host function takes whose cost says none, virtual
};

// How devices of one world reach each other. Pairs without a path copy through the host (rule 75).
struct PeerDescription {
  enum class Form : std::uint8_t {
    kNone,
    kSwitch,  // each device has one port out and one in
    kRing,    // device i has links to i-1 and i+1; the shorter way round is taken
    kLinks,   // as listed
  };
  static constexpr int kHost = -1;  // in a listed path: the host's memory
  struct Route {
    int from = 0, to = 0;
    Picos latency = 0;
    std::vector<std::string> links;
  };
  Form form = Form::kNone;
  std::uint64_t bandwidth = 0;  // switch, ring: of one link and direction
  bool shared = false;          // ring: the directions share a link's bandwidth
  Picos latency = 0;
  std::map<std::string, std::uint64_t> links;
  std::vector<Route> routes;
};

struct Description {
  std::string name;
  std::string source;  // where the figures come from
  std::uint64_t memory = 0;
  int queues = 8;
  int min_priority = 0, greatest_priority = -5;
  ComputeDescription compute;
  CopyDescription copies;
  HostDescription host;
  PeerDescription peers;
};

// Throws kParse. `file` is named in errors.
Description parse_description(std::string_view text, std::string_view file);

// What follows "sim:": the description itself when it begins with a brace, a path when it has a '/' or ends in ".json",
// else a name in devices/. Throws kInvalidDevice, kIo, kParse.
Description load_description(std::string_view rest);

inline bool is_description_text(std::string_view rest) { return rest.starts_with('{'); }

}  // namespace slip::sim
