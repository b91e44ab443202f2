// SharedRun: a call of one rank under way: it runs the call's program against the memory that the ranks share, and can
// stop at each wait and go on later, in another thread.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <optional>

#include "comm/shared_host.hpp"
#include "runtime/exchange.hpp"

namespace slip {

// What the calls of a rank in one communicator have in common.
struct SharedCalls {
  SharedCalls(SharedHost& shared, Bootstrap& boot, std::int64_t timeout)
      : host(shared),
        bootstrap(boot),
        timeout_ns(timeout),
        sources(static_cast<std::size_t>(shared.nranks())),
        scales(static_cast<std::size_t>(shared.nranks())) {}

  SharedHost& host;
  Bootstrap& bootstrap;
  const std::int64_t timeout_ns;
  std::atomic<std::uint64_t> turn{1};  // the number of the call that may run
  std::uint64_t phase = 0;             // that all calls before it have signalled; of who has the turn
  // Of who has the turn; kept, so that nothing is allocated, and what comes again and again is not written again.
  struct Written {
    Signature call{0, ~std::uint64_t{0}};  // without its number; at first of no call
    Program program;
  };
  std::array<Written, SharedLayout::kTurns> small;  // their programs depend on the number of the call modulo the turns
  Program program;                                  // of a piece of a larger call
  std::vector<const void*> sources;
  std::vector<ReduceScale> scales;
  std::atomic<bool> aborted{false};
};

class SharedRun final : public Exchange {
 public:
  explicit SharedRun(SharedCalls& calls) : calls_(calls) {}

  // Returns how many chunks the call has.
  std::uint64_t prepare(const Call& call, std::uint64_t number, std::uint64_t chunks_before, std::byte* output,
                        const std::byte* input);

  bool begin() noexcept override;
  bool advance() noexcept override;
  bool can_advance() noexcept override;
  std::int64_t began_ns() const noexcept override { return began_ns_; }
  void finish(bool skipped) override;

  std::atomic<bool> free{true};  // for the next call. release when finished, acquire when taken

 private:
  enum class Wait { kNothing, kTurn, kRoom, kMeet, kPhase };
  bool go_on();
  void write_program();
  bool run(const Primitive& step);
  void copy(const Primitive& step) const;
  void reduce(const Primitive& step) const;
  bool await(Wait what, std::uint64_t value, std::uint64_t whom = kEverybody);
  bool is_there();
  void require_same(int rank) const;
  void look_for_trouble();
  [[noreturn]] void time_out() const;
  std::byte* at(const Place& place) const;
  void end();

  SharedCalls& calls_;
  Call call_;
  std::uint64_t number_ = 0;
  std::byte* output_ = nullptr;
  const std::byte* input_ = nullptr;
  Signature signature_;
  std::optional<SharedPlan> plan_;
  const Program* program_ = nullptr;
  std::uint64_t piece_ = 0;
  std::size_t step_ = 0;
  bool begun_ = false;
  bool ended_ = false;   // by begin()
  bool patient_ = true;  // looks more than once at what has not come
  Wait waits_for_ = Wait::kNothing;
  std::uint64_t value_ = 0;  // of what it waits for
  std::uint64_t whom_ = 0;
  int next_rank_ = 0;             // the first that it still waits for
  std::int64_t deadline_ns_ = 0;  // of the present wait; 0: it has just begun
  std::int64_t began_ns_ = 0;
  std::exception_ptr error_;
};

}  // namespace slip
