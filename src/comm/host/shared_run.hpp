// SharedRun: a call of one rank under way: it runs the call's program against the memory that the ranks share and the
// links between them, and can stop at each wait and go on later, in another thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <optional>
#include <variant>

#include "comm/diagnose/call_history.hpp"
#include "comm/host/shared_host.hpp"
#include "comm/host/shared_memory.hpp"
#include "comm/link/links.hpp"
#include "comm/plan/host_plan.hpp"
#include "comm/plan/message_plan.hpp"
#include "runtime/exchange.hpp"
#include "transport/ledger/ledger.hpp"

namespace slip {

// What the calls of a rank in one communicator have in common.
struct SharedCalls {
  // Where the ranks of this host meet, and the memory that all ranks reach.
  struct Shared {
    SharedHost* host = nullptr;      // null: this rank shares memory with nobody
    SharedMemory* memory = nullptr;  // null: not all ranks are of this host
  };
  SharedCalls(Bootstrap& boot, Shared shared, Links& between, LedgerSlot& ledger, bool few_cores, std::int64_t timeout)
      : rank(boot.rank()),
        nranks(boot.nranks()),
        bootstrap(boot),
        host(shared.host),
        memory(shared.memory),
        links(between),
        seat(ledger),
        crowded(few_cores),
        timeout_ns(timeout),
        targets(std::max<std::size_t>(static_cast<std::size_t>(nranks), 2)),
        peers(static_cast<std::size_t>(nranks)),
        sources(static_cast<std::size_t>(nranks)),
        scales(static_cast<std::size_t>(nranks)),
        channels(static_cast<std::size_t>(between.channels())),
        said_to(static_cast<std::size_t>(nranks) * channels.size()),
        said_from(said_to.size()) {}

  void throw_failure() const;  // of any rank, if there was one

  const int rank, nranks;
  Bootstrap& bootstrap;
  SharedHost* const host;      // or null
  SharedMemory* const memory;  // or null
  Links& links;
  LedgerSlot& seat;
  const bool crowded;  // more ranks than cores: who waits gives its core away at once
  const std::int64_t timeout_ns;
  std::atomic<std::uint64_t> turn{1};  // of the call that may run
  std::uint64_t phase = 0;             // that all calls before it have signalled; of who has the turn
  // Of who has the turn; kept, so that nothing is allocated, and what comes again and again is not written again.
  struct Written {
    Signature call{0, ~std::uint64_t{0}};  // without its number; at first of no call
    Program program;
  };
  std::array<Written, 8> small;  // by a hash of the call
  struct WrittenParcels {
    std::vector<Parcel> parcels;
    Program program;
  };
  WrittenParcels messages;  // of a user's, in one piece
  Program program;          // of a piece of a larger call
  std::vector<void*> targets;
  // Where another rank's buffers are in this process, and its factor.
  struct Peer {
    std::byte *input = nullptr, *output = nullptr;
    ReduceScale scale = {};
  };
  std::vector<Peer> peers;
  std::vector<const void*> sources;
  std::vector<ReduceScale> scales;
  std::vector<std::byte> scratch;
  // One of several of a call by messages, as far as it has come.
  struct Channel {
    Program program;  // of a piece
    std::uint64_t piece = 0, pieces = 0;
    std::size_t step = 0;
    std::uint64_t scratch = 0;  // where its own begins
    bool over() const { return piece == pieces; }
    const Primitive& next() const { return program.steps[step]; }
  };
  std::vector<Channel> channels;
  struct Said {
    std::uint64_t turn = 0;      // of the last call that sent its signature
    std::uint64_t messages = 0;  // of the user's
    std::uint64_t bytes = 0;     // of the last of them
  };
  std::vector<Said> said_to, said_from;  // by channel and rank
  int slow_waits = 0;                    // for a network: so many of the next ones are taken for long, too
  int contended_waits = 0;               // a wait lost the core to other work: so many of the next ones spin longer
  std::atomic<bool> aborted{false};
  const CallHistory* history = nullptr;  // of this rank
  bool in_turns = false;                 // one thread advances all ranks: a waiting rank returns at once
};

// What a rank does in a call: through shared memory, all at once, or by messages.
using CallPlan = std::variant<std::monostate, HostPlan, MessagePlan>;

// This rank's, as the call names them. `hidden`: see SharedMemory::find.
struct CallBuffers {
  std::byte* output = nullptr;
  const std::byte* input = nullptr;
  bool hidden = false;
};

class SharedRun final : public Exchange {
 public:
  explicit SharedRun(SharedCalls& calls) : calls_(calls) {}

  // Of the next call: before prepare().
  CallPlan& plan() { return plan_; }
  // `turn`: of all calls of this rank; `number`: of those that all ranks make.
  void prepare(const Call& call, std::uint64_t turn, std::uint64_t number, const CallBuffers& buffers);

