#include "watch/trace/launch_links.hpp"

#include <algorithm>

namespace slip {
namespace {

// The runs of each track by start, those around others before what they hold.
class Tracks {
 public:
  explicit Tracks(const std::vector<TraceRecord>& records) : records_(records) {
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (records[i].kind == RecordKind::kRun && !records[i].annotation) runs_[records[i].stream].push_back(i);
    }
    for (auto& [stream, runs] : runs_) {
      std::stable_sort(runs.begin(), runs.end(), [&](std::size_t a, std::size_t b) {
        return records[a].started != records[b].started ? records[a].started < records[b].started
                                                        : records[a].ended > records[b].ended;
      });
    }
  }

  // The innermost run that holds the moment.
  std::size_t at(std::uint64_t stream, Picos at) const {
    const auto found = runs_.find(stream);
    if (found == runs_.end()) return LaunchLinks::kNone;
    const std::vector<std::size_t>& runs = found->second;
    auto next = after(runs, at);
    for (int tries = 0; next != runs.begin() && tries < kMaxNested; ++tries) {
      if (records_[*--next].ended >= at) return *next;
    }
    return LaunchLinks::kNone;
  }
  // The first run that starts then or later.
  std::size_t from(std::uint64_t stream, Picos at) const {
    const auto found = runs_.find(stream);
    if (found == runs_.end()) return LaunchLinks::kNone;
    const auto next = std::lower_bound(found->second.begin(), found->second.end(), at,
                                       [this](std::size_t run, Picos time) { return records_[run].started < time; });
    return next == found->second.end() ? LaunchLinks::kNone : *next;
  }

 private:
  static constexpr int kMaxNested = 64;
  std::vector<std::size_t>::const_iterator after(const std::vector<std::size_t>& runs, Picos at) const {
    return std::upper_bound(runs.begin(), runs.end(), at,
                            [this](Picos time, std::size_t run) { return time < records_[run].started; });
  }

  const std::vector<TraceRecord>& records_;
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> runs_;
};

}  // namespace

std::vector<std::size_t> LaunchLinks::resolve(const std::vector<TraceRecord>& records) const {
  std::vector<std::size_t> result(records.size(), kNone);
  for (const Launched& launched : launched_) {
    const auto call = calls_.find(launched.correlation);
    if (call != calls_.end()) result[launched.run] = call->second;
  }
  if (!begins_.empty() && !ends_.empty()) follow_arrows(records, result);
  return result;
}

void LaunchLinks::follow_arrows(const std::vector<TraceRecord>& records, std::vector<std::size_t>& result) const {
  const Tracks tracks(records);
  for (const ArrowEnd& end : ends_) {
    const auto begin = begins_.find(end.id);
    if (begin == begins_.end()) continue;
    const std::size_t launched =
        end.follows ? tracks.from(end.moment.stream, end.moment.at) : tracks.at(end.moment.stream, end.moment.at);
    if (launched == kNone || result[launched] != kNone || records[launched].engine == Engine::kHost) continue;
    const std::size_t call = tracks.at(begin->second.stream, begin->second.at);
    if (call != kNone && records[call].engine == Engine::kHost) result[launched] = call;
  }
}

}  // namespace slip
