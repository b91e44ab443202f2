// Switchboard: the connections of one rank and the thread that serves them. Every rank is joined to its successor and
// its predecessor in a ring; what concerns all goes round it, and each thread passes it on whatever its rank is doing.
// So a gathering knows exactly who has not come. Messages for one rank have a connection of their own, made when the
// first is sent.
//
// Who is gone is noticed by the neighbours, by a connection that closed without a farewell or that was silent for
// too long, and is told round the ring both ways. The first loss ends every wait on every rank; so does a failure that
// a rank tells the others.
//
// All functions are thread-safe. Callers wait on a condition under the mutex; only the thread reads from connections
// and closes them; whoever has something to send tries to send it at once and leaves the rest to the thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/thread.hpp"
#include "slip/error.hpp"
#include "transport/bootstrap/frame_socket.hpp"
#include "transport/bootstrap/witness.hpp"
#include "transport/socket/abort_flag.hpp"

namespace slip {

struct Loss {
  enum class Cause : std::int32_t {
    kEnded,    // its connection closed: the process ended or was killed
    kSilent,   // no sign of life: stopped, or cut off
    kAborted,  // it said that it gives up
  };
  int rank = 0;
  Cause cause = Cause::kEnded;
  int noticed_by = 0;
  std::string text() const;
  Code code() const { return cause == Cause::kAborted ? Code::kAborted : Code::kRankLost; }
};

// What a rank says of its end; all others get to know it. Of several at once the lowest rank's counts.
struct RankFailure {
  int rank = 0;
  Code code = Code::kOk;
  std::string text;
};

struct Heartbeat {
  std::chrono::milliseconds interval{1000};
  std::chrono::milliseconds silence{4000};  // then the neighbour is lost
};

class Switchboard {
 public:
  struct Self {
    int rank = 0, nranks = 1;
    Secret session{};
  };
  Switchboard(const Self& self, Socket listener, std::shared_ptr<AbortFlag> abort, const Heartbeat& heartbeat);
  ~Switchboard();  // says farewell to all, and waits a moment for what was sent to be taken
  Switchboard(const Switchboard&) = delete;
  Switchboard& operator=(const Switchboard&) = delete;

  void join_ring(FrameSocket to_successor, std::int64_t deadline_ns);  // returns when the predecessor has come, too
  // Every rank gives the bytes at its place of the table, and gets those of all others.
  // Ranks that are in different calls throw kMismatch, which names two of them.
  void gather(std::span<std::byte> table, std::size_t bytes_per_rank, const SetupCall& call);
  void send(int rank, std::uint64_t tag, std::span<const std::byte> bytes, const SocketAddress& to,
            std::int64_t deadline_ns);
  std::vector<std::byte> recv(int rank, std::uint64_t tag, std::int64_t deadline_ns);

  // What other ranks' witnesses say, by rank; who gives no answer before the deadline is left out. Throws nothing.
  std::map<int, std::vector<std::byte>> ask(std::span<const std::pair<int, SocketAddress>> ranks,
                                            std::int64_t deadline_ns);
  void set_witness(std::shared_ptr<Witness> witness);

  // Tells all others why this rank failed, unless something broke before. Does not wait.
  void fail(Code code, std::string_view text);
  std::optional<RankFailure> failure() const;
  bool has_left(int rank) const;                                                                  // in peace
  bool somebody_left() const noexcept { return somebody_left_.load(std::memory_order_acquire); }  // acquire: has_left()

  // acquire: who sees it finds the loss or the failure itself.
  bool broken() const noexcept { return broken_.is_set(); }
  const AbortFlag& broken_flag() const { return broken_; }  // for waits that are to end then
  void throw_if_broken() const;
  std::vector<Loss> losses() const;  // the first one first

  // For ranks that agree on how to go on after a loss, see recovery.hpp; these end only when this rank aborts.
  std::set<int> gone() const;      // ranks that are lost or have left
  void mention(const Loss& loss);  // that another has noticed
  // Returns when all that had come before is taken: a rank that was stopped and runs again asks others before it has
  // read what they said of it.
  void settle();
  // The longest time that this rank gave no sign of life, if that is so long that others gave it up; else 0.
  std::int64_t own_silence_ns() const;
  // Has the rank asked for signs of life from now on: it is lost when it gives none. False: it is gone.
  bool watch(int rank, const SocketAddress& at, std::int64_t deadline_ns);
  void watch_all(std::span<const std::pair<int, SocketAddress>> ranks, std::int64_t deadline_ns);
  // To a rank that is watched; does not wait until it is taken. False: it is gone.
  bool post(int rank, std::uint64_t tag, std::span<const std::byte> bytes);
  struct Letter {
    int rank = 0;
    std::vector<std::byte> bytes;
  };
  // The next message of the tag from anybody; none at the deadline, or when `known` is not how many are gone.
  std::optional<Letter> next_letter(std::uint64_t tag, std::size_t known, std::int64_t deadline_ns);
  void on_loss(std::shared_ptr<AbortFlag> set);  // the flag is set at the next loss; null: no more
  // The flag is set when one of `ranks` is lost or fails, also if that has happened already.
  void on_trouble(std::shared_ptr<AbortFlag> set, std::set<int> ranks);
  void watch_no_longer();

