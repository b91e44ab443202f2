#include "watch/page/page_findings.hpp"

#include <fmt/format.h>

#include <initializer_list>
#include <iterator>
#include <map>
#include <utility>

#include "base/quantity_text.hpp"
#include "slip/check.hpp"

namespace slip {
namespace {

using OpKey = std::pair<std::uint64_t, std::uint64_t>;  // stream, position

// Findings with the ops they mark, which are looked up in the end, all at once.
class FindingList {
 public:
  void add(Finding finding, std::initializer_list<OpPlace> ops) {
    for (const OpPlace& op : ops) mark(op);
    list_.push_back(std::move(finding));
  }
  // Marks an op for the finding that is added next.
  void mark(const OpPlace& op) { marks_.insert({{op.stream, op.position}, list_.size()}); }

  std::vector<Finding> finish(std::span<const TraceSpan> spans) {
    for (std::size_t i = 0; i < spans.size() && !marks_.empty(); ++i) {
      const auto [first, last] = marks_.equal_range({spans[i].stream, spans[i].position});
      for (auto mark = first; mark != last; ++mark) list_[mark->second].spans.push_back(static_cast<std::uint32_t>(i));
    }
    return std::move(list_);
  }

 private:
  std::vector<Finding> list_;
  std::multimap<OpKey, std::size_t> marks_;
};

std::string cost_text(Picos cost, bool is_known = true) {
  if (!is_known) return "What it cost was not looked for, there were too many.";
  if (cost <= 0) return "It cost nothing in this run.";
  return fmt::format("It cost {} in this run.", format_time(cost));
}

std::string times_text(std::uint64_t times) { return times > 1 ? fmt::format(", {} times", times) : std::string(); }

std::string side_text(const RaceSide& side) {
  return fmt::format("{} {} them.\n", side.text(), side.writes ? "writes" : "reads");
}

// The edges among the report's that lie between the race's two streams.
std::string fixes_text(const Race& race, const std::vector<RaceFix>& fixes) {
  std::string result;
  for (const RaceFix& fix : fixes) {
    // A view that is still open is the second of the race, and has to end first.
    if (fix.after.stream == 0 && race.second.stream == 0 && fix.before.stream == race.first.stream) {
      result += fmt::format("\nEnd the host's view before {} is issued.", fix.before.text());
      continue;
    }
    if (fix.after.stream != race.first.stream || fix.before.stream != race.second.stream) continue;
    if (fix.after.stream == 0 || fix.before.stream == 0)
      result += fmt::format("\nLet the host wait between {} and {}.", fix.after.text(), fix.before.text());
    else
      result +=
          fmt::format("\nRecord an event after {} and wait for it before {}.", fix.after.text(), fix.before.text());
  }
  return result;
}

void add_races(FindingList& list, const RaceReport& report) {
  for (const Race& race : report.races) {
    list.add({"race",
              fmt::format("'{}' and '{}' touch the same bytes of '{}'{}", race.first.name, race.second.name,
                          race.buffer_name, times_text(race.times)),
              fmt::format("Bytes {} to {}:\n{}{}Nothing orders the two.{}", race.offset, race.offset + race.bytes,
                          side_text(race.first), side_text(race.second), fixes_text(race, report.fixes)),
              {}},
             {race.first, race.second});
  }
}

void add_deadlocks(FindingList& list, const std::vector<Deadlock>& deadlocks) {
  for (const Deadlock& deadlock : deadlocks) {
    std::string detail;
    for (const Deadlock::Step& step : deadlock.circle) {
      detail += fmt::format("{} waits for the next: {}\n", step.op.text(), step.because);
      list.mark(step.op);
    }
    list.add({"deadlock", fmt::format("{} ops wait for each other", deadlock.circle.size()), detail, {}}, {});
  }
}

void add_superfluous(FindingList& list, const std::vector<SuperfluousWait>& waits) {
  for (const SuperfluousWait& wait : waits) {
    const std::string place = wait.file.empty() ? std::string() : fmt::format(" ({}:{})", wait.file, wait.line);
    list.add({"superfluous wait",
              fmt::format("'{}' need not wait for '{}'{}", wait.before.name, wait.after.name, times_text(wait.times)),
              fmt::format("The wait{} holds {} until {} has ended, and {}. {}", place, wait.before.text(),
                          wait.after.text(), wait.implied ? "earlier waits say the same" : "no two ops need that",
                          cost_text(wait.cost, wait.cost_known)),
              {}},
             {wait.after, wait.before});
  }
}

void add_false_dependencies(FindingList& list, const std::vector<FalseDependency>& dependencies) {
  for (const FalseDependency& found : dependencies) {
    list.add(
        {"false dependency",
         fmt::format("'{}' waited for '{}' for nothing{}", found.held.name, found.by.name, times_text(found.times)),
         fmt::format("{} was held up by {}, with which it shares {}. {}", found.held.text(), found.by.text(),
                     found.queue ? "only a hardware queue" : "no bytes: the legacy stream's rule put it before",
                     cost_text(found.cost, found.cost_known)),
         {}},
        {found.by, found.held});
  }
}

}  // namespace

std::vector<Finding> findings_of(const TraceData& trace, std::span<const TraceSpan> spans) {
  const CheckReport report = check_trace(trace);
  FindingList list;
  add_races(list, report.races);
  add_deadlocks(list, report.deadlocks);
  add_superfluous(list, report.superfluous);
  add_false_dependencies(list, report.false_dependencies);
  return list.finish(spans);
}

}  // namespace slip
