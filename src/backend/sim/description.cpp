#include "backend/sim/description.hpp"

#include <fmt/format.h>

#include <fstream>

#include "backend/sim/embedded.hpp"
#include "backend/sim/fields.hpp"
#include "backend/sim/units.hpp"
#include "slip/error.hpp"

namespace slip::sim {
namespace {

// Ranges, here and in the header, wide enough for any machine, and narrow enough that the arithmetic of units.hpp
// cannot overflow.
constexpr std::uint64_t kMaxFlops = 1'000'000'000'000'000'000;  // 1 EFLOP/s
constexpr std::uint64_t kMaxMemory = 1'000'000'000'000'000;     // 1 PB
constexpr int kMaxDevices = 4096;
constexpr std::size_t kMaxLinks = 65536;
constexpr std::size_t kMaxHops = 64;
constexpr std::size_t kMaxName = 200;
constexpr std::size_t kMaxText = std::size_t{1} << 20;
constexpr std::uint64_t kMaxSlowdownPpm = std::uint64_t{kMaxSlowdown} * kPpm;
static_assert(kPpm + kMaxSlowdownPpm <= UINT32_MAX);  // Links and Machine keep the sum in 32 bits

std::uint64_t rate(Fields& fields, const char* key) {
  return fields.quantity(key, Dimension::kBytesPerSecond, kMinRate, kMaxRate);
}
void optional_rate(Fields& fields, const char* key, std::uint64_t& value) {
  if (fields.has(key)) value = rate(fields, key);
}
void optional_time(Fields& fields, const char* key, Picos& value) {
  if (fields.has(key)) value = fields.time(key, kMaxTime);
}

ComputeDescription read_compute(Fields fields) {
  ComputeDescription compute;
  compute.flops = fields.quantity("flops", Dimension::kFlops, kMinRate, kMaxFlops);
  compute.bandwidth = rate(fields, "bandwidth");
  optional_time(fields, "launch", compute.launch);
  if (fields.has("copy_slowdown_ppm"))
    compute.copy_slowdown_ppm = static_cast<std::uint32_t>(fields.integer("copy_slowdown_ppm", 0, kMaxSlowdownPpm));
  fields.finish();
  return compute;
}

CopyDescription read_copies(Fields fields) {
  CopyDescription copies;
  if (fields.has("engines")) copies.engines = static_cast<int>(fields.integer("engines", 0, 2));
  copies.in = rate(fields, "in");
  copies.out = rate(fields, "out");
  optional_rate(fields, "both", copies.both);
  optional_rate(fields, "pageable", copies.pageable);
  optional_time(fields, "latency", copies.latency);
  if (fields.has("kernel_slowdown_ppm"))
    copies.kernel_slowdown_ppm = static_cast<std::uint32_t>(fields.integer("kernel_slowdown_ppm", 0, kMaxSlowdownPpm));
  fields.finish();
  return copies;
}

HostDescription read_host(Fields fields) {
  HostDescription host;
  optional_time(fields, "launch", host.launch);
  optional_time(fields, "copy", host.copy);
  optional_time(fields, "fill", host.fill);
  optional_time(fields, "function", host.function);
  optional_time(fields, "record", host.record);
  optional_time(fields, "timed_record", host.timed_record);
  optional_time(fields, "wait", host.wait);
  optional_time(fields, "value", host.value);
  optional_time(fields, "sync", host.sync);
  optional_time(fields, "callback", host.callback);
  if (fields.has("query"))
    host.query =
        static_cast<Picos>(fields.quantity("query", Dimension::kTime, 1, static_cast<std::uint64_t>(kMaxTime)));
  fields.finish();
  return host;
}

// One end of a listed path: the number of a device, or "host".
int read_end(Fields& fields, const char* key) {
  const Json& value = fields.raw(key);
  if (value.is_string() && value.get_ref<const std::string&>() == "host") return PeerDescription::kHost;
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= kMaxDevices)
    fields.refuse(key, value, fmt::format("\"host\" or a device number from 0 to {} is expected", kMaxDevices - 1));
  return static_cast<int>(value.get<std::uint64_t>());
}

PeerDescription::Route read_route(Fields fields, const PeerDescription& peers) {
  PeerDescription::Route route;
  route.from = read_end(fields, "from");
  route.to = read_end(fields, "to");
  if (route.from == route.to) fields.refuse("to", fields.raw("to"), "it must differ from \"from\"");
  optional_time(fields, "latency", route.latency);
  for (const Json& name : fields.array("links", kMaxHops)) {
    const bool known = name.is_string() && peers.links.contains(name.get_ref<const std::string&>());
    if (!known) fields.refuse("links", name, "it is not the name of a link in \"links\"");
    const auto& text = name.get_ref<const std::string&>();
    for (const std::string& other : route.links) {
      if (other == text) fields.refuse("links", name, "it is in this path already");
    }
    route.links.push_back(text);
  }
  if (route.links.empty()) fields.refuse("links", fields.raw("links"), "at least one link is expected");
  fields.finish();
  return route;
}

void read_links(Fields& fields, PeerDescription& peers) {
  const Fields links = fields.object("links");
  if (links.json().size() > kMaxLinks)
    fields.refuse("links", links.json().size(), fmt::format("at most {} links are allowed", kMaxLinks));
  for (const auto& [name, value] : links.json().items())
    peers.links[name] =
        read_quantity(value, fmt::format("{}.{}", links.place(), name), Dimension::kBytesPerSecond, kMinRate, kMaxRate);
  std::size_t index = 0;
  for (const Json& path : fields.array("paths", kMaxLinks))
    peers.routes.push_back(read_route(Fields(path, fmt::format("{}.paths[{}]", fields.place(), index++)), peers));
}

PeerDescription read_peers(Fields fields) {
  using Form = PeerDescription::Form;
  PeerDescription peers;
  const std::string form = fields.text("form", kMaxName);
  if (form == "links") {
    peers.form = Form::kLinks;
    read_links(fields, peers);
  } else if (form == "switch" || form == "ring") {
    peers.form = form == "ring" ? Form::kRing : Form::kSwitch;
    peers.bandwidth = rate(fields, "bandwidth");
    optional_time(fields, "latency", peers.latency);
    if (peers.form == Form::kRing && fields.has("shared")) peers.shared = fields.boolean("shared");
  } else {
    fields.refuse("form", fields.raw("form"), "\"switch\", \"ring\" or \"links\" is expected");
  }
  fields.finish();
  return peers;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char part[4096];
  // One part more than a description may have, and no more: the path may be a device that never ends.
  while (file && text.size() <= std::size_t{1} << 20) {
    file.read(part, sizeof(part));
    text.append(part, static_cast<std::size_t>(file.gcount()));
  }
  if (text.empty()) throw Error(Code::kIo, fmt::format("cannot read the device description '{}'", path), {});
  return text;
}

}  // namespace

