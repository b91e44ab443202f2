// Builds traces by hand: ops with their times, and the waits between them.
#pragma once

#include <map>
#include <string_view>

#include "slip/analysis.hpp"
#include "slip/trace.hpp"

namespace slip::watch_test {

struct MadeOp {
  std::uint64_t stream = 1;
  Engine engine = Engine::kCompute;
  Picos queued = 0, started = 0, ended = 0;
  std::uint32_t device = 1;
  std::int32_t queue = -1;
  double width = 1.0;
  std::uint64_t thread = 1;
  std::string_view name = "op";
};

// Records get their sequence numbers in the order of the calls; runs come after all other records.
class MadeTrace {
 public:
  // Returns the op's position in its stream.
  std::uint64_t op(const MadeOp& op) {
    const std::uint64_t position = submit(op);
    run(op, position);
    return position;
  }
  std::uint64_t submit(const MadeOp& op) {
    TraceRecord record = base(RecordKind::kSubmit, op.stream, op.thread);
    record.op = op.engine == Engine::kCopyIn || op.engine == Engine::kCopyOut ? OpKind::kCopy : OpKind::kKernel;
    record.engine = op.engine;
    record.device = op.device;
    record.position = ++positions_[op.stream];
    record.queued = op.queued;
    record.cost.width = op.width;
    record.name = op.name;
    data_.records.push_back(record);
    return record.position;
  }
  void run(const MadeOp& op, std::uint64_t position) {
    TraceRecord record = base(RecordKind::kRun, op.stream, 9);
    record.engine = op.engine;
    record.device = op.device;
    record.queue = op.queue;
    record.position = position;
    record.started = op.started;
    record.ended = op.ended;
    record.name = op.name;
    runs_.push_back(record);
  }
  // A stream memory operation on the only flag. It takes no time, as on the sim device.
  void flag_op(OpKind kind, std::uint64_t stream, Picos queued, std::uint32_t value = 1) {
    TraceRecord record = base(RecordKind::kSubmit, stream, 1);
    record.op = kind;
    record.value = value;
    record.position = ++positions_[stream];
    record.queued = queued;
    record.first_range = data_.ranges.size();
    (kind == OpKind::kWaitValue ? record.reads : record.writes) = 1;
    data_.ranges.push_back({1, 0, 4});
    data_.records.push_back(record);
  }
  // A wait takes no position of its own, as on the cpu device.
  void wait(std::uint64_t stream, std::uint64_t other, std::uint64_t position,
            RecordKind kind = RecordKind::kEventWait) {
    TraceRecord record = base(kind, stream, 1);
    record.position = positions_[stream];
    record.other_stream = other;
    record.other_position = position;
    data_.records.push_back(record);
  }
  // An event recorded after a wait has a later point than one before it.
  std::uint64_t event(std::uint64_t stream) {
    TraceRecord record = base(RecordKind::kEventRecord, stream, 1);
    record.position = ++positions_[stream];
    data_.records.push_back(record);
    return record.position;
  }
  void sync(std::uint64_t other, std::uint64_t position, std::uint64_t thread = 1) {
    TraceRecord record = base(RecordKind::kSync, 0, thread);
    record.other_stream = other;
    record.other_position = position;
    data_.records.push_back(record);
  }
  void sync_device(std::uint32_t device = 1, std::uint64_t thread = 1) {
    TraceRecord record = base(RecordKind::kSync, 0, thread);
    record.device = device;
    record.whole_device = true;
    record.other_position = ~std::uint64_t{0};
    data_.records.push_back(record);
  }
  TraceData data() const {
    TraceData data = data_;
    for (TraceRecord run : runs_) {
      run.sequence = data.records.size() + 1;
      data.records.push_back(run);
    }
    return data;
  }

 private:
  TraceRecord base(RecordKind kind, std::uint64_t stream, std::uint64_t thread) {
    TraceRecord record;
    record.kind = kind;
    record.device = 1;
    record.stream = stream;
    record.thread = thread;
    record.sequence = data_.records.size() + 1;
    return record;
  }

  TraceData data_;
  std::vector<TraceRecord> runs_;
  std::map<std::uint64_t, std::uint64_t> positions_;
};

struct Analysed {
  explicit Analysed(const MadeTrace& made) : Analysed(made.data()) {}
  explicit Analysed(TraceData given) : data(std::move(given)), spans(data.spans()), result(analyse(data, spans)) {}
  TraceData data;
  std::vector<TraceSpan> spans;
  Analysis result;
};

}  // namespace slip::watch_test
