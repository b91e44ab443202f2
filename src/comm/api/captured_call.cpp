// A call that was captured: an op of a plan, whose every launch is a new call of its communicator.
#include <fmt/format.h>

#include <algorithm>

#include "comm/api/communicator_state.hpp"
#include "runtime/capture.hpp"
#include "runtime/core.hpp"
#include "runtime/exchange.hpp"

namespace slip {

class Communicator::State::CapturedCall final : public ExchangeSource {
 public:
  CapturedCall(const std::shared_ptr<State>& comm, const Op& op, const Call& call, std::vector<Parcel> parcels)
      : comm_(comm), line_(comm.get()), name_(op.name), call_(call), parcels_(std::move(parcels)) {
    for (const Range& range : op.reads) reads_.push_back(range.bytes);
    for (const Range& range : op.writes) writes_.push_back(range.bytes);
  }

  void require(const DeviceCore& core, Ranges reads, Ranges writes, Here here) const override {
    const std::shared_ptr<State> comm = communicator(here);
    comm->require_usable(here);
    comm->require_device(core, name_.text(), here);
    const auto bytes_of_range = [](const Range& range) { return range.bytes; };
    if (!std::ranges::equal(reads, reads_, {}, bytes_of_range) ||
        !std::ranges::equal(writes, writes_, {}, bytes_of_range))
      throw Error(Code::kInvalidValue, fmt::format("{} of a plan: its ranges have other sizes", name_.text()), here);
  }

  std::uint64_t enqueue(StreamState& stream, const Op& op) const override {
    const std::shared_ptr<State> comm = communicator(op.here);
    Op own = op;
    const std::lock_guard lock(comm->mutex);
    if (call_.kind != Collective::kMessage) return comm->start_call(call_, own, stream, slip::enqueue);
    SharedRun& run = comm->take_run();
    run.parcels = parcels_;
    return comm->start_letters(run, own, stream, slip::enqueue);
  }

  const void* line() const override { return line_; }

 private:
  std::shared_ptr<State> communicator(Here here) const {
    if (std::shared_ptr<State> comm = comm_.lock()) return comm;
    throw Error(Code::kInvalidHandle, fmt::format("{} of a plan: its communicator was destroyed", name_.text()), here);
  }

  const std::weak_ptr<State> comm_;
  const void* const line_;
  const Name name_;
  const Call call_;
  const std::vector<Parcel> parcels_;          // of messages
  std::vector<std::uint64_t> reads_, writes_;  // bytes of its ranges
};

void Communicator::State::capture(StreamState& stream, const Op& op, const Call& call, std::vector<Parcel> messages) {
  require_stream(stream, op.here);
  stream.capture
      .load(std::memory_order_acquire)  // acquire: the capture is built
      ->add(stream, op, std::make_shared<CapturedCall>(shared_from_this(), op, call, std::move(messages)));
}

}  // namespace slip
