#include "transport/bootstrap/recovery.hpp"

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "transport/bootstrap/frame.hpp"
#include "transport/bootstrap/rendezvous.hpp"

namespace slip::transport {
namespace {

constexpr std::uint64_t kJoinTag = 0x5e1ea7e5, kVerdictTag = kJoinTag + 1, kVoteTag = kJoinTag + 2;
constexpr int kMaxFailedRounds = 3;
// As `known_gone` of next_message(): it is never the number of gone ranks, so next_message() returns at once.
constexpr auto kNoWait = static_cast<std::size_t>(-1);

struct JoinHead {
  std::uint64_t attempt = 0;
  std::uint32_t excluded = 0, lost = 0;  // number of entries that follow: excluded ranks, then LostRank
};

struct LostRank {
  std::int32_t rank = 0, cause = 0, noticed_by = 0;
};

struct VoteHead {
  std::uint64_t attempt = 0;
  std::uint64_t made = 0;  // 0: failed, and the reason follows as text
};

struct VerdictHead {
  std::uint64_t attempt = 0;
  std::uint32_t verdict = 0;
  std::int32_t code = 0;  // for kFailed; the error text follows
};

struct RendezvousBody {  // the members follow, as ranks of the old communicator
  UniqueId id;
  std::int32_t nranks = 0, rank = 0;
};

// Takes a value from the front. False: there are too few bytes.
template <class T>
bool take(std::span<const std::byte>& from, T& value) {
  if (from.size() < sizeof(T)) return false;
  std::memcpy(static_cast<void*>(&value), from.data(), sizeof(T));
  from = from.subspan(sizeof(T));
  return true;
}

std::set<int> checked(std::span<const int> excluded, const Bootstrap& bootstrap) {
  for (const int rank : excluded) {
    if (rank < 0 || rank >= bootstrap.nranks())
      base::fail(ErrorCode::kInvalidValue, {}, "rank {} of {} cannot be left out: ranks are 0 to {}", rank,
                 bootstrap.nranks(), bootstrap.nranks() - 1);
    if (rank == bootstrap.rank())
      base::fail(ErrorCode::kInvalidValue, {},
                 "rank {} leaves itself out of shrink: only the remaining ranks may call it", rank);
  }
  return {excluded.begin(), excluded.end()};
}

std::string text_of_ranks(const std::set<int>& ranks) {
  return ranks.empty() ? "no rank" : rank_list(std::vector<int>(ranks.begin(), ranks.end()));
}

class Recovery {
 public:
  Recovery(Bootstrap& bootstrap, std::span<const int> excluded)
      : bootstrap_(bootstrap),
        server_(bootstrap.server()),
        failures_(bootstrap.failures()),
        excluded_(checked(excluded, bootstrap)),
        deadline_ns_(base::deadline_after(std::chrono::nanoseconds(bootstrap.timeout()).count())) {}

  // Returns when `make` has succeeded on all remaining ranks.
  void run(const MakeCommunicator& make) {
    for (bool done = false; !done;) {
      server_.settle();
      require_not_given_up();
      if (others_went_on()) break;
      require_not_left_behind();
      // The number must increase over all recoveries of this rank, so it is at least the current time.
      attempt_ = std::max(attempt_ + 1, static_cast<std::uint64_t>(base::now_ns()));
      const int leader = candidates().front();
      done = leader == bootstrap_.rank() ? lead(make) : follow(leader, make);
    }
    server_.detector().stop_watching();
  }

 private:
  enum class Verdict : std::uint32_t { kRendezvous, kDone, kAgain, kFailed };
  struct Decision {
    Verdict verdict{};
    ErrorCode code{};
    std::vector<std::byte> body;
  };
  struct Votes {
    std::set<int> voters;
    std::string failure;  // reason of the first failure
  };

  // The remaining ranks, as far as this rank knows, including itself.
  std::vector<int> candidates() const {
    const std::set<int> gone = failures_.gone();
    std::vector<int> result;
    for (int rank = 0; rank < bootstrap_.nranks(); ++rank) {
      if (!gone.contains(rank) && !excluded_.contains(rank)) result.push_back(rank);
    }
    return result;
  }

  void require_not_given_up() const {  // throws if the others have declared this rank lost
    for (const Loss& loss : failures_.losses()) {
      if (loss.rank == bootstrap_.rank())
        base::fail(ErrorCode::kRankLost, {}, "{} was given up by the others: {}", bootstrap_.self().text(),
                   loss.text());
    }
  }

