// Random programs on real devices, compared with a model that keeps, for each stream, the set of everything that
// happens before its next op. The checker must agree with the model, both live and on the trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <bitset>
#include <cstdlib>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <set>

#include "races/scenario.hpp"
#include "support/devices.hpp"
#include "support/share.hpp"

namespace slip::races {
namespace {

constexpr std::size_t kMax = 128;
using Set = std::bitset<kMax>;

// What was done to the bytes of a buffer, and what came before that.
struct Node {
  std::size_t buffer = 0;
  bool writes = false;
  std::string name;
  Set before;
};

// A name for what the last op of a stream is, where it has none.
constexpr const char* kNothing = "";

// The rules: 1, 3-10 (as corrected for allocations), 21, 23, 24, 53, 54, 57, 84, 85.
class Model {
 public:
  struct Line {  // a stream
    bool legacy = false, blocking = false, open = true;
    Set known;
    std::string last = kNothing;  // op
  };
  struct Event {
    Set covers;
    std::string last;
  };
  std::set<std::string> skipped;  // waits for these are not made
  std::deque<Line> lines;
  std::vector<Node> nodes;
  std::vector<Event> events;

  std::size_t open(bool legacy, bool blocking) {
    lines.push_back({legacy, blocking, true, {}, kNothing});
    return lines.size() - 1;
  }
  void op(std::size_t line, const std::vector<std::pair<std::size_t, bool>>& touches, const std::string& name) {
    begin(line);
    add(lines[line].known, touches, name);
    lines[line].last = name;
    end(line);
  }
  void alloc(std::size_t line, std::size_t buffer) {
    lines[line].known |= host_;
    add(lines[line].known, {{buffer, true}}, "stream-ordered allocation");
  }
  void record(std::size_t line) {
    begin(line);
    end(line);
    events.push_back({lines[line].known, lines[line].last});
  }
  void wait(std::size_t line, std::size_t event) {
    if (skipped.contains(events[event].last)) return;
    begin(line);
    lines[line].known |= events[event].covers;
    end(line);
  }
  void sync(std::size_t line) {
    if (lines[line].legacy) join_blocking(host_);
    host_ |= lines[line].known;
  }
  void sync_all() {
    for (const Line& line : lines) host_ |= line.known;
  }
  void host(std::size_t buffer, bool writes) { add(host_, {{buffer, writes}}, "the host"); }

  // With these edges added, by the names of ops, the one at `left_out` excepted.
  bool races(const std::vector<RaceFix>& fixes = {}, std::size_t left_out = kMax) const {
    std::vector<Set> before;
    for (const Node& node : nodes) {
      Set& all = before.emplace_back(node.before);
      for (std::size_t j = 0; j + 1 < before.size(); ++j) {
        for (std::size_t fix = 0; fix < fixes.size(); ++fix)
          if (fix != left_out && fixes[fix].before.name == node.name && fixes[fix].after.name == nodes[j].name)
            all.set(j);
      }
      for (std::size_t j = before.size() - 1; j-- > 0;) {
        if (all[j]) all |= before[j];
      }
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const Node &late = nodes[i], &early = nodes[j];
        const bool meet = late.buffer == early.buffer && (late.writes || early.writes) && late.name != early.name;
        if (meet && !before[i][j]) return true;
      }
    }
    return false;
  }

 private:
  void join_blocking(Set& set) const {
    for (const Line& line : lines) {
      if (line.blocking) set |= line.known;
    }
  }
  void begin(std::size_t index) {
    Line& line = lines[index];
    line.known |= host_;
    if (line.legacy) join_blocking(line.known);
    if (line.blocking) line.known |= barrier_;
  }
  void end(std::size_t index) {
    if (lines[index].legacy) barrier_ = lines[index].known;
  }
  // The nodes of one op do not meet each other.
  void add(Set& known, const std::vector<std::pair<std::size_t, bool>>& touches, const std::string& name) {
    const std::size_t first = nodes.size();
    for (const auto& [buffer, writes] : touches) nodes.push_back({buffer, writes, name, known});
    for (std::size_t i = first; i < nodes.size(); ++i) known.set(i);
  }

  Set host_, barrier_;
};

class RandomProgram {
 public:
  RandomProgram(const Device& device, std::uint32_t seed) : device_(device), random_(seed) {
    add(device_.legacy_stream(), true, true);
    for (const bool blocking : {true, true, false, false}) open(blocking);
    // The more buffers, the fewer races.
    for (std::size_t i = 0; i < 4 + 8 * (seed % 3); ++i)
      buffers_.push_back(device_.alloc(64, MemoryKind::kPinned, "buffer"));
    device_.sync();
  }
  void play() {
    while (model_.nodes.size() + 4 < kMax && steps_++ < 24) step();
    call([](Model& model) { model.sync_all(); });
    device_.sync();
  }
  // The same program without the waits for these ops.
  bool races_without(const std::set<std::string>& awaited) const {
    Model model;
    model.skipped = awaited;
    for (const auto& call : calls_) call(model);
    return model.races();
  }
  const Model& model() const { return model_; }
  const std::string& text() const { return text_; }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  void add(StreamRef stream, bool legacy, bool blocking) {
    call([legacy, blocking](Model& model) { model.open(legacy, blocking && !legacy); });
    refs_.push_back(stream);
  }
  void open(bool blocking) {
    streams_.emplace_back(device_.stream(blocking ? StreamFlags::kBlocking : StreamFlags::kNonBlocking));
    add(*streams_.back(), false, blocking);
  }
  void close(std::size_t line) {
    streams_[line - 1].reset();
    model_.lines[line].open = false;
    open(below(2) == 0);
  }
  std::size_t line() {
    for (;;) {
      const std::size_t line = below(refs_.size());
      if (model_.lines[line].open) return line;
    }
  }
  void call(std::function<void(Model&)> made) {
    made(model_);
    calls_.push_back(std::move(made));
  }
  void say(const std::string& what) { text_ += what + "\n"; }
  void step();

