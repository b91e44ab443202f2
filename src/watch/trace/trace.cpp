#include "slip/trace.hpp"

#include "watch/trace/record_log.hpp"

namespace slip {

Trace::Trace(const TraceOptions& options) : log_(std::make_unique<RecordLog>(options.max_bytes)), attached_(true) {
  attach(*this);
}

Trace::~Trace() { stop(); }

void Trace::stop() {
  if (attached_) detach(*this);
  attached_ = false;
}

void Trace::on(const Record& record) { log_->add(record); }
TraceData Trace::data() const { return log_->collect(); }
void Trace::write(const std::string& path, Here here) const { write_trace(data(), path, here); }

}  // namespace slip
