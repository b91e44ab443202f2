#include "backend/sim/description.hpp"

#include <algorithm>
#include <fstream>
#include <limits>

#include "backend/sim/arithmetic.hpp"
#include "base/fail.hpp"
#include "base/json_fields.hpp"
#include "base/quantity_text.hpp"

namespace slip::sim {

// --- Quantities with a unit. ---

namespace {

using base::kExa, base::kGibi, base::kGiga, base::kKibi, base::kKilo, base::kMebi, base::kMega, base::kPeta,
    base::kTebi, base::kTera;

struct Unit {
  std::string_view name;
  std::uint64_t size;
};

// write_quantity() needs the decimal units first, from small to large. Then follow the binary units, for reading only.
constexpr Unit kBytes[] = {{"B", 1},      {"KB", kKilo},  {"MB", kMega},  {"GB", kGiga},  {"TB", kTera},
                           {"PB", kPeta}, {"KiB", kKibi}, {"MiB", kMebi}, {"GiB", kGibi}, {"TiB", kTebi}};
constexpr Unit kFlops[] = {{"FLOP", 1},      {"KFLOP", kKilo}, {"MFLOP", kMega}, {"GFLOP", kGiga},
                           {"TFLOP", kTera}, {"PFLOP", kPeta}, {"EFLOP", kExa}};
constexpr Unit kTimes[] = {{"ps", 1}, {"ns", kKilo}, {"us", kMega}, {"ms", kGiga}, {"s", kTera}};

struct Scale {
  std::span<const Unit> units;
  std::size_t decimal;  // number of decimal units
  bool per_second;
  const char* example;
};

Scale scale_of(Dimension dimension) {
  switch (dimension) {
    case Dimension::kBytes: return {kBytes, 6, false, "141 GB"};
    case Dimension::kBytesPerSecond: return {kBytes, 6, true, "55.4 GB/s"};
    case Dimension::kFlops: return {kFlops, std::size(kFlops), true, "787 TFLOP/s"};
    case Dimension::kTime: return {kTimes, std::size(kTimes), false, "3.9 us"};
  }
  return {};
}

// "55.4" has digits 554 and divisor 10. Returns nullopt if the text is no number or has more than 18 digits.
struct Decimal {
  std::uint64_t digits = 0;
  std::uint64_t divisor = 1;
};
std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal result;
  bool point = false;
  std::size_t count = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !point && i > 0 && i + 1 < text.size()) {
      point = true;
      continue;
    }
    if (c < '0' || c > '9' || ++count > 18) return std::nullopt;
    result.digits = result.digits * 10 + static_cast<std::uint64_t>(c - '0');
    if (point) result.divisor *= 10;
  }
  return count > 0 ? std::optional(result) : std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> parse_quantity(std::string_view text, Dimension dimension) {
  const Scale scale = scale_of(dimension);
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const std::optional<Decimal> number = parse_decimal(text.substr(0, space));
  std::string_view name = text.substr(space + 1);
  if (!number) return std::nullopt;
  if (scale.per_second) {
    if (!name.ends_with("/s")) return std::nullopt;
    name.remove_suffix(2);
  }
  for (const Unit& unit : scale.units) {
    if (unit.name != name) continue;
    const U128 product = U128{number->digits} * unit.size;
    if (product % number->divisor != 0) return std::nullopt;
    const U128 value = product / number->divisor;
    if (value > std::numeric_limits<std::uint64_t>::max()) return std::nullopt;
    return static_cast<std::uint64_t>(value);
  }
  return std::nullopt;
}

std::string write_quantity(std::uint64_t value, Dimension dimension) {
  const Scale scale = scale_of(dimension);
  std::size_t best = 0;
  for (std::size_t i = 1; i < scale.decimal && value != 0; ++i) {
    if (value % scale.units[i].size == 0) best = i;
  }
  const Unit& unit = scale.units[best];
  return fmt::format("{} {}{}", value / unit.size, unit.name, scale.per_second ? "/s" : "");
}

// --- Fields of descriptions. ---

