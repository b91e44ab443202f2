// The race checker compared with a slow reference: reachability in a graph of all steps. Random traces of streams,
// events, the host's waits and accesses, flags, streams that open and close.
#include <gtest/gtest.h>

#include <bitset>
#include <deque>
#include <map>
#include <random>

#include "support/share.hpp"
#include "watch/race/trace_checks.hpp"

namespace slip::test_race_oracle {
namespace {

constexpr std::size_t kMax = 160;
using Set = std::bitset<kMax>;

// A node that comes before another, and the waits that order them.
struct Link {
  std::size_t node = 0;
  std::vector<std::uint32_t> through = {};  // records
};

// One thing that happens: an op, or a step of the host (stream 0).
struct Node {
  std::uint64_t stream = 0, position = 0;
  std::uint32_t record = 0;
  std::vector<Link> after;  // direct
  std::vector<TraceRange> reads, writes;
};

struct Program {
  TraceData trace;
  std::vector<Node> nodes;
  std::map<std::uint32_t, std::size_t> node_of;  // by line, which is an op's place
};

class Generator {
 public:
  // The more buffers, the fewer races.
  Generator(std::uint32_t seed, bool flags, std::uint32_t buffers) : random_(seed), flags_(flags), buffers_(buffers) {
    for (int i = 0; i < 4; ++i) open();
    for (int i = 0; i < 70; ++i) step();
    close_flags();
  }
  Program take() { return std::move(program_); }

 private:
  struct Stream {
    std::uint64_t id = 0, position = 0;
    std::vector<std::size_t> ops = {};  // nodes, in order
    std::vector<Link> pending = {};     // what its next op follows
  };
  struct Event {
    std::uint64_t stream = 0, position = 0;
    std::vector<Link> covers;  // the last op that it covers, and waits behind that
  };

  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }

  TraceRecord& record(RecordKind kind, std::uint64_t stream, std::uint64_t position) {
    program_.trace.records.push_back({.kind = kind,
                                      .line = static_cast<std::int32_t>(program_.trace.records.size() + 1),
                                      .sequence = program_.trace.records.size() + 1,
                                      .stream = stream,
                                      .position = position,
                                      .name = "op",
                                      .file = "f"});
    return program_.trace.records.back();
  }
  void open() {
    streams_.push_back({.id = ++last_stream_});
    record(RecordKind::kStreamOpen, streams_.back().id, 0);
  }
  TraceRange range() { return {1 + below(buffers_), 8 * below(4), 8 * (1 + below(3))}; }

  std::size_t add(std::uint64_t stream, std::uint64_t position) {
    program_.nodes.push_back({.stream = stream,
                              .position = position,
                              .record = static_cast<std::uint32_t>(program_.trace.records.size() - 1),
                              .after = {},
                              .reads = {},
                              .writes = {}});
    const std::size_t node = program_.nodes.size() - 1;
    program_.node_of[static_cast<std::uint32_t>(program_.trace.records.size())] = node;
    return node;
  }
  std::size_t op(Stream& stream, OpKind kind) {
    TraceRecord& submit = record(RecordKind::kSubmit, stream.id, ++stream.position);
    submit.op = kind;
    const std::size_t node = add(stream.id, stream.position);
    Node& made = program_.nodes[node];
    made.after = std::exchange(stream.pending, {});
    if (!stream.ops.empty()) made.after.push_back({stream.ops.back()});
    if (host_ != kMax) made.after.push_back({host_});
    stream.ops.push_back(node);
    return node;
  }
  void touch(std::size_t node) {
    TraceRecord& submit = program_.trace.records.back();
    Node& made = program_.nodes[node];
    (below(2) ? made.reads : made.writes).push_back(range());
    if (below(3) == 0) made.reads.push_back(range());
    submit.first_range = program_.trace.ranges.size();
    submit.reads = static_cast<std::uint32_t>(made.reads.size());
    submit.writes = static_cast<std::uint32_t>(made.writes.size());
    for (const auto* list : {&made.reads, &made.writes})
      program_.trace.ranges.insert(program_.trace.ranges.end(), list->begin(), list->end());
  }
  std::vector<Link> end_of(const Stream& stream) const {
    std::vector<Link> result = stream.pending;
    if (!stream.ops.empty()) result.push_back({stream.ops.back()});
    return result;
  }
  void step();
  void host_step(const std::vector<Link>& after) {
    const std::size_t node = add(0, 0);
    program_.nodes[node].after = after;
    if (host_ != kMax) program_.nodes[node].after.push_back({host_});
    host_ = node;
  }
  // Of all streams, with the waits behind their last ops.
  void device_sync() {
    std::vector<Link> ends = closed_;
    for (const Stream& stream : streams_) {
      for (const Link& link : end_of(stream)) ends.push_back(link);
    }
    if (is_stuck(ends)) return;
    record(RecordKind::kSync, 0, 0).whole_device = true;
    host_step(ends);
  }
  void flag_op(Stream& stream);
  void close_flags();
  bool is_stuck(const std::vector<Link>& links) const;

