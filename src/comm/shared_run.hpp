// SharedRun: a call of one rank under way: it runs the call's program against the memory that the ranks share, and can
// stop at each wait and go on later, in another thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>

#include "comm/host_plan.hpp"
#include "comm/shared_host.hpp"
#include "comm/shared_memory.hpp"
#include "runtime/exchange.hpp"

namespace slip {

// What the calls of a rank in one communicator have in common.
struct SharedCalls {
  SharedCalls(SharedHost& shared, SharedMemory& reachable, Bootstrap& boot, std::int64_t timeout)
      : host(shared),
        memory(reachable),
        bootstrap(boot),
        timeout_ns(timeout),
        targets(std::max<std::size_t>(static_cast<std::size_t>(shared.nranks()), 2)),
        peers(static_cast<std::size_t>(shared.nranks())),
        sources(static_cast<std::size_t>(shared.nranks())),
        scales(static_cast<std::size_t>(shared.nranks())) {}

  // Where another rank's buffers are in this process, and its factor.
  struct Peer {
    std::byte *input = nullptr, *output = nullptr;
    ReduceScale scale = {};
  };

  SharedHost& host;
  SharedMemory& memory;
  Bootstrap& bootstrap;
  const std::int64_t timeout_ns;
  std::atomic<std::uint64_t> turn{1};  // the number of the call that may run
  std::uint64_t phase = 0;             // that all calls before it have signalled; of who has the turn
  // Of who has the turn; kept, so that nothing is allocated.
  Program program;
  std::vector<void*> targets;
  std::vector<Peer> peers;
  std::vector<const void*> sources;
  std::vector<ReduceScale> scales;
  std::atomic<bool> aborted{false};
};

class SharedRun final : public Exchange {
 public:
  explicit SharedRun(SharedCalls& calls) : calls_(calls) {}

  // Returns how many chunks the call has. `hidden`: see SharedMemory::find.
  std::uint64_t prepare(const Call& call, std::uint64_t number, std::uint64_t chunks_before, std::byte* output,
                        const std::byte* input, bool hidden);

  bool advance() noexcept override;
  bool can_advance() noexcept override;
  std::int64_t began_ns() const noexcept override { return began_ns_; }
  void finish(bool skipped) override;

  std::atomic<bool> free{true};  // for the next call. release when finished, acquire when taken

 private:
  enum class Wait { kNothing, kTurn, kRoom, kMeet, kPhase };
  bool go_on();
  bool run(const Primitive& step);
  void copy(const Primitive& step) const;
  void reduce(const Primitive& step) const;
  bool await(Wait what, std::uint64_t value);
  bool is_there();
  void require_same(int rank) const;
  void look_for_trouble();
  [[noreturn]] void time_out() const;
  std::byte* at(const Place& place) const;
  void end();
  // For calls that may be done where buffers lie; in direct_run.cpp.
  Offer make_offer(bool hidden) const;
  bool offers_are_there() const;
  void choose_path();
  void enter(std::uint64_t phase);
  void require_sound() const;
  void retreat() noexcept;

  SharedCalls& calls_;
  Call call_;
  std::uint64_t number_ = 0;
  std::byte* output_ = nullptr;
  const std::byte* input_ = nullptr;
  Signature signature_;
  Offer offer_;
  std::optional<HostPlan> plan_;
  std::uint64_t piece_ = 0;
  std::size_t step_ = 0;
  bool begun_ = false;
  Wait waits_for_ = Wait::kNothing;
  std::uint64_t value_ = 0;       // of what it waits for
  int next_rank_ = 0;             // the first that it still waits for
  std::int64_t deadline_ns_ = 0;  // of the present wait; 0: it has just begun
  std::int64_t began_ns_ = 0;
  std::exception_ptr error_;
};

}  // namespace slip