  bool begin() noexcept override;
  bool advance(By thread) noexcept override;
  bool can_advance() noexcept override;
  bool tell(Sleeper& sleeper) noexcept override;
  std::int64_t began_ns() const noexcept override { return began_ns_; }
  void finish(const Failure* cause) override;
  bool failed() const { return error_ != nullptr; }  // of one that is done
  const Signature& signature() const { return signature_; }
  // Tells the ranks of this host and all others why, unless the communicator has failed before.
  void fail(Code code, const std::string& text) const;

  std::vector<Parcel> parcels;  // of a call of messages: for its plan to refer to

  std::atomic<bool> free{true};  // for the next call. release when finished, acquire when taken

 private:
  enum class Wait { kNothing, kTurn, kRoom, kMeet, kPhase, kLinkRoom, kLink, kChannels };
  bool go_on();
  void write_program();
  void write_messages();
  bool run(const Primitive& step);             // within the loop of shared_run.cpp
  bool run_of_channel(const Primitive& step);  // the same as a function
  void copy(const Primitive& step) const;
  void reduce(const Primitive& step) const;
  bool begin_message(const Primitive& step);
  bool await_link(Wait what, const Primitive& step, std::uint64_t value);
  LinkEnd& link_of(const Primitive& step, int channel) const;
  std::uint64_t pieces() const;
  bool await(Wait what, std::uint64_t value, std::uint64_t whom = kEverybody);
  bool yield_until_there(std::uint64_t begun, std::uint64_t limit, bool by_net);
  bool is_there();
  bool in_trouble();
  bool on_link() const {
    return waits_for_ == Wait::kLink || waits_for_ == Wait::kLinkRoom || waits_for_ == Wait::kChannels;
  }
  bool awaits_who_left();
  bool link_awaits_who_left();
  [[noreturn]] void throw_loss() const;
  [[noreturn]] void throw_left(int rank) const;
  Error with_cause(const Error& met) const;
  void look_for_trouble();
  bool come();
  void note_pace();
  void tell_nobody() noexcept;
  void note_wait();
  void compare_with_posted();
  // The first call in which the histories of the two ranks differ; none, if the other gives no answer in time.
  std::optional<std::pair<Signature, Signature>> difference_from(int rank, std::chrono::milliseconds time) const;
  CallMismatch first_mismatch(const CallMismatch& met) const;
  void ask_for_history();
  bool is_missing(int rank) const;
  [[noreturn]] void time_out() const;
  std::byte* at(const Place& place) const;
  void end();
  bool asks() const;
  // Several channels; in channel_run.cpp.
  int channels() const;
  void begin_channels();
  bool run_channels();
  bool run_channel(int channel);
  bool can_run(const Primitive& step, int channel) const;
  bool any_channel_can_run() const;
  void look_at(int channel);
  // For calls that may be done where buffers lie; in direct_run.cpp.
  Offer make_offer(bool hidden) const;
  bool has_posted_the_same(int rank) const;
  bool offers_are_there(const HostPlan& plan) const;
  void choose_path(HostPlan& plan);
  void enter(std::uint64_t phase);
  void require_sound() const;
  void retreat() noexcept;

  SharedCalls& calls_;
  Call call_;
  std::uint64_t turn_ = 0;
  std::uint64_t slot_ = 0;   // the plan's number, if it is a HostPlan
  std::uint64_t shift_ = 0;  // of its places in staging memory, if it is a small call
  std::byte* output_ = nullptr;
  const std::byte* input_ = nullptr;
  Signature signature_;
  Offer offer_;
  CallPlan plan_;
  const Program* program_ = nullptr;
  std::uint64_t piece_ = 0;
  std::size_t step_ = 0;
  bool begun_ = false;
  bool ended_ = false;   // by begin()
  bool patient_ = true;  // looks more than once at what has not come
  By by_ = By::kWorker;  // that lets it go on
  bool noted_ = false;   // the ledger says that it waits
  bool told_ = false;    // a sleeper is told of its links
  Wait waits_for_ = Wait::kNothing;
  std::uint64_t value_ = 0;  // of what it waits for
  std::uint64_t whom_ = 0;
  int channel_ = 0;            // whose step is run
  std::uint64_t scratch_ = 0;  // where its scratch memory begins
  LinkEnd* link_ =
      nullptr;  // kLinkRoom, kLink, kChannels: one of them; then the value is how many messages may be left
  bool link_sends_ = false;
  int next_rank_ = 0;              // the first that it still waits for
  std::uint64_t waits_since_ = 0;  // ticks(), for a network and in vain at first; 0: it does not
  std::int64_t deadline_ns_ = 0;   // of the present wait; 0: it has just begun
  std::int64_t ask_ns_ = 0;        // when it asks the other rank for its calls, and how long after that again
  std::int64_t ask_pause_ns_ = 0;
  std::int64_t began_ns_ = 0;
  std::exception_ptr error_;
};

}  // namespace slip