namespace {

// These ranges, and those in the header, admit any real machine. Within them the arithmetic of arithmetic.hpp does not
// overflow.
constexpr std::uint64_t kMaxFlops = kExa, kMinMemory = kMega, kMaxMemory = kPeta;
constexpr int kMaxDevices = 4096;
constexpr std::size_t kMaxLinks = 65536;
constexpr std::size_t kMaxHops = 64;
constexpr std::size_t kMaxName = 200;
constexpr std::size_t kMaxText = std::size_t{1} << 20;
constexpr std::uint64_t kMaxSlowdownPpm = std::uint64_t{kMaxSlowdown} * kPpm;
static_assert(kPpm + kMaxSlowdownPpm <= UINT32_MAX);  // FlowNetwork and Machine keep the sum in 32 bits

// Reads a quantity with a unit; `where` names it in errors.
std::uint64_t read_quantity(const base::Json& value, const std::string& where, Dimension dimension, std::uint64_t min,
                            std::uint64_t max) {
  const std::optional<std::uint64_t> amount =
      value.is_string() ? parse_quantity(value.get_ref<const std::string&>(), dimension) : std::nullopt;
  if (!amount || *amount < min || *amount > max)
    base::refuse_json(where, value,
                      fmt::format("a text like \"{}\" from {} to {} is expected", scale_of(dimension).example,
                                  write_quantity(min, dimension), write_quantity(max, dimension)),
                      {});
  return *amount;
}

// The functions visit() list the fields of each part once, with JSON names and ranges. `field` is a FieldReader or a
// FieldValidator.
template <class Visitor>
void visit(ComputeDescription& compute, Visitor& field) {
  field.quantity("flops", compute.flops, Dimension::kFlops, kMinRate, kMaxFlops);
  field.rate("bandwidth", compute.bandwidth);
  field.time("launch", compute.launch);
  field.integer("copy_slowdown_ppm", compute.copy_slowdown_ppm, 0, kMaxSlowdownPpm);
}

template <class Visitor>
void visit(CopyDescription& copies, Visitor& field) {
  field.integer("engines", copies.engines, 0, 2);
  field.rate("in", copies.in);
  field.rate("out", copies.out);
  field.optional_rate("both", copies.both);
  field.optional_rate("pageable", copies.pageable);
  field.time("latency", copies.latency);
  field.integer("kernel_slowdown_ppm", copies.kernel_slowdown_ppm, 0, kMaxSlowdownPpm);
}

template <class Visitor>
void visit(HostDescription& host, Visitor& field) {
  field.time("launch", host.launch);
  field.time("copy", host.copy);
  field.time("fill", host.fill);
  field.time("function", host.function);
  field.time("record", host.record);
  field.time("timed_record", host.timed_record);
  field.time("wait", host.wait);
  field.time("value", host.value);
  field.time("query", host.query, 1);
  field.time("sync", host.sync);
  field.time("callback", host.callback);
}

template <class Visitor>
void visit(Description& device, Visitor& field) {
  field.text("name", device.name, kMaxName);
  field.quantity("memory", device.memory, Dimension::kBytes, kMinMemory, kMaxMemory);
  field.integer("queues", device.queues, 1, 128);
  field.integer("max_priority", device.max_priority, -100, 0);
}

// Reads fields of a JSON object into a part of a description. Integers, times and optional rates may be absent.
class FieldReader : public base::JsonFields {
 public:
  using base::JsonFields::integer, base::JsonFields::JsonFields, base::JsonFields::text;

  void text(const char* key, std::string& value, std::size_t max_bytes) { value = text(key, max_bytes); }
  void quantity(const char* key, std::uint64_t& value, Dimension dimension, std::uint64_t min, std::uint64_t max) {
    value = read_quantity(raw(key), path_of(key), dimension, min, max);
  }
  void rate(const char* key, std::uint64_t& value) {
    quantity(key, value, Dimension::kBytesPerSecond, kMinRate, kMaxRate);
  }
  void optional_rate(const char* key, std::uint64_t& value) {
    if (has(key)) rate(key, value);
  }
  void time(const char* key, Picos& value, Picos min = 0) {
    if (!has(key)) return;
    value = static_cast<Picos>(read_quantity(raw(key), path_of(key), Dimension::kTime, static_cast<std::uint64_t>(min),
                                             static_cast<std::uint64_t>(kMaxTime)));
  }
  template <class Integer>
  void integer(const char* key, Integer& value, std::int64_t min, std::int64_t max) {
    if (has(key)) value = static_cast<Integer>(integer(key, min, max));
  }
  FieldReader object(const char* key) { return {raw(key), path_of(key)}; }
};

// Checks the fields of a part of a description that was filled in by code.
class FieldValidator {
 public:
  explicit FieldValidator(std::string prefix) : prefix_(std::move(prefix)) {}

