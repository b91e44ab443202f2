// GpuCalls: how the ranks of a communicator exchange data if their devices are GPUs. Communicator::State enqueues its
// calls here instead of as a CallRun. comm/cuda implements it; a build without CUDA has no implementation.
// RankConnections chooses the implementation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "comm/api/call.hpp"
#include "comm/plan/message_program.hpp"
#include "slip/device.hpp"
#include "slip/op.hpp"
#include "transport/bootstrap/bootstrap.hpp"
#include "transport/ledger/ledger.hpp"

namespace slip::comm {

struct CallContext;
struct RankConnections;

// A call of this rank, with the addresses of its buffers.
struct GpuCall {
  const Call& call;
  std::uint64_t number = 0;  // among the calls that all ranks make
  std::uint64_t ticket = 0;  // among all calls of this rank
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
};

// The parts of the communicator that the watching thread of GpuCalls uses; see GpuCalls::start().
struct GpuWatch {
  std::function<std::optional<Error>()> error;                   // the communicator's error, if it has one
  std::function<void(ErrorCode, const std::string& text)> fail;  // makes the communicator fail on all ranks
  std::shared_ptr<transport::LedgerSlot> ledger;
  std::int64_t timeout_ns = 0;
  // For calls that a thread runs on host memory, as calls of ranks on cpu devices (StagedThread).
  const RankConnections* ranks = nullptr;
  CallContext* calls = nullptr;
};

class GpuCalls {
 public:
  using Submit = std::uint64_t(runtime::StreamState&, const Op&);

  virtual ~GpuCalls() = default;
  // Sets the maximum number of thread blocks of a call. 0: as many as are useful. Called before the first call, with
  // the same value on all ranks. Has no effect if calls have no kernels of their own.
  virtual void limit_blocks(int /*max*/) {}

  // From now on, until stop(), a thread watches the calls. It ends a call whose peer is lost or too late, and reports
  // the reason.
  virtual void start(GpuWatch watch) = 0;
  virtual void stop() noexcept = 0;

  // Both enqueue the op, whose ranges are set, and return its position. One thread at a time may call them. They do not
  // wait for other ranks, except when memory is used for the first time: then other processes must map it.
  virtual std::uint64_t start_call(const GpuCall& call, Op& op, runtime::StreamState& stream, Submit& submit) = 0;
  virtual std::uint64_t start_messages(std::span<const UserMessage> messages, std::uint64_t ticket, Op& op,
                                       runtime::StreamState& stream, Submit& submit) = 0;
  // True: StagedThread runs the calls on host memory, in the order in which the streams reach them. It numbers the
  // calls and adds them to the history, because a call in a CUDA graph runs once for each launch.
  virtual bool runs_on_host() const { return false; }
  // Returns when all calls have ended, with or without success.
  virtual void drain() noexcept = 0;
  // The name of the library that runs the calls, for reports.
  virtual std::string engine() const { return "Slipstream"; }
};

}  // namespace slip::comm