  // If all others are gone when this rank wakes up, they may have continued without this rank and then shut down
  // cleanly.
  void require_not_left_behind() const {  // throws if this rank was silent for too long and all others are gone
    const std::int64_t silence = server_.detector().own_silence_ns();
    const std::size_t others = static_cast<std::size_t>(bootstrap_.nranks()) - 1 - excluded_.size();
    if (silence == 0 || others == 0 || candidates().size() > 1) return;
    base::fail(ErrorCode::kRankLost, {},
               "{} was given up by the others: it sent nothing for {:.1f} s, and now none of them is left; its "
               "process was stopped, or got no CPU time",
               bootstrap_.self().text(), static_cast<double>(silence) / 1e9);
  }

  bool lost_a_member() const {
    const std::set<int> gone = failures_.gone();
    return std::ranges::any_of(members_, [&](int rank) { return gone.contains(rank); });
  }

  // A rank that voted for success and got no decision keeps the old communicator. So a rank that has left it cleanly
  // must have got the decision "done". A killed rank allows no conclusion.
  bool others_went_on() const {
    return std::ranges::any_of(maybe_notified_,
                               [&](int rank) { return closed_.contains(rank) || failures_.has_left(rank); });
  }

  void watch(std::span<const int> ranks) {
    const std::set<int> gone = failures_.gone();
    std::vector<std::pair<int, SocketAddress>> addresses;
    for (const int rank : ranks) addresses.emplace_back(rank, bootstrap_.address(rank));
    server_.detector().watch_all(addresses, deadline_ns_);
    for (const Loss& loss : failures_.losses()) {
      const bool is_watched = std::ranges::find(ranks, loss.rank) != ranks.end();
      if (is_watched && !gone.contains(loss.rank) && loss.cause == Loss::Cause::kEnded) closed_.insert(loss.rank);
    }
  }