  void text(const char* key, const std::string& value, std::size_t max_bytes) const {
    if (value.size() > max_bytes)
      refuse(key, value.substr(0, max_bytes), fmt::format("at most {} bytes are allowed", max_bytes));
  }
  void quantity(const std::string& key, std::uint64_t value, Dimension dimension, std::uint64_t min,
                std::uint64_t max) const {
    if (value >= min && value <= max) return;
    refuse(key, write_quantity(value, dimension),
           fmt::format("from {} to {} is allowed", write_quantity(min, dimension), write_quantity(max, dimension)));
  }
  void rate(const std::string& key, std::uint64_t value) const {
    quantity(key, value, Dimension::kBytesPerSecond, kMinRate, kMaxRate);
  }
  void optional_rate(const char* key, std::uint64_t value) const {
    if (value != 0) rate(key, value);
  }
  void time(const char* key, Picos value, Picos min = 0) const {
    if (value < min || value > kMaxTime)
      refuse(key, fmt::format("{} ps", value), fmt::format("from {} ps to {} ps is allowed", min, kMaxTime));
  }
  void integer(const char* key, std::int64_t value, std::int64_t min, std::int64_t max) const {
    if (value < min || value > max)
      refuse(key, fmt::to_string(value), fmt::format("from {} to {} is allowed", min, max));
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& value, std::string_view allowed) const {
    base::fail(ErrorCode::kInvalidValue, {}, "sim description: {}{} is {}: {}", prefix_, key, value, allowed);
  }

 private:
  std::string prefix_;  // of the field's name in errors, for example "copies."
};

// The first rule that a route breaks. The rules are the same for a route from JSON and for one filled in by code.
struct RouteFault {
  const char* key;
  base::Json value;
  std::string rule;
};

std::optional<RouteFault> fault_of(const PeerDescription::Route& route, const PeerDescription& peers) {
  if (route.from == route.to) return RouteFault{"to", route.to, "it must differ from \"from\""};
  if (route.links.empty()) return RouteFault{"links", base::Json::array(), "at least one link is expected"};
  if (route.links.size() > kMaxHops)
    return RouteFault{"links", route.links.size(), fmt::format("at most {} are allowed", kMaxHops)};
  for (auto link = route.links.begin(); link != route.links.end(); ++link) {
    if (!peers.links.contains(*link)) return RouteFault{"links", *link, "it is not the name of a link in \"links\""};
    if (std::find(route.links.begin(), link, *link) != link)
      return RouteFault{"links", *link, "it is in this path already"};
  }
  return std::nullopt;
}

// Reads one end of a listed path: a device number, or "host".
int read_end(FieldReader& fields, const char* key) {
  const base::Json& value = fields.raw(key);
  if (value.is_string() && value.get_ref<const std::string&>() == "host") return PeerDescription::kHost;
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= kMaxDevices)
    fields.refuse(key, value, fmt::format("\"host\" or a device number from 0 to {} is expected", kMaxDevices - 1));
  return static_cast<int>(value.get<std::uint64_t>());
}

PeerDescription::Route read_route(FieldReader fields, const PeerDescription& peers) {
  PeerDescription::Route route;
  route.from = read_end(fields, "from");
  route.to = read_end(fields, "to");
  fields.time("latency", route.latency);
  for (const base::Json& name : fields.array("links", kMaxHops)) {
    if (!name.is_string()) fields.refuse("links", name, "the name of a link is expected");
    route.links.push_back(name.get<std::string>());
  }
  if (const auto fault = fault_of(route, peers)) fields.refuse(fault->key, fault->value, fault->rule);
  fields.finish();
  return route;
}

