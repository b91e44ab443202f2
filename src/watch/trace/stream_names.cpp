#include "watch/trace/stream_names.hpp"

#include "base/stream_text.hpp"

namespace slip::watch {

StreamNames::StreamNames(const TraceData& trace) {
  for (const TraceRecord& record : trace.records) {
    if (record.kind == RecordKind::kStreamOpen) open(record.stream, record.name);
  }
}

void StreamNames::open(std::uint64_t stream, std::string_view name) {
  const std::string_view given = base::given_stream_name(name);
  if (!given.empty()) names_[stream] = given;
}

void StreamNames::close(std::uint64_t stream) {
  if (!names_.contains(stream)) return;
  closed_.push_back(stream);
  if (closed_.size() <= kMaxClosed) return;
  names_.erase(closed_.front());
  closed_.pop_front();
}

}  // namespace slip::watch