  bool try_make(const MakeCommunicator& make, const Membership& group, std::string& failure) {
    maybe_notified_.clear();
    const auto abort = std::make_shared<AbortFlag>();
    failures_.on_loss(abort);
    try {
      // A rank may have been lost before the flag was set up.
      if (lost_a_member()) base::fail(ErrorCode::kRankLost, {}, "a rank was lost meanwhile");
      make(group, abort);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    failures_.on_loss(nullptr);
    if (abort->is_set() && failure.empty()) failure = "a rank was lost meanwhile";  // the new communicator is aborted
    return made_ = failure.empty();
  }

  std::optional<Decision> wait_for_decision(int leader) {
    for (;;) {
      const std::set<int> gone = failures_.gone();
      const std::optional<ReceivedMessage> message = server_.messages().next_message(
          kVerdictTag, gone.contains(leader) ? kNoWait : gone.size(), deadline_ns_ + kNotifyNs);
      require_not_given_up();
      if (message) {
        std::span<const std::byte> rest = message->bytes;
        VerdictHead head;
        // Ignore a malformed decision, or one of an earlier attempt.
        if (message->rank != leader || !take(rest, head) || head.attempt != attempt_) continue;
        return Decision{
            static_cast<Verdict>(head.verdict), static_cast<ErrorCode>(head.code), {rest.begin(), rest.end()}};
      }
      if (gone.contains(leader)) return std::nullopt;
      if (base::now_ns() >= deadline_ns_ + kNotifyNs)
        base::fail(ErrorCode::kTimeout, {},
                   "{}: rank {}, the lowest surviving rank, has not joined shrink before the deadline",
                   bootstrap_.self().text(), leader);
    }
  }

  bool follow(int leader, const MakeCommunicator& make) {  // false: start another round
    watch(std::span(&leader, 1));
    if (failures_.gone().contains(leader)) {
      // If one rank is cut off from the network, more ranks may be. Watching all candidates at once finds them within
      // one timeout. In other cases, a follower needs no connections to the other followers.
      if (was_silent(leader)) watch_candidates();
      return false;
    }
    std::vector<std::byte> join;
    const std::vector<Loss> losses = failures_.losses();
    append(join, bytes_of(JoinHead{attempt_, static_cast<std::uint32_t>(excluded_.size()),
                                   static_cast<std::uint32_t>(losses.size())}));
    for (const std::int32_t rank : excluded_) append(join, bytes_of(rank));
    for (const Loss& loss : losses)
      append(join, bytes_of(LostRank{loss.rank, static_cast<std::int32_t>(loss.cause), loss.noticed_by}));
    if (!server_.messages().post(leader, kJoinTag, join)) return false;
    std::optional<Decision> decision = wait_for_decision(leader);
    if (decision && decision->verdict == Verdict::kRendezvous) {
      RendezvousBody body;
      std::span<const std::byte> rest = decision->body;
      if (!take(rest, body))
        base::fail(ErrorCode::kIo, {}, "rank {} sent {} bytes as the id of the new root: at least {} are needed",
                   leader, decision->body.size(), sizeof(body));
      members_.clear();
      for (std::int32_t rank = 0; take(rest, rank);) members_.push_back(rank);
      std::string failure;
      std::vector<std::byte> vote;
      append(vote, bytes_of(VoteHead{
                       attempt_,
                       try_make(make, {with_secret(bootstrap_, body.id), body.rank, body.nranks}, failure) ? 1U : 0U}));
      append(vote, bytes_of(std::string_view(failure)));
      server_.messages().post(leader, kVoteTag, vote);
      decision = wait_for_decision(leader);
      if (!decision && made_) {
        maybe_notified_ = members_;
        std::erase_if(maybe_notified_, [&](int rank) { return rank == leader || rank == bootstrap_.rank(); });
      }
    }
    if (decision && decision->verdict == Verdict::kFailed) throw Error(decision->code, text_of(decision->body), {});
    return decision && decision->verdict == Verdict::kDone && made_;
  }

  void take_join(const ReceivedMessage& message) {
    std::span<const std::byte> rest = message.bytes;
    JoinHead head;
    if (!take(rest, head) || rest.size() != head.excluded * sizeof(std::int32_t) + head.lost * sizeof(LostRank)) return;
    if (excluded_.contains(message.rank)) return refuse_excluded(message.rank, head.attempt);
    joined_[message.rank] = std::max(joined_[message.rank], head.attempt);
    std::set<int> excluded;
    for (std::int32_t rank = 0; excluded.size() < head.excluded && take(rest, rank);) excluded.insert(rank);
    for (LostRank lost; take(rest, lost);)
      failures_.report_loss({lost.rank, static_cast<Loss::Cause>(lost.cause), lost.noticed_by});
    if (excluded != excluded_ && mismatch_.empty())
      mismatch_ = fmt::format("rank {} leaves out {} in shrink, rank {} {}: all must name the same", bootstrap_.rank(),
                              text_of_ranks(excluded_), message.rank, text_of_ranks(excluded));
  }

  std::vector<int> not_joined() const {
    std::vector<int> result = candidates();
    std::erase_if(result, [&](int rank) { return rank == bootstrap_.rank() || joined_.contains(rank); });
    return result;
  }

  bool was_silent(int rank) const {
    return std::ranges::any_of(
        failures_.losses(), [&](const Loss& loss) { return loss.rank == rank && loss.cause == Loss::Cause::kSilent; });
  }

  void watch_candidates() {
    std::vector<int> others = candidates();
    std::erase(others, bootstrap_.rank());
    watch(others);
  }

  void collect_joins() {
    joined_.clear();
    mismatch_.clear();
    watch_candidates();
    for (;;) {
      const std::size_t gone = failures_.gone().size();
      const std::vector<int> missing = not_joined();
      if (missing.empty() && !mismatch_.empty())
        fail_all(ErrorCode::kMismatch, mismatch_);  // only after all have joined, so that all ranks get the error
      if (missing.empty()) return;
      if (const auto message = server_.messages().next_message(kJoinTag, gone, deadline_ns_)) {
        take_join(*message);
      } else if (base::now_ns() >= deadline_ns_) {
        fail_all(ErrorCode::kTimeout,
                 fmt::format("{} of {} {} not joined shrink before the deadline of rank {}", rank_list(missing),
                             bootstrap_.nranks(), missing.size() == 1 ? "has" : "have", bootstrap_.rank()));
      }
      require_not_given_up();
    }
  }

  // Sends a decision to a rank. If the rank is lost meanwhile, it needs none.
  void decide(int rank, std::uint64_t attempt, Verdict verdict, std::span<const std::byte> body,
              ErrorCode code = ErrorCode::kOk) {
    std::vector<std::byte> bytes;
    append(bytes, bytes_of(VerdictHead{attempt, static_cast<std::uint32_t>(verdict), static_cast<std::int32_t>(code)}));
    append(bytes, body);
    server_.messages().post(rank, kVerdictTag, bytes);
  }

  [[noreturn]] void fail_all(ErrorCode code, const std::string& text) {
    for (const auto& [rank, attempt] : joined_)
      decide(rank, attempt, Verdict::kFailed, bytes_of(std::string_view(text)), code);
    throw Error(code, text, {});
  }

  void refuse_excluded(int rank, std::uint64_t attempt) {
    const std::string text =
        fmt::format("rank {} of {} calls shrink, but the others leave it out", rank, bootstrap_.nranks());
    const std::pair<int, SocketAddress> one(rank, bootstrap_.address(rank));
    server_.detector().watch_all({&one, 1}, deadline_ns_);
    decide(rank, attempt, Verdict::kFailed, bytes_of(std::string_view(text)), ErrorCode::kInvalidValue);
  }

  // The other members that are not gone and have not voted.
  std::vector<int> without_vote(const Votes& votes, const std::set<int>& gone) const {
    std::vector<int> result = members_;
    std::erase_if(result, [&](int rank) {
      return rank == bootstrap_.rank() || votes.voters.contains(rank) || gone.contains(rank);
    });
    return result;
  }

  Votes collect_votes() {
    Votes votes;
    for (;;) {
      const std::set<int> gone = failures_.gone();
      if (without_vote(votes, gone).empty()) return votes;
      const auto message = server_.messages().next_message(kVoteTag, gone.size(), deadline_ns_ + kNotifyNs);
      require_not_given_up();
      if (!message && base::now_ns() >= deadline_ns_ + kNotifyNs)
        fail_all(ErrorCode::kTimeout, fmt::format("shrink: {} did not report the new communicator before the deadline",
                                                  rank_list(without_vote(votes, gone))));
      if (!message) continue;
      std::span<const std::byte> rest = message->bytes;
      VoteHead head;
      if (!take(rest, head) || !joined_.contains(message->rank) || joined_[message->rank] != head.attempt) continue;
      votes.voters.insert(message->rank);
      if (head.made == 0 && votes.failure.empty())
        votes.failure = fmt::format("rank {}: {}", message->rank, text_of(rest));
    }
  }

  bool lead(const MakeCommunicator& make) {
    collect_joins();
    if (others_went_on()) {
      for (const auto& [rank, attempt] : joined_) decide(rank, attempt, Verdict::kDone, {});
      return true;
    }
    members_ = candidates();  // all of them have joined; a lost rank never becomes a candidate again
    RendezvousBody body{make_root(bootstrap_), static_cast<std::int32_t>(members_.size()), 0};
    for (; body.rank < body.nranks; ++body.rank) {
      const int rank = members_[static_cast<std::size_t>(body.rank)];
      std::vector<std::byte> bytes;
      append(bytes, bytes_of(body));
      for (const std::int32_t member : members_) append(bytes, bytes_of(member));
      if (rank != bootstrap_.rank()) decide(rank, joined_[rank], Verdict::kRendezvous, bytes);
    }
    std::string failure;
    // The leader is the lowest of the old ranks, so it becomes rank 0.
    try_make(make, {with_secret(bootstrap_, body.id), 0, body.nranks}, failure);
    const Votes votes = collect_votes();
    if (failure.empty()) failure = votes.failure;
    const bool lost = lost_a_member();
    const bool done = failure.empty() && !lost;
    if (!done && !lost && ++failed_rounds_ >= kMaxFailedRounds) fail_all(ErrorCode::kIo, "shrink failed: " + failure);
    for (const auto& [rank, attempt] : joined_) decide(rank, attempt, done ? Verdict::kDone : Verdict::kAgain, {});
    return done;
  }

  Bootstrap& bootstrap_;
  ControlServer& server_;
  FailureTable& failures_;
  const std::set<int> excluded_;
  const std::int64_t deadline_ns_;
  std::uint64_t attempt_ = 0;            // number of the round, in this rank's joins and votes and in the answers
  std::map<int, std::uint64_t> joined_;  // leader only: the attempt of each rank that has joined
  std::vector<int> members_;             // ranks of the communicator that this round makes
  bool made_ = false;                    // the last `make` on this rank succeeded, in this round or an earlier one
  std::vector<int> maybe_notified_;      // ranks that may have got "done" from a leader that died
  std::set<int> closed_;                 // ranks that watch() found closed and that were not known to be lost
  std::string mismatch_;                 // leader only: how the lists of excluded ranks differ
  int failed_rounds_ = 0;                // rounds that failed although no rank was lost
};

}  // namespace

UniqueId make_root(const Bootstrap& bootstrap) {
  const Secret salt = random_secret();
  const SocketAddress address = bootstrap.address(bootstrap.rank()).with_port(0);
  Socket listener = Socket::listen(address);
  const UniqueId id = UniqueIdParts{address.host(), listener.local().port(), salt, false}.id();
  start_root(std::move(listener), UniqueIdParts::of(with_secret(bootstrap, id)).secret,
             base::deadline_after(std::chrono::nanoseconds(bootstrap.timeout()).count()));
  return id;
}

UniqueId with_secret(const Bootstrap& bootstrap, const UniqueId& id) {
  UniqueIdParts parts = UniqueIdParts::of(id);
  parts.secret = bootstrap.derive("slip part", parts.secret);
  return parts.id();
}

void recover(Bootstrap& bootstrap, std::span<const int> excluded, const MakeCommunicator& make) {
  Recovery(bootstrap, excluded).run(make);
}

}  // namespace slip::transport
