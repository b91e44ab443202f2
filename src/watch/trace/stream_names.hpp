// StreamNames: the names that the program gave to its streams, for the texts of reports. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <unordered_map>

#include "slip/trace.hpp"

namespace slip::watch {

class StreamNames {
 public:
  StreamNames() = default;
  explicit StreamNames(const TraceData& trace);  // of all streams of the trace, which must outlive this object

  // The name must stay valid.
  void open(std::uint64_t stream, std::string_view name);
  // A report may name streams that were closed meanwhile, so the names of the last ones are kept.
  void close(std::uint64_t stream);
  std::string_view of(std::uint64_t stream) const {  // empty: the stream has no name
    const auto found = names_.find(stream);
    return found == names_.end() ? std::string_view() : found->second;
  }

  static constexpr std::size_t kMaxClosed = 4096;

 private:
  std::unordered_map<std::uint64_t, std::string_view> names_;
  std::deque<std::uint64_t> closed_;  // streams with names, in the order in which they were closed
};

}  // namespace slip::watch
