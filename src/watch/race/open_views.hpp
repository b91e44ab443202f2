// OpenViews: the host's views (Buffer::host_read, host_write) that have not ended, and the ops that were issued
// meanwhile. Such an op races with the host's access, which may happen at any time until the view ends. Used by
// RaceCheck.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "watch/race/shadow.hpp"

namespace slip::watch {

// The name of the host in a race with an op that was issued while a view was open.
inline constexpr std::string_view kOpenView = "the host, in a view still open";

struct OpInView {
  Access first, last;  // the first and the last op issued at one source line
  TraceRange where;    // the bytes that the first op shares with the view
};

struct OpenView {
  TraceRecord record;                // the record of its begin
  std::uint64_t begin = 0, end = 0;  // addresses in the shadow
  bool writes = false;
  std::vector<OpInView> ops;  // the ops that conflict with it, in the order of issue
};

class OpenViews {
 public:
  bool empty() const { return views_.empty(); }
  void open(ShadowMemory::TrackedBuffer& buffer, const TraceRecord& record, bool writes);
  // An op touches the range: adds it to the views that it conflicts with.
  void add_op(ShadowMemory::TrackedBuffer& buffer, const TraceRange& range, const Access& access);
  // Ends and returns the view to which this kHostEnd belongs. Nullopt: no such view is open.
  std::optional<OpenView> close(ShadowMemory::TrackedBuffer& buffer, const TraceRecord& record);
  void forget(const Shadow* memory) { views_.erase(memory); }

 private:
  std::unordered_map<const Shadow*, std::vector<OpenView>> views_;  // by the memory that they access
};

}  // namespace slip::watch