 private:
  // A message may come on a connection of its own just behind the news that its sender left.
  static constexpr std::int64_t kAfterLeavingNs = 1'000'000'000;
  enum class Role { kUnknown, kSuccessor, kPredecessor, kDirectIn, kDirectOut };
  struct Link {
    FrameSocket channel;
    Role role;
    int rank;               // -1: not known yet
    std::int64_t heard_ns;  // the last sign of life; of an unknown one when it connected
    short ready = 0;        // what poll said
    bool closing = false;   // no more is expected of it: close it once all is sent
    bool watched = false;   // asked for signs of life
    bool in_ring() const { return role == Role::kSuccessor || role == Role::kPredecessor; }
    bool must_be_heard() const { return in_ring() || watched; }
  };

  int successor() const { return (self_.rank + 1) % self_.nranks; }
  int predecessor() const { return (self_.rank + self_.nranks - 1) % self_.nranks; }

  // The caller's side. `ready` is asked under the mutex; false: the deadline passed.
  template <class Ready>
  bool wait_until(std::unique_lock<std::mutex>& lock, std::int64_t deadline_ns, const Ready& ready);
  void require_whole() const;
  void require_not_aborted() const;
  bool is_lost(int rank) const;
  std::set<int> gone_at(std::int64_t now, std::int64_t& next_ns) const;
  Link* outgoing(int rank);
  void connect_to(std::unique_lock<std::mutex>& lock, int rank, const SocketAddress& to, std::int64_t deadline_ns);
  // Without waiting for the other's proof.
  void begin_to_connect(std::unique_lock<std::mutex>& lock, int rank, const SocketAddress& to,
                        std::int64_t deadline_ns);
  void add_outgoing(FrameSocket channel, int rank);
  void drop_a_guest();
  std::vector<int> missing(std::uint64_t round) const;
  std::optional<int> in_another_call(std::uint64_t round, SetupKind call) const;
  std::string other_tags(int rank) const;  // that wait for being asked
  std::string name() const;

  // The thread's side, under the mutex but for the waiting.
  void live();
  void wait_for_something();
  void turn();
  void note_suspension(std::int64_t now);
  void note_own_silence(std::int64_t now);
  void accept_all(std::int64_t now);
  void serve(Link& link, std::int64_t now);
  void handle(Link& link, Frame& frame);
  void handle_greeting(Link& link, const Frame& frame);
  void handle_left(Link& link, const Frame& frame);
  void handle_lost(const Frame& frame);
  void pass_on(const FrameHeader& header, std::span<const std::byte> body);
  void tell(Link& link, const Loss& loss);
  void note_loss(const Loss& loss);
  void tell(Link& link, const RankFailure& failure);
  void note_failure(RankFailure failure);
  void answer(Link& link, const Frame& frame);
  void look(std::int64_t now);
  void beat(std::int64_t now);
  void take_last_words(Link& link);
  void close_links(std::int64_t now);
  void begin_farewell(std::int64_t now);
  bool farewell_over(std::int64_t now) const;
  bool owes_reason(std::int64_t now);
  void note_trouble(int rank);

  const Self self_;
  const std::shared_ptr<AbortFlag> abort_;
  const std::int64_t interval_ns_, silence_ns_;
  WakeUp wake_up_;
  AbortFlag broken_;
  std::atomic<bool> somebody_left_{false};
  Thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // All of these under mutex_.
  Socket listener_;
  std::list<Link> links_;
  bool predecessor_came_ = false, joined_ = false;
  std::vector<Frame> for_successor_;  // came from the predecessor before the successor was joined
  std::map<std::pair<int, std::uint64_t>, std::deque<std::vector<std::byte>>> mail_;  // by rank and tag
  struct Piece {
    SetupKind call{};
    std::vector<std::byte> bytes;
  };
  std::map<std::pair<std::uint64_t, int>, Piece> pieces_;  // by gathering and rank
  std::uint64_t rounds_ = 0;                               // gatherings begun
  std::map<int, std::int64_t> left_;                       // rank, and when it was told
  std::set<int> undelivered_;                              // left with messages for them still here
  std::vector<Loss> losses_;
  std::optional<RankFailure> told_;  // why a rank failed
  std::shared_ptr<Witness> witness_;
  std::map<std::pair<int, std::uint64_t>, std::vector<std::byte>> answers_;  // by rank and question; expected ones
  std::uint64_t questions_ = 0;
  std::shared_ptr<AbortFlag> at_loss_;     // is set; may be null
  std::shared_ptr<AbortFlag> at_trouble_;  // is set when one of these ranks is lost or fails; may be null
  std::set<int> trouble_of_;
  std::string failure_;  // of the thread itself
  bool leaving_ = false;
  std::uint64_t turns_ = 0;
  std::int64_t own_silence_ns_ = 0;

  // The thread's own.
  std::int64_t next_beat_ns_ = 0, next_look_ns_ = 0, planned_ns_ = 0, farewell_end_ns_ = 0, reason_end_ns_ = 0;
  bool abort_noted_ = false, crowded_ = false;
};

}  // namespace slip
