#include "watch/page_findings.hpp"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "slip/race.hpp"

namespace slip {
namespace {

using OpKey = std::pair<std::uint64_t, std::uint64_t>;  // stream, position

// The detail of a race is what RaceReport says about it.
Finding finding_of(const Race& race) {
  RaceReport one;
  one.races.push_back(race);
  const std::string text = one.text();
  const std::size_t first = text.find('\n'), last = text.rfind('\n', text.size() - 2);
  return {"race",
          fmt::format("'{}' and '{}' touch the same {} bytes of '{}' and nothing orders them", race.first.name,
                      race.second.name, race.bytes, race.buffer_name),
          text.substr(first + 1, last - first - 1),
          {}};
}

}  // namespace

std::vector<Finding> findings_of(const TraceData& trace, std::span<const TraceSpan> spans) {
  std::vector<Finding> result;
  std::vector<std::pair<OpKey, std::size_t>> marks;  // which finding marks which op
  for (const Race& race : check_races(trace).races) {
    for (const RaceSide& side : {race.first, race.second})
      marks.push_back({{side.stream, side.position}, result.size()});
    result.push_back(finding_of(race));
  }
  if (marks.empty()) return result;
  std::multimap<OpKey, std::size_t> wanted(marks.begin(), marks.end());
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const auto [first, last] = wanted.equal_range({spans[i].stream, spans[i].position});
    for (auto mark = first; mark != last; ++mark) result[mark->second].spans.push_back(static_cast<std::uint32_t>(i));
  }
  return result;
}

}  // namespace slip
