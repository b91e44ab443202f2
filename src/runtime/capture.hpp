// Capture: collects ops into a Plan instead of running them (rules 96-99 in docs/semantics.md). It takes the ops of one
// stream and of the streams that join it through events. Any thread may issue ops into a capture, as CUDA allows, but
// the thread that began it must also end it.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/core.hpp"
#include "slip/plan.hpp"

namespace slip::runtime {

class Capture {
 public:
  // The last ops before a mark (a record during capture) or before the end of a stream.
  using Frontier = std::vector<std::uint32_t>;
  struct CapturedStream {
    DeviceCore* device = nullptr;
    Name name = {};  // of the stream; observers see it in the stream of a launch, too
  };
  struct Result {
    std::vector<PlanNode> nodes;
    std::vector<CapturedStream> streams;
  };

  static void begin(StreamState& origin, Here here);
  // Ends the capture that began on `origin` and releases all its streams, even if the capture is invalid or unjoined.
  // Has no effect if it throws because the stream or the thread is not the one that began the capture.
  static Result end(StreamState& origin, Here here);
  // The stream is being destroyed: invalidates its capture, and ends it if it began on this stream.
  static void forget(StreamState& stream) noexcept;
  // The same for all streams of a device that is being closed. A per-thread default stream may still be open, and its
  // state must not keep the capture when another device reuses the state.
  static void forget_all(const DeviceCore& core) noexcept;
  // The capture with this id; null: it has ended.
  static std::shared_ptr<Capture> find(std::uint64_t id);
  static std::shared_ptr<Capture> of(const StreamState& stream);  // null: it does not capture, or the capture ends
  // Which captures a call invalidates.
  enum class Reach {
    kDevice,    // those with a stream of the device
    kBlocking,  // those with a blocking stream of the device
  };
  static void invalidate_all(const DeviceCore& core, Reach reach, const char* why);

  std::uint64_t id() const { return id_; }
  // `exchange`: only for kExchange.
  void add(StreamState& stream, const Op& op, std::shared_ptr<const ExchangeSource> exchange = nullptr);
  std::uint64_t mark(StreamState& stream) {  // a record: returns the mark's number
    const base::LockGuard lock(mutex_);
    marks_.push_back(branch(stream).last);
    return marks_.size() - 1;
  }
  void wait(StreamState& stream, std::uint64_t mark_number);  // adds `stream` to the capture if necessary
  void invalidate(const char* why) {
    const base::LockGuard lock(mutex_);
    if (!invalid_) invalid_ = why;
  }

 private:
  struct Branch {
    std::uint32_t index = 0;
    Frontier last;  // the ops that the next op of this stream is ordered after
  };
  Capture(StreamState& origin, std::uint64_t id);
  Branch& branch(StreamState& stream) SLIP_REQUIRES(mutex_);
  bool joined(const Frontier& ends) const SLIP_REQUIRES(mutex_);
  static void release(StreamState& stream);
  void release_streams() SLIP_REQUIRES(mutex_) {
    for (const auto& each : branches_) release(*each.first);
  }

  const std::uint64_t id_;
  StreamState& origin_;
  const std::uint64_t thread_;  // that began the capture, and must end it
  base::Mutex mutex_;
  std::vector<PlanNode> nodes_ SLIP_GUARDED_BY(mutex_);
  std::vector<Frontier> marks_ SLIP_GUARDED_BY(mutex_);
  std::unordered_map<StreamState*, Branch> branches_ SLIP_GUARDED_BY(mutex_);
  std::vector<CapturedStream> streams_ SLIP_GUARDED_BY(mutex_);
  const char* invalid_ SLIP_GUARDED_BY(mutex_) = nullptr;  // the reason; null: valid
};

// Throws if `stream` is the legacy stream and a blocking stream of its device captures; that capture becomes invalid.
void refuse_implicit_capture(const StreamState& stream, Here here);

}  // namespace slip::runtime