void read_links(FieldReader& fields, PeerDescription& peers) {
  const FieldReader links = fields.object("links");
  if (links.json().size() > kMaxLinks)
    fields.refuse("links", links.json().size(), fmt::format("at most {} links are allowed", kMaxLinks));
  for (const auto& [name, value] : links.json().items())
    peers.links[name] =
        read_quantity(value, fmt::format("{}.{}", links.place(), name), Dimension::kBytesPerSecond, kMinRate, kMaxRate);
  std::size_t index = 0;
  for (const base::Json& path : fields.array("paths", kMaxLinks))
    peers.routes.push_back(read_route(FieldReader(path, fmt::format("{}.paths[{}]", fields.place(), index++)), peers));
}

PeerDescription read_peers(FieldReader fields) {
  using Form = PeerDescription::Form;
  PeerDescription peers;
  const std::string form = fields.text("form", kMaxName);
  if (form == "links") {
    peers.form = Form::kLinks;
    read_links(fields, peers);
  } else if (form == "switch" || form == "ring") {
    peers.form = form == "ring" ? Form::kRing : Form::kSwitch;
    fields.rate("bandwidth", peers.bandwidth);
    fields.time("latency", peers.latency);
    if (peers.form == Form::kRing && fields.has("shared")) peers.shared = fields.boolean("shared");
  } else {
    fields.refuse("form", fields.raw("form"), "\"switch\", \"ring\" or \"links\" is expected");
  }
  fields.finish();
  return peers;
}

void validate_peers(const PeerDescription& peers) {
  using Form = PeerDescription::Form;
  const FieldValidator field("peers.");
  if (peers.form == Form::kSwitch || peers.form == Form::kRing) {
    field.rate("bandwidth", peers.bandwidth);
    field.time("latency", peers.latency);
  }
  if (peers.form != Form::kLinks) return;
  if (peers.links.size() > kMaxLinks)
    field.refuse("links", fmt::to_string(peers.links.size()), fmt::format("at most {} links are allowed", kMaxLinks));
  for (const auto& [name, rate] : peers.links) field.rate(fmt::format("links.{}", name), rate);
  for (std::size_t i = 0; i < peers.routes.size(); ++i) {
    const PeerDescription::Route& route = peers.routes[i];
    const FieldValidator in_route(fmt::format("peers.paths[{}].", i));
    in_route.integer("from", route.from, PeerDescription::kHost, kMaxDevices - 1);
    in_route.integer("to", route.to, PeerDescription::kHost, kMaxDevices - 1);
    in_route.time("latency", route.latency);
    if (const auto fault = fault_of(route, peers)) in_route.refuse(fault->key, fault->value.dump(), fault->rule);
  }
}

template <class Part>
void read_part(FieldReader fields, Part& part) {
  visit(part, fields);
  fields.finish();
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  // One byte more than parse_json accepts, and no more: the path may name a device file that never ends.
  std::string text(kMaxText + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.empty()) base::fail(ErrorCode::kIo, {}, "cannot read the device description '{}'", path);
  return text;
}

}  // namespace

void validate(const Description& description) {
  Description copy = description;  // visit() serves readers, too, so it takes no constant
  const FieldValidator whole(""), compute("compute."), copies("copies."), host("host.");
  visit(copy, whole);
  visit(copy.compute, compute);
  visit(copy.copies, copies);
  visit(copy.host, host);
  validate_peers(description.peers);
}

Description parse_description(std::string_view text, std::string_view file) {
  const base::Json json = base::parse_json(text, file, kMaxText);
  FieldReader fields(json, std::string(file));
  Description result;
  visit(result, fields);
  if (fields.has("source")) result.source = fields.text("source", 2000);
  read_part(fields.object("compute"), result.compute);
  read_part(fields.object("copies"), result.copies);
  if (fields.has("host")) read_part(fields.object("host"), result.host);
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
  for (const base::EmbeddedFile& file : embedded_devices()) {
    if (file.name == rest) return parse_description(file.text, fmt::format("{}.json", rest));
    known += fmt::format("{}sim:{}", known.empty() ? "" : ", ", file.name);
  }
  base::fail(ErrorCode::kInvalidDevice, {}, "no simulated device 'sim:{}': there are {}, sim:PATH.json and sim:{{...}}",
             rest, known);
}

}  // namespace slip::sim