  Device device_;
  std::mt19937 random_;
  Model model_;
  std::deque<std::optional<Stream>> streams_;
  std::vector<StreamRef> refs_;
  std::vector<Buffer> buffers_;
  std::vector<Event> events_;
  std::vector<std::function<void(Model&)>> calls_;  // the same program once more
  std::size_t steps_ = 0;
  std::string text_;
};

void RandomProgram::step() {
  const std::size_t on = line();
  const std::string line_name = (model_.lines[on].legacy     ? "legacy "
                                 : model_.lines[on].blocking ? "blocking "
                                                             : "stream ") +
                                std::to_string(on);
  switch (below(12)) {
    case 0:
    case 1:
      say("event " + std::to_string(events_.size()) + " = " + line_name + " record");
      events_.push_back(refs_[on].record());
      return call([on](Model& model) { model.record(on); });
    case 2:
    case 3: {
      if (events_.empty()) return;
      const std::size_t event = below(events_.size());
      say(line_name + " wait " + std::to_string(event));
      refs_[on].wait(events_[event]);
      return call([on, event](Model& model) { model.wait(on, event); });
    }
    case 4:
      if (below(3) != 0) return;
      say(line_name + " sync");
      refs_[on].sync();
      return call([on](Model& model) { model.sync(on); });
    case 5:
      if (below(4) != 0) return;
      say("device sync");
      device_.sync();
      return call([](Model& model) { model.sync_all(); });
    case 6: {
      const std::size_t buffer = below(4);  // never one of a stream
      const bool writes = below(2) == 0;
      say("host " + std::to_string(buffer) + (writes ? " written" : " read"));
      if (writes) static_cast<void>(buffers_[buffer].host_write<float>());
      else static_cast<void>(buffers_[buffer].host_read<float>());
      return call([buffer, writes](Model& model) { model.host(buffer, writes); });
    }
    case 7:
      say(line_name + " alloc " + std::to_string(buffers_.size()));
      call([on, buffer = buffers_.size()](Model& model) { model.alloc(on, buffer); });
      buffers_.push_back(refs_[on].alloc(64, "memory"));
      return;
    case 8:
      if (on == 0) return;
      say(line_name + " close");
      return close(on);
    default: {
      std::vector<std::pair<std::size_t, bool>> touches;
      std::vector<Range> reads, writes;
      for (std::size_t i = 0; i < 1 + below(2); ++i) {
        const std::size_t buffer = (touches.empty() ? 0 : touches[0].first + 1) + below(buffers_.size());
        if (buffer >= buffers_.size()) break;
        touches.emplace_back(buffer, below(2) == 0);
        (touches.back().second ? writes : reads).push_back(buffers_[buffer]);
      }
      const std::string name = "op" + std::to_string(model_.nodes.size());
      for (const auto& [buffer, write] : touches)
        say(line_name + " " + name + " " + std::to_string(buffer) + (write ? " written" : " read"));
      work(refs_[on], name, reads, writes);
      return call([on, touches, name](Model& model) { model.op(on, touches, name); });
    }
  }
}

class Programs : public test::DeviceTest {};

// The missing waits that the report names mend the program, and none of them can be left out. Ops have names of their
// own; allocations and accesses of the host do not.
void expect_fixes(const RandomProgram& program, const RaceReport& report) {
  const auto is_op = [](const RaceFix& fix) {
    return fix.after.name.starts_with("op") && fix.before.name.starts_with("op");
  };
  if (!std::all_of(report.fixes.begin(), report.fixes.end(), is_op)) return;
  for (std::size_t left_out = 0; left_out <= report.fixes.size(); ++left_out)
    EXPECT_EQ(program.model().races(report.fixes, left_out), left_out < report.fixes.size())
        << "without fix " << left_out << "\n"
        << program.text() << report.text();
}

TEST_P(Programs, AreJudgedAsTheRulesSay) {
  SLIP_NOT_ON_CUDA("the driver orders more than the rules say");
  const char* from = std::getenv("SLIP_TEST_SEED");
  const std::uint32_t first = from ? static_cast<std::uint32_t>(std::atoi(from)) : 1;
  int racy = 0, count = 0;
  std::size_t waits = 0;
  for (std::uint32_t seed = first; seed < first + 400 / test::kShare; ++seed) {
    RandomProgram program(open(), seed);
    RaceChecker checker;
    Trace trace;
    program.play();
    trace.stop();
    checker.stop();
    const bool expected = program.model().races();
    const TraceData data = trace.data();
    const RaceReport live = checker.report(), offline = check_races(data);
    ASSERT_EQ(!live.races.empty(), expected) << "seed " << seed << "\n" << program.text() << live.text();
    ASSERT_EQ(!offline.races.empty(), expected) << "seed " << seed << "\n" << program.text() << offline.text();
    expect_fixes(program, offline);
    const CheckReport found = check_trace(data);
    std::set<std::string> superfluous;
    for (const SuperfluousWait& wait : found.superfluous) superfluous.emplace(wait.after.name);
    waits += found.superfluous.size();
    ASSERT_EQ(program.races_without(superfluous), expected) << "seed " << seed << "\n"
                                                            << program.text() << found.text();
    racy += expected;
    ++count;
  }
  EXPECT_GT(racy, count / 10);
  EXPECT_LT(racy, count * 9 / 10);

  EXPECT_GT(waits, 0U) << "no program had a superfluous wait";
}

SLIP_OVER_DEVICES(Programs);

}  // namespace
}  // namespace slip::races
