#include "watch/event_reader.hpp"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <utility>

#include "watch/words.hpp"

namespace slip {

std::uint32_t require_small(const JsonReader& json, std::uint64_t value, const char* what) {
  if (value > std::numeric_limits<std::uint32_t>::max()) json.fail(fmt::format("{} {} is too large", what, value));
  return static_cast<std::uint32_t>(value);
}

// The most frequent keys first: they are compared one by one.
const EventReader::Field EventReader::kArgsFields[] = {
    {"kind", [](EventReader& to) { to.event_.record.op = require_word(to.json_, op_kind_of, "kind of op"); }},
    {"reads", [](EventReader& to) { to.read_ranges(to.event_.reads); }},
    {"writes", [](EventReader& to) { to.read_ranges(to.event_.writes); }},
    {"cost", [](EventReader& to) { to.read_cost(); }},
    {"engine", [](EventReader& to) { to.event_.record.engine = require_word(to.json_, engine_of, "engine"); }},
    {"stream", [](EventReader& to) { to.event_.record.stream = to.json_.unsigned_number(); }},
    {"position", [](EventReader& to) { to.event_.record.position = to.json_.unsigned_number(); }},
    {"queued", [](EventReader& to) { to.event_.record.queued = to.json_.micros(); }},
    {"place", [](EventReader& to) { to.read_place(); }},
    {"queue",
     [](EventReader& to) {
       to.event_.record.queue = static_cast<std::int32_t>(require_small(to.json_, to.json_.unsigned_number(), "queue"));
     }},
    {"thread", [](EventReader& to) { to.read_numbers(to.event_.threads, 2); }},
    {"seq", [](EventReader& to) { to.read_numbers(to.event_.sequences, 2); }},
    {"record",
     [](EventReader& to) {
       to.event_.record.kind = require_word(to.json_, record_kind_of, "kind of record");
       to.event_.recorded = true;
     }},
    {"device",
     [](EventReader& to) { to.event_.record.device = require_small(to.json_, to.json_.unsigned_number(), "device"); }},
    {"name", [](EventReader& to) { to.event_.record.name = to.texts_.keep(to.json_.text()); }},
    {"other",
     [](EventReader& to) {
       std::uint64_t point[2] = {0, 0};
       to.read_numbers(point, 2);
       to.event_.record.other_stream = point[0];
       to.event_.record.other_position = point[1];
     }},
    {"range", [](EventReader& to) { to.event_.record.range = to.read_range(); }},
    {"whole_device", [](EventReader& to) { to.event_.record.whole_device = to.json_.boolean(); }},
    {"opaque", [](EventReader& to) { to.event_.record.opaque = to.json_.boolean(); }},
    {"value",
     [](EventReader& to) { to.event_.record.value = require_small(to.json_, to.json_.unsigned_number(), "value"); }},
    {"bytes", [](EventReader& to) { to.event_.record.bytes = to.json_.unsigned_number(); }},
    {"ran_on", [](EventReader& to) { to.event_.ran_on = require_word(to.json_, engine_of, "engine"); }},
    {"unnamed", [](EventReader& to) { to.event_.unnamed = to.json_.boolean(); }},
};

const EventReader::Field EventReader::kEventFields[] = {
    {"ph",
     [](EventReader& to) {
       const std::string_view phase = to.json_.text();
       to.event_.phase = phase.size() == 1 ? phase[0] : '\0';
     }},
    {"pid", [](EventReader& to) { to.event_.pid = to.json_.unsigned_number(); }},
    {"ts", [](EventReader& to) { to.event_.at = to.json_.micros(); }},
    {"dur", [](EventReader& to) { to.event_.lasts = to.json_.micros(); }},
    {"name", [](EventReader& to) { to.event_.title = to.texts_.keep(to.json_.text()); }},
    {"args", [](EventReader& to) { to.read_object(kArgsFields); }},
};

template <std::size_t kCount>
void EventReader::read_object(const Field (&fields)[kCount]) {
  std::string_view key;
  json_.begin_object();
  while (json_.next_key(key)) {
    const Field* field = fields;
    while (field != fields + kCount && field->key != key) ++field;
    if (field != fields + kCount) field->read(*this);
    else json_.skip();
  }
}

const TraceEvent& EventReader::read() {
  TraceEvent fresh;
  fresh.reads.swap(event_.reads);  // for the memory that they have
  fresh.writes.swap(event_.writes);
  fresh.reads.clear();
  fresh.writes.clear();
  fresh.record.queued = kNoTime;
  event_ = std::move(fresh);
  read_object(kEventFields);
  return event_;
}

std::size_t EventReader::read_numbers(std::uint64_t* into, std::size_t limit) {
  std::size_t count = 0;
  json_.begin_array();
  while (json_.next_item()) {
    if (count == limit) json_.fail(fmt::format("more than {} numbers", limit));
    into[count++] = json_.unsigned_number();
  }
  return count;
}

TraceRange EventReader::read_range() {
  std::uint64_t parts[3] = {0, 0, 0};
  if (read_numbers(parts, 3) != 3) json_.fail("a range is [buffer, offset, bytes]");
  if (parts[2] > std::numeric_limits<std::uint64_t>::max() - parts[1]) json_.fail("a range that ends beyond 2^64");
  return {parts[0], parts[1], parts[2]};
}

void EventReader::read_ranges(std::vector<TraceRange>& into) {
  into.clear();
  json_.begin_array();
  while (json_.next_item()) into.push_back(read_range());
}

void EventReader::read_cost() {
  Cost& cost = event_.record.cost;
  std::string_view key;
  json_.begin_object();
  while (json_.next_key(key)) {
    if (key == "bytes") cost.bytes = json_.unsigned_number();
    else if (key == "flops") cost.flops = json_.unsigned_number();
    else if (key == "width") cost.width = json_.real();
    else if (key == "time_ps") cost.time = json_.signed_number();
    else json_.skip();
  }
}

void EventReader::read_place() {
  const std::string_view text = json_.text();
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) json_.fail("a place is \"file:line\"");
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, event_.record.line);
  if (error != std::errc() || stop != end) json_.fail("a place is \"file:line\"");
  event_.record.file = texts_.keep(text.substr(0, colon));
}

}  // namespace slip
