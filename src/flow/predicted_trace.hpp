// PredictedTrace: the trace of a simulation, for Prediction::trace. It is the observer of a PrivateScope, so it gets
// the records of the simulated devices only.
#pragma once

#include "slip/observer.hpp"
#include "slip/trace.hpp"
#include "watch/trace/record_log.hpp"

namespace slip::flow {

// Collects records while `recording` is set, and the names of streams also before that.
class PredictedTrace final : public Observer {
 public:
  explicit PredictedTrace(bool record) : recording(record) {}
  bool recording;  // needs no lock: sim notifies observers on the thread that issues the ops, and that thread sets it
  TraceData data() const { return log_.collect(); }
  void on(const Record& record) override {
    if (recording || record.kind == RecordKind::kStreamOpen) log_.add(record);
  }

 private:
  watch::RecordLog log_{TraceOptions{}.max_bytes};
};

}  // namespace slip::flow
