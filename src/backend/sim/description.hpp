// The `sim` device: streams in virtual time, reproducible to the picosecond. sim::Description is all that it knows
// about the hardware it simulates.
//
// A description is a plain value. A planner fills it in and opens it with open_devices(). A user writes the same fields
// as JSON ("sim:h200", "sim:path.json", "sim:{...}") for Device::open. There, times, rates and sizes are strings with a
// unit ("3.9 us"; see devices/h200.json). validate() checks the ranges of a value; parsing applies the same ranges. An
// error names the field and its value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/embedded.hpp"
#include "runtime/backend.hpp"
#include "slip/device.hpp"
#include "slip/op.hpp"

namespace slip::sim {

// The maximum slowdown of kernels and copies that run concurrently: with 1000, the work takes 1001 times as long. Costs
// have the same limit, so that every plan made from them can be simulated.
inline constexpr std::uint32_t kMaxSlowdown = 1000;
inline constexpr std::uint64_t kMinRate = 1'000'000;              // of links and memory: 1 MB/s
inline constexpr std::uint64_t kMaxRate = 1'000'000'000'000'000;  // 1 PB/s
inline constexpr Picos kMaxTime = 1'000'000'000'000;              // of a single cost: 1 s

struct ComputeDescription {
  std::uint64_t flops = 0;              // per second, if a kernel uses the whole device (width 1)
  std::uint64_t bandwidth = 0;          // of the device's memory, bytes per second, reads and writes together
  Picos launch = 0;                     // fixed cost of each kernel, before it computes
  std::uint32_t copy_slowdown_ppm = 0;  // how much longer a kernel takes while copies run
};

struct CopyDescription {
  // 2: one for each direction; 1: one for both; 0: copies occupy the compute engine (docs/semantics.md, rule 47)
  int engines = 2;
  std::uint64_t in = 0, out = 0;          // bytes per second, to and from the device
  std::uint64_t both = 0;                 // limit for the sum of both directions; 0: none
  std::uint64_t pageable = 0;             // limit for copies of pageable memory; 0: none
  Picos latency = 0;                      // fixed cost of each copy, before bytes move
  std::uint32_t kernel_slowdown_ppm = 0;  // how much longer a copy takes while a kernel runs on one of its devices
};

// Host time of each call, in picoseconds.
struct HostDescription {
  Picos launch = 0, copy = 0, fill = 0, function = 0, record = 0, timed_record = 0, wait = 0, value = 0;
  // Of a query, and of a wait that returns at once. At least 1, so that a polling loop advances virtual time.
  Picos query = 1;
  Picos sync = 0;      // from the end of the work until the waiting host thread continues
  Picos callback = 0;  // duration of a host function whose Cost gives no time
};

// How devices that share one virtual time reach each other. A copy between devices without a path goes through the host
// (rule 75).
struct PeerDescription {
  enum class Form : std::uint8_t {
    kNone,
    kSwitch,  // each device has one port out and one in
    kRing,    // device i has links to i-1 and i+1; copies take the shorter direction
    kLinks,   // `links` and `routes`, as listed
  };
  static constexpr int kHost = -1;  // as an end of a route: the host's memory
  struct Route {
    int from = 0, to = 0;  // device numbers, or kHost
    Picos latency = 0;
    std::vector<std::string> links = {};  // keys of PeerDescription::links, each at most once
  };
  Form form = Form::kNone;
  std::uint64_t bandwidth = 0;                      // switch, ring: bytes per second of one link and direction
  bool shared = false;                              // ring: both directions share the bandwidth of a link
  Picos latency = 0;                                // switch, ring: of each hop
  std::map<std::string, std::uint64_t> links = {};  // bytes per second by name
  std::vector<Route> routes = {};
};

struct Description {
  std::string name = {};
  std::string source = {};   // where the figures come from
  std::uint64_t memory = 0;  // bytes
  int queues = 8;            // number of hardware queues
  int max_priority = -5;     // priorities are 0 (lowest) to this
  ComputeDescription compute = {};
  CopyDescription copies = {};
  HostDescription host = {};
  PeerDescription peers = {};
};

// Quantities with a unit: "141 GB", "55.4 GB/s", "787 TFLOP/s", "3.9 us". They are read exactly, without floating
// point.
enum class Dimension : std::uint8_t { kBytes, kBytesPerSecond, kFlops, kTime };
// Returns bytes, bytes per second, operations per second or picoseconds. Returns nullopt if the text is no such
// quantity, no whole number of these, or too large for 64 bits.
std::optional<std::uint64_t> parse_quantity(std::string_view text, Dimension dimension);
// Writes the value with the largest unit that needs no fraction: "3900 ns".
std::string write_quantity(std::uint64_t value, Dimension dimension);

// Throws kInvalidValue for the first field that is out of range or inconsistent, and names it with its value.
void validate(const Description& description);

// Reads and checks a JSON text. Throws kParse; `file` is named in errors.
Description parse_description(std::string_view text, std::string_view file);

// `rest` is the part of a device name after "sim:": a JSON text if it begins with a brace; a path if it has a '/' or
// ends in ".json"; otherwise the name of an embedded description. Throws kInvalidDevice, kIo, kParse.
Description load_description(std::string_view rest);

inline bool is_description_text(std::string_view rest) { return rest.starts_with('{'); }

// The descriptions of devices/, compiled into the library: name without ".json" and text. Defined by cmake/embed.cmake.
std::span<const base::EmbeddedFile> embedded_devices();

// The entry of the backend table. The devices opened by one call share one virtual time and the links between them.
runtime::Backends open_sim(std::string_view rest, runtime::Cores cores);

// Like Device::open and Device::open_all, with a description. A device is called "sim:" plus the description's name.
// Throws kInvalidValue if validate() refuses the description.
Device open_device(const Description& description, const DeviceOptions& options = {}, Here here = Here::at());
std::vector<Device> open_devices(const Description& description, int count, const DeviceOptions& options = {},
                                 Here here = Here::at());

}  // namespace slip::sim
