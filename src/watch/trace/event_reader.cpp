// EventReader: one event of a trace that this library wrote.
#include <fmt/format.h>

#include <charconv>

#include "watch/trace/trace_data.hpp"
#include "watch/trace/trace_reader.hpp"

namespace slip::watch {

std::uint32_t require_small(const base::JsonReader& json, std::uint64_t value, const char* what) {
  if (value > std::numeric_limits<std::uint32_t>::max()) json.fail(fmt::format("{} {} is too large", what, value));
  return static_cast<std::uint32_t>(value);
}

const EventReader::Field EventReader::kArgsFields[] = {
    {"record",
     [](EventReader& to) {
       to.event_.record.kind = require_name(to.json_, record_kind_of, "kind of record");
       to.event_.recorded = true;
     }},
    {"device",
     [](EventReader& to) { to.event_.record.device = require_small(to.json_, to.json_.unsigned_number(), "device"); }},
    {"kind", [](EventReader& to) { to.event_.record.op = require_name(to.json_, op_kind_of, "kind of op"); }},
    {"opaque", [](EventReader& to) { to.event_.record.opaque = to.json_.boolean(); }},
    {"reads", [](EventReader& to) { to.read_ranges(to.reads_); }},
    {"writes", [](EventReader& to) { to.read_ranges(to.writes_); }},
    {"value",
     [](EventReader& to) { to.event_.record.value = require_small(to.json_, to.json_.unsigned_number(), "value"); }},
    {"bytes", [](EventReader& to) { to.event_.record.bytes = to.json_.unsigned_number(); }},
    {"cost", [](EventReader& to) { to.read_cost(); }},
    {"name", [](EventReader& to) { to.event_.record.name = to.texts_.keep(to.json_.text()); }},
    {"engine", [](EventReader& to) { to.asked_for_ = require_name(to.json_, engine_of, "engine"); }},
    {"stream", [](EventReader& to) { to.event_.record.stream = to.json_.unsigned_number(); }},
    {"position", [](EventReader& to) { to.event_.record.position = to.json_.unsigned_number(); }},
    {"queued", [](EventReader& to) { to.event_.record.queued = to.json_.micros(); }},
    {"place", [](EventReader& to) { to.read_place(); }},
    {"unnamed", [](EventReader& to) { to.event_.unnamed = to.json_.boolean(); }},
    {"annotation", [](EventReader& to) { to.event_.annotation = to.json_.boolean(); }},
    {"queue",
     [](EventReader& to) {
       to.event_.record.queue = static_cast<std::int32_t>(require_small(to.json_, to.json_.unsigned_number(), "queue"));
     }},
    {"other", [](EventReader& to) { to.read_pair(to.event_.record.other_stream, to.event_.record.other_position); }},
    {"whole_device", [](EventReader& to) { to.event_.record.whole_device = to.json_.boolean(); }},
    {"range", [](EventReader& to) { to.event_.record.range = to.read_range(); }},
    {"thread", [](EventReader& to) { to.read_pair(to.event_.record.thread, to.event_.run_thread); }},
    {"seq", [](EventReader& to) { to.read_pair(to.event_.record.sequence, to.event_.run_sequence); }},
};

const EventReader::Field EventReader::kEventFields[] = {
    {"ph", [](EventReader& to) { to.read_phase(); }},
    {"id", [](EventReader& to) { to.json_.skip(); }},
    {"s", [](EventReader& to) { to.json_.skip(); }},
    {"pid", [](EventReader& to) { to.event_.pid = to.json_.unsigned_number(); }},
    {"tid", [](EventReader& to) { to.event_.tid = to.json_.unsigned_number(); }},
    {"ts", [](EventReader& to) { to.event_.at = to.json_.micros(); }},
    {"dur", [](EventReader& to) { to.event_.lasts = to.json_.micros(); }},
    {"bp", [](EventReader& to) { to.json_.skip(); }},
    {"cat", [](EventReader& to) { to.read_category(); }},
    {"name", [](EventReader& to) { to.read_title(); }},
    {"args", [](EventReader& to) { to.read_object(kArgsFields, to.args_followers_); }},
};

// Reads the next key and returns the index of its field, or kCount if no field has this key.
template <std::size_t kCount>
std::size_t EventReader::find_key(const Field (&fields)[kCount], std::size_t from) {
  for (std::size_t i = from; i < kCount; ++i) {
    if (json_.take(fields[i].key)) return i;
  }
  const std::string_view key = json_.read_key();
  std::size_t i = 0;
  while (i != kCount && fields[i].key.name() != key) ++i;
  return i;
}

template <std::size_t kCount>
void EventReader::read_object(const Field (&fields)[kCount], Followers& followers) {
  static_assert(kCount <= kMaxFields);
  json_.begin_object();
  std::size_t last = 0;
  while (json_.next_member()) {
    std::uint8_t& follower = followers[phase_index_][last];
    std::size_t next = follower;
    if (!json_.take(fields[next].key)) {
      next = find_key(fields, last);
      if (next == kCount) {
        json_.skip();
        continue;
      }
      follower = static_cast<std::uint8_t>(next);
    }
    fields[next].read(*this);
    last = next + 1;
  }
}

const TraceEvent& EventReader::read() {
  event_ = {};
  event_.record.queued = kNoTime;
  asked_for_.reset();
  reads_.clear();
  writes_.clear();
  phase_index_ = 0;
  read_object(kEventFields, event_followers_);
  if (!event_.recorded && event_.record.stream == 0) event_.record.stream = event_.tid;
  event_.record.engine = asked_for_.value_or(event_.recorded ? Engine::kNone : event_.engine);
  return event_;
}

void EventReader::read_phase() {
  const std::string_view phase = json_.text();
  event_.phase = phase.size() == 1 ? phase[0] : '\0';
  phase_index_ = event_.phase == 'X' ? 1 : event_.phase == 'i' ? 2 : 3;
}

// The category of an op is the engine that it ran on. Records have no category, and arrows have other categories.
void EventReader::read_category() { event_.engine = engine_of(json_.text()).value_or(Engine::kNone); }

// Only the title of an op is needed. The writer generates the titles of records from other fields.
void EventReader::read_title() {
  const std::string_view title = json_.text();
  if (event_.phase == 'X' || event_.phase == 0) event_.title = texts_.keep(title);
}

std::size_t EventReader::read_numbers(std::uint64_t* into, std::size_t limit) {
  std::size_t count = 0;
  json_.items([&] {
    if (count == limit) json_.fail(fmt::format("more than {} numbers", limit));
    into[count++] = json_.unsigned_number();
  });
  return count;
}

void EventReader::read_pair(std::uint64_t& first, std::uint64_t& second) {
  std::uint64_t pair[2] = {0, 0};
  if (!json_.take_numbers(pair)) {
    pair[0] = pair[1] = 0;
    read_numbers(pair, 2);
  }
  first = pair[0];
  second = pair[1];
}

TraceRange EventReader::read_range() {
  std::uint64_t parts[3] = {0, 0, 0};
  if (!json_.take_numbers(parts) && read_numbers(parts, 3) != 3) json_.fail("a range is [buffer, offset, bytes]");
  if (parts[2] > std::numeric_limits<std::uint64_t>::max() - parts[1]) json_.fail("a range that ends beyond 2^64");
  return {parts[0], parts[1], parts[2]};
}

void EventReader::read_ranges(std::vector<TraceRange>& into) {
  into.clear();
  json_.items([&] { into.push_back(read_range()); });
}

void EventReader::read_cost() {
  Cost& cost = event_.record.cost;
  json_.members([&](std::string_view key) {
    if (key == "bytes") cost.bytes = json_.unsigned_number();
    else if (key == "flops") cost.flops = json_.unsigned_number();
    else if (key == "width") cost.width = json_.real();
    else if (key == "time_ps") cost.time = json_.signed_number();
    else json_.skip();
  });
}

EventReader::SourceLine EventReader::split_source_line(std::string_view text) {
  SourceLine place;
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) json_.fail("a \"place\" must be \"file:line\"");
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, place.line);
  if (error != std::errc() || stop != end) json_.fail("a \"place\" must be \"file:line\"");
  place.file = texts_.keep(text.substr(0, colon));
  place.text = texts_.keep(text);
  return place;
}

void EventReader::read_place() {
  const std::string_view text = json_.text();
  SourceLine& recent = source_lines_[StringPool::cache_slot(text)];
  if (text != recent.text || text.empty()) recent = split_source_line(text);
  event_.record.file = recent.file;
  event_.record.line = recent.line;
}

}  // namespace slip::watch
