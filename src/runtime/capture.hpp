// Capture: ops of a stream, and of the streams that join it through events, collected into a Plan instead of run (rules
// 96-99).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime/core.hpp"
#include "slip/plan.hpp"

namespace slip {

class Capture {
 public:
  // What a mark (a record during capture) or the end of a stream stands for: the ops that come last before it.
  using Frontier = std::vector<std::uint32_t>;
  struct Result {
    std::vector<PlanNode> nodes;
    std::vector<DeviceCore*> stream_devices;
    Frontier joins;
  };

  static void begin(StreamState& origin, Here here);
  // Ends the capture that began on `origin` and releases all its streams, also when it throws.
  static Result end(StreamState& origin, Here here);
  // The stream is being destroyed: spoils the capture it is in, ends it if it began there.
  static void forget(StreamState& stream) noexcept;
  // The same for all streams of a device that is being closed: a thread's own default stream may still be open, and its
  // state must not take the capture along to the next device.
  static void forget_all(const DeviceCore& core) noexcept;
  // The capture with this id, or null when it has ended.
  static std::shared_ptr<Capture> find(std::uint64_t id);
  // Which captures a call makes invalid.
  enum class Reach {
    kDevice,    // all that have a stream of the device
    kBlocking,  // all that have a blocking stream of it
  };
  static void invalidate_all(const DeviceCore& core, Reach reach, const char* why);

  std::uint64_t id() const { return id_; }
  // `exchange`: of a kExchange.
  void add(StreamState& stream, const Op& op, std::shared_ptr<const ExchangeSource> exchange = nullptr);
  std::uint64_t mark(StreamState& stream);                    // a record: returns the mark's number
  void wait(StreamState& stream, std::uint64_t mark_number);  // takes `stream` into the capture if it is not yet
  void invalidate(const char* why);

 private:
  struct Branch {
    std::uint32_t index = 0;
    Frontier last;  // what the next op of this stream comes after
  };
  Capture(StreamState& origin, std::uint64_t id);
  Branch& branch(StreamState& stream);
  bool joined(const Frontier& ends) const;
  static void release(StreamState& stream);
  void release_streams();

  const std::uint64_t id_;
  StreamState& origin_;
  const std::uint64_t thread_;
  std::mutex mutex_;  // guards what follows
  std::vector<PlanNode> nodes_;
  std::vector<Frontier> marks_;
  std::unordered_map<StreamState*, Branch> branches_;
  std::vector<DeviceCore*> stream_devices_;
  const char* invalid_ = nullptr;
};

// Throws when `stream` is the legacy stream and a blocking stream of its device captures; that capture becomes invalid.
void refuse_implicit_capture(const StreamState& stream, Here here);

}  // namespace slip