Description parse_description(std::string_view text, std::string_view file) {
  const Json json = parse_json(text, file, kMaxText);
  Fields fields(json, std::string(file));
  Description result;
  result.name = fields.text("name", kMaxName);
  if (fields.has("source")) result.source = fields.text("source", 2000);
  result.memory = fields.quantity("memory", Dimension::kBytes, 1'000'000, kMaxMemory);
  if (fields.has("queues")) result.queues = static_cast<int>(fields.integer("queues", 1, 128));
  if (fields.has("greatest_priority"))
    result.greatest_priority = static_cast<int>(fields.integer("greatest_priority", -100, 0));
  result.compute = read_compute(fields.object("compute"));
  result.copies = read_copies(fields.object("copies"));
  if (fields.has("host")) result.host = read_host(fields.object("host"));
  if (fields.has("peers")) result.peers = read_peers(fields.object("peers"));
  fields.finish();
  return result;
}

Description load_description(std::string_view rest) {
  if (is_description_text(rest)) return parse_description(rest, "description");
  const std::string name(rest);
  if (rest.find('/') != std::string_view::npos || rest.ends_with(".json"))
    return parse_description(read_file(name), name);
  std::string known;
  for (const EmbeddedFile& file : embedded_devices()) {
    if (file.name == rest) return parse_description(file.text, fmt::format("{}.json", rest));
    known += fmt::format("{}sim:{}", known.empty() ? "" : ", ", file.name);
  }
  throw Error(Code::kInvalidDevice,
              fmt::format("no simulated device 'sim:{}': there are {}, sim:PATH.json and sim:{{...}}", rest, known),
              {});
}

}  // namespace slip::sim
