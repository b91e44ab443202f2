#include "work_stream.hpp"

namespace slip::distributed {

WorkStream::WorkStream(const Device& device, int rank, Name name)
    : rank_(rank),
      stream_(device.stream(name, StreamFlags::kNonBlocking)),
      notifier_(std::make_shared<Notifier>(device)) {}

SlipWorkPtr WorkStream::make(SlipWork::Call call) const {
  return c10::make_intrusive<SlipWork>(rank_, std::move(call), notifier_);
}

void WorkStream::issue(SlipWork& work, std::vector<Staged> staged, const Enqueue& enqueue) {
  std::vector<InFlight> finished;  // destroyed without the lock: a tensor's destructor may wait for the GIL
  const std::lock_guard lock(mutex_);
  finished = take_finished();
  // Before the ops: if a later op of the work throws, the first ones still use the tensors.
  in_flight_.push_back({{}, work.kept()});
  try {
    enqueue(stream_);
  } catch (...) {
    in_flight_.back().event = stream_.record({});
    throw;
  }
  std::erase_if(staged, [](const Staged& memory) { return memory.results.empty(); });
  if (!staged.empty()) {
    stream_.host(
        [staged = std::move(staged)] {
          for (const Staged& memory : staged) memory.copy_back();
        },
        Name("copy results"), {});
  }
  in_flight_.back().event = stream_.record({});
  work.issued(in_flight_.back().event);
}

bool WorkStream::is_idle() const {
  try {
    return stream_.query({});
  } catch (const std::exception&) {
    return true;
  }
}

std::vector<WorkStream::InFlight> WorkStream::take_finished() {
  std::vector<InFlight> finished;
  const auto is_finished = [](const Event& event) {
    try {
      return event.query({});
    } catch (const std::exception&) {  // its stream has failed: no op of it runs any more
      return true;
    }
  };
  while (!in_flight_.empty() && is_finished(in_flight_.front().event)) {
    finished.push_back(std::move(in_flight_.front()));
    in_flight_.pop_front();
  }
  return finished;
}

}  // namespace slip::distributed
