// CallRun: one collective, or one group of sends and receives, of one rank as an op of a stream. It runs the call's
// program (ProgramRunner) step by step. It can stop at each wait and continue later in another thread. It reports
// errors to all ranks. Communicator::State keeps several and takes a free one for each call.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <span>
#include <vector>

#include "comm/host/call_context.hpp"
#include "comm/host/program_runner.hpp"
#include "runtime/exchange.hpp"

namespace slip::comm {

class CallRun final : public runtime::Exchange {
 public:
  explicit CallRun(CallContext& context) : context_(context), runner_(context) {}

  // The caller sets the plan of the next call before prepare().
  CallPlan& plan() { return runner_.call().plan; }
  // `ticket`: position among all calls of this rank; `number`: among those that all ranks make. `hidden`: see
  // SharedMemory::find.
  void prepare(const Call& call, std::uint64_t ticket, std::uint64_t number, std::byte* output = nullptr,
               const std::byte* input = nullptr, bool hidden = false);
  // After prepare(): this call is a part of a larger call. Errors name the larger call, and the other ranks compare its
  // signature.
  struct Part {
    Signature whole;
    std::uint64_t number = 0;  // of the larger call in the ledger
    bool is_last = true;
  };
  void set_part(const Part& part);
  // After prepare(): the call uses memory that no Buffer owns. The program may free it when the call is done, and the
  // runtime does not observe that. So the call notifies of the memory's end when it is done (base/memory_end.hpp).
  void add_unowned(std::span<const std::byte> memory) { unowned_.push_back(memory); }

  bool begin() noexcept override;
  bool advance(By thread) noexcept override;
  bool can_advance() noexcept override { return runner_.waiter().can_advance(); }
  bool subscribe(base::Subscriber& subscriber) noexcept override {
    return begun_ && runner_.waiter().subscribe(subscriber);
  }
  std::int64_t began_ns() const noexcept override { return began_ns_; }
  void finish(const runtime::Failure* cause) override;

  bool failed() const { return error_ != nullptr; }  // after advance() returned true
  const Signature& signature() const { return runner_.call().signature; }
  // Reports this rank's failure to all ranks, unless another rank has failed before.
  void fail(ErrorCode code, const std::string& text) const { runner_.waiter().failures().report(code, text); }

  std::vector<UserMessage> messages;  // of a call of sends and receives; its plan refers to them
  // The next call may take this object. release when a call ends, acquire when it is taken: the thread that takes it
  // observes everything that the last call wrote.
  std::atomic<bool> free{true};

 private:
  bool start();
  void give_up() noexcept;
  void end();

  CallContext& context_;
  ProgramRunner runner_;
  std::vector<std::span<const std::byte>> unowned_;
  bool begun_ = false;  // all earlier calls of this rank have ended, and this one runs
  bool ended_ = false;  // the call ended in begin(): advance() has nothing left to do
  std::int64_t began_ns_ = 0;
  std::exception_ptr error_;
};

}  // namespace slip::comm
