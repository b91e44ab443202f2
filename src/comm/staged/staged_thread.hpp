// StagedThread: the thread of a communicator that runs staged calls. It polls the flags that the streams write, runs
// each posted part with HostCalls, and sets the flag for which the stream waits. After an error of the communicator it
// releases the streams.
//
// The calls of a communicator follow each other in the streams, so the parts that are posted at a time belong to one
// call. The stream posts the id of the call. A call that is captured in a CUDA graph keeps its id, because each launch
// of the graph posts it again.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/sync.hpp"
#include "base/thread.hpp"
#include "comm/api/rank_connections.hpp"
#include "comm/host/call_run.hpp"
#include "comm/staged/staged_call.hpp"

namespace slip::comm {

// Runs the parts of staged calls on host memory, one after the other, as calls between ranks on cpu devices. One thread
// at a time may use it. It numbers the calls when they run and adds them to the history.
class HostCalls {
 public:
  // `ranks` and `context` must outlive this object. Nothing else may run calls with the context.
  HostCalls(const RankConnections& ranks, CallContext& context) : ranks_(ranks), context_(context), run_(context) {}

  // Runs part `index` of the call; all earlier parts have run. Returns when the part has ended. Each wait for another
  // rank has the timeout of the communicator. False: the part failed, and the communicator has the error.
  bool run(const StagedCall& call, std::uint64_t index, const StagingSlot& slot);

 private:
  class Wake final : public base::Subscriber {
   public:
    void wake_up() noexcept override { parker.unpark(); }
    base::Parker parker;
  };
  void prepare(const StagedCollective& call, std::uint64_t index, const StagingSlot& slot);
  void prepare(const StagedMessages& call, std::uint64_t index, const StagingSlot& slot);
  void wait_until_it_can_advance();

  const RankConnections& ranks_;
  CallContext& context_;
  CallRun run_;
  Wake wake_;
  Signature whole_;                  // of the running call, not of one part
  std::uint64_t number_ = 0;         // of the last collective, the same on all ranks
  std::uint64_t calls_begun_ = 0;    // the number of calls that this rank has begun, including sends and receives
  std::set<std::string> explained_;  // see RankConnections::plan_of
};

class StagedThread : base::NoCopy {
 public:
  struct Setup {
    StagingMemory memory;
    std::function<std::optional<Error>()> error;                   // the communicator's error, if it has one
    std::function<void(ErrorCode, const std::string& text)> fail;  // makes the communicator fail on all ranks
    std::function<void(const Error&)> fail_streams;                // called once, before the streams are released
    const RankConnections* ranks = nullptr;
    CallContext* calls = nullptr;
  };
  ~StagedThread() { stop(); }

  void start(Setup setup);
  void stop() noexcept;

  // Any thread may call add() and remove(). add() returns the id of the call, never 0; the caller then enqueues work
  // that posts it. kOnce: the entry is removed after the call has run. kCaptured: the call may run any number of times,
  // or never; equal captured calls have the same id. The caller calls remove() if it could not enqueue a kOnce call.
  enum class Use : std::uint8_t { kOnce, kCaptured };
  std::uint32_t add(StagedCall call, Use use);
  void remove(std::uint32_t id);

 private:
  struct Entry {
    std::optional<StagedCall> call;  // none: the id is free
    Use use = Use::kOnce;
  };
  void run();
  void run_call(std::uint32_t id);
  std::uint32_t poll(std::uint64_t slot);
  std::uint32_t await_part(std::uint64_t slot);
  const StagedCall* find(std::uint32_t id);
  void release();

  Setup setup_;
  std::optional<HostCalls> host_calls_;
  base::Thread thread_;
  std::atomic<bool> ends_{false};   // relaxed: no other data is published with it
  bool failed_ = false;             // only the thread uses it
  std::int64_t busy_until_ns_ = 0;  // until then the thread yields instead of sleeping
  base::Parker parker_;             // the thread sleeps here if no call is enqueued
  // relaxed: it only decides how long the thread sleeps.
  std::atomic<std::uint32_t> expected_{0};  // kOnce calls that have not run
  std::atomic<bool> any_captured_{false};
  base::Mutex mutex_;
  std::vector<std::unique_ptr<Entry>> entries_ SLIP_GUARDED_BY(mutex_);  // by id - 1; entries do not move
  std::vector<std::uint32_t> free_ SLIP_GUARDED_BY(mutex_);              // ids
};

}  // namespace slip::comm