  std::mt19937 random_;
  bool flags_;
  std::uint32_t buffers_;
  Program program_;
  std::deque<Stream> streams_;
  std::vector<Link> closed_;  // ends of streams that were closed
  std::vector<Event> events_;
  std::uint64_t last_stream_ = 0;
  std::size_t host_ = kMax;
  // The flag is written by the first stream only, with rising values. A wait comes after the first write that ends it,
  // which may be issued later than the wait.
  std::uint32_t written_ = 0;
  std::vector<std::size_t> writes_;                             // node of value 1, 2, ...
  std::vector<std::pair<std::size_t, std::uint32_t>> awaited_;  // node, value
};

void Generator::flag_op(Stream& stream) {
  const bool writes = &stream == &streams_.front();
  const std::uint32_t value = writes ? ++written_ : 1 + below(written_ + 2);
  const std::size_t node = op(stream, writes ? OpKind::kWriteValue : OpKind::kWaitValue);
  TraceRecord& submit = program_.trace.records.back();
  submit.value = value;
  submit.first_range = program_.trace.ranges.size();
  (writes ? submit.writes : submit.reads) = 1;
  program_.trace.ranges.push_back({1000, 0, 4});
  if (writes) writes_.push_back(node);
  else awaited_.emplace_back(node, value);
}

void Generator::close_flags() {
  for (const auto& [node, value] : awaited_) {
    if (value <= written_) program_.nodes[node].after.push_back({writes_[value - 1]});
  }
}

// Whether a node before these still waits for a flag: then no sync can have returned.
bool Generator::is_stuck(const std::vector<Link>& links) const {
  std::vector<Link> open = links;
  Set seen;
  while (!open.empty()) {
    const std::size_t node = open.back().node;
    open.pop_back();
    if (seen[node]) continue;
    seen.set(node);
    for (const auto& [waiting, value] : awaited_) {
      if (waiting == node && value > written_) return true;
    }
    open.insert(open.end(), program_.nodes[node].after.begin(), program_.nodes[node].after.end());
  }
  return false;
}

void Generator::step() {
  Stream& stream = streams_[below(static_cast<std::uint32_t>(streams_.size()))];
  const bool first = &stream == &streams_.front();
  switch (below(14)) {
    case 0:
    case 1: {
      record(RecordKind::kEventRecord, stream.id, ++stream.position);
      events_.push_back({stream.id, stream.position, end_of(stream)});
      return;
    }
    case 2:
    case 3:
    case 4: {
      // The first stream waits for no other, so that flags cannot cause a deadlock.
      if (events_.empty() || first) return;
      const Event& event = events_[below(static_cast<std::uint32_t>(events_.size()))];
      if (event.stream == stream.id) return;
      TraceRecord& wait = record(RecordKind::kEventWait, stream.id, stream.position);
      wait.other_stream = event.stream;
      wait.other_position = event.position;
      for (Link link : event.covers) {
        link.through.push_back(static_cast<std::uint32_t>(program_.trace.records.size() - 1));
        stream.pending.push_back(std::move(link));
      }
      return;
    }
    case 5: {
      if (below(4) == 0) return device_sync();
      if (below(2) || is_stuck(end_of(stream))) return;
      TraceRecord& sync = record(below(2) ? RecordKind::kSync : RecordKind::kQuery, 0, 0);
      sync.other_stream = stream.id;
      sync.other_position = ++stream.position;  // a mark of its own, as the runtime sets
      return host_step(end_of(stream));
    }
    case 6: {
      const bool writes = below(2) == 0;
      TraceRecord& access = record(writes ? RecordKind::kHostWrite : RecordKind::kHostRead, 0, 0);
      access.range = range();
      host_step({});
      (writes ? program_.nodes.back().writes : program_.nodes.back().reads).push_back(access.range);
      TraceRecord& end = record(RecordKind::kHostEnd, 0, 0);
      const TraceRecord& begin = program_.trace.records[program_.trace.records.size() - 2];
      end.range = begin.range;
      end.line = begin.line;  // as in the records of the runtime
      return;
    }
    case 7: {
      if (first) return;  // it goes on with the flags
      record(RecordKind::kStreamClose, stream.id, 0);
      for (const Link& link : end_of(stream)) closed_.push_back(link);
      stream = {.id = ++last_stream_};
      record(RecordKind::kStreamOpen, stream.id, 0);
      return;
    }
    case 8:
      if (flags_) flag_op(stream);
      return;
    default: return touch(op(stream, OpKind::kKernel));
  }
}

// Everything that comes before each node.
std::vector<Set> reach(const std::vector<std::vector<std::size_t>>& after) {
  std::vector<Set> result(after.size());
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 0; i < after.size(); ++i) {
      Set all = result[i];
      for (const std::size_t j : after[i]) all |= result[j], all.set(j);
      changed = changed || all != result[i];
      result[i] = all;
    }
  }
  return result;
}

