// Links between the host's calls and what they launched on a device, in traces of other programs: by correlation ids,
// which both sides carry, and by flow arrows ("s" to "f") for what has none.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "slip/trace.hpp"

namespace slip {

class LaunchLinks {
 public:
  static constexpr std::size_t kNone = ~std::size_t{0};

  // Texts of ids are kept ones: equal if they lie at the same place. `run` is an index into the reader's records.
  void add_call(std::string_view correlation, std::size_t run) { calls_.emplace(correlation.data(), run); }
  void add_launched(std::string_view correlation, std::size_t run) { launched_.push_back({correlation.data(), run}); }
  // An arrow begins or ends on a track at a time, at the run that holds it. One that `follows` ends at the next run.
  void add_arrow_begin(std::string_view id, std::uint64_t stream, Picos at) { begins_[id.data()] = {stream, at}; }
  void add_arrow_end(std::string_view id, std::uint64_t stream, Picos at, bool follows) {
    ends_.push_back({id.data(), {stream, at}, follows});
  }

  // By record: the call that launched it, or kNone. Runs of the host launch, all others are launched.
  std::vector<std::size_t> resolve(const std::vector<TraceRecord>& records) const;

 private:
  struct Launched {
    const char* correlation;
    std::size_t run;
  };
  struct Moment {
    std::uint64_t stream = 0;
    Picos at = 0;
  };
  struct ArrowEnd {
    const char* id;
    Moment moment;
    bool follows;
  };
  void follow_arrows(const std::vector<TraceRecord>& records, std::vector<std::size_t>& result) const;

  std::unordered_map<const char*, std::size_t> calls_;
  std::vector<Launched> launched_;
  std::unordered_map<const char*, Moment> begins_;
  std::vector<ArrowEnd> ends_;
};

}  // namespace slip