bool meet(const TraceRange& a, const TraceRange& b) {
  return a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

bool conflict(const Node& a, const Node& b) {
  for (const TraceRange& write : a.writes) {
    for (const auto* list : {&b.reads, &b.writes}) {
      for (const TraceRange& other : *list) {
        if (meet(write, other)) return true;
      }
    }
  }
  return false;
}

bool races(const Program& program, const std::vector<std::vector<std::size_t>>& after) {
  const std::vector<Set> before = reach(after);
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Node &a = program.nodes[i], &b = program.nodes[j];
      if (!before[i][j] && !before[j][i] && (conflict(a, b) || conflict(b, a))) return true;
    }
  }
  return false;
}

// Without the paths through waits that were removed.
std::vector<std::vector<std::size_t>> edges_of(const Program& program, const std::vector<bool>& gone = {}) {
  std::vector<std::vector<std::size_t>> result(program.nodes.size());
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    for (const Link& link : program.nodes[i].after) {
      const bool broken = std::any_of(link.through.begin(), link.through.end(),
                                      [&](std::uint32_t wait) { return wait < gone.size() && gone[wait]; });
      if (!broken) result[i].push_back(link.node);
    }
  }
  return result;
}

TEST(RaceOracle, AgreesOnWhatRaces) {
  int racy = 0;
  for (std::uint32_t seed = 1; seed <= 4000 / test::kShare; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Program program = Generator(seed, seed % 2 == 0, 100).take();
    ASSERT_LE(program.nodes.size(), kMax);
    const RaceReport report = check_races(program.trace);
    const bool expected = races(program, edges_of(program));
    ASSERT_EQ(!report.races.empty(), expected) << report.text();
    racy += expected;
  }
  EXPECT_GT(racy, 1000 / static_cast<int>(test::kShare));
  EXPECT_LT(racy, 3900 / static_cast<int>(test::kShare));
}

// The fixes order every conflict, and none of them can be left out. An edge holds at every run of its two places; here
// every op is a place of its own.
TEST(RaceOracle, AgreesOnWhatIsMissing) {
  for (std::uint32_t seed = 1; seed <= 500 / test::kShare; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Program program = Generator(seed, seed % 2 == 0, 2).take();
    const auto edges = edges_of(program);
    const RaceReport report = check_races(program.trace);
    ASSERT_TRUE(report.fixes_needed);
    for (std::size_t left_out = 0; left_out <= report.fixes.size(); ++left_out) {
      auto mended = edges;
      for (std::size_t i = 0; i < report.fixes.size(); ++i) {
        if (i == left_out) continue;
        const std::size_t before = program.node_of.at(static_cast<std::uint32_t>(report.fixes[i].before.line));
        mended[before].push_back(program.node_of.at(static_cast<std::uint32_t>(report.fixes[i].after.line)));
      }
      ASSERT_EQ(races(program, mended), left_out < report.fixes.size()) << "without fix " << left_out << "\n"
                                                                        << report.text();
    }
  }
}

// All edges that no conflict needs can be removed together.
TEST(RaceOracle, AgreesOnWhatIsSuperfluous) {
  std::size_t removed = 0, kept = 0;
  for (std::uint32_t seed = 1; seed <= 20000 / test::kShare; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Program program = Generator(seed, seed % 2 == 0, 40).take();
    if (races(program, edges_of(program))) continue;
    watch::NeededEdges needed;
    static_cast<void>(watch::check_races(program.trace, false, &needed));
    std::vector<bool> gone(program.trace.records.size());
    for (const watch::NeededEdges::Edge& edge : needed.edges()) {
      if (program.trace.records[edge.record].kind != RecordKind::kEventWait) continue;
      gone[edge.record] = !edge.needed;
      ++(edge.needed ? kept : removed);
    }
    ASSERT_FALSE(races(program, edges_of(program, gone)));
  }
  EXPECT_GT(removed, 1000U / test::kShare);
  EXPECT_GT(kept, 400U / test::kShare / 2);
}

}  // namespace
}  // namespace slip::test_race_oracle
