// Recovery: after a loss, the remaining ranks of a bootstrap agree on the set of survivors and make a smaller
// communicator. The lowest surviving rank leads a round:
//   1. each rank sends the leader a join message with the losses that it knows of;
//   2. the leader sends all survivors the members and the id of a new root, and each tries to make the communicator;
//   3. each votes, and the leader sends the decision: done, again or failed.
// A rank that is lost meanwhile is left out in the next round. If it was the leader, the next lowest rank leads.
//
// A rank that the others believe to be lost is notified and ends with an error. So does a rank that was itself silent
// for too long and then finds that all others are gone. If the network splits the ranks into two groups, each group
// continues without the other.
//
// If the leader dies while it sends the decision "done", some ranks do not get it. These ranks check whether another
// rank got it, that is, whether it has left the old communicator by a clean shutdown. If so, they continue with the new
// communicator, too, and detect the leader's loss there. If no rank that got the decision leaves the old communicator,
// these ranks wait until the deadline and end with an error.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "transport/bootstrap/bootstrap.hpp"

namespace slip::transport {

// A rank of a new communicator, and the id of the root where its ranks find each other.
struct Membership {
  UniqueId id;
  int rank = 0, nranks = 1;  // in the new communicator
};

// Starts a root at the address at which the others reach this rank. The id may be sent unencrypted: instead of a secret
// it contains a salt, from which the ranks of this bootstrap derive the secret.
UniqueId make_root(const Bootstrap& bootstrap);
UniqueId with_secret(const Bootstrap& bootstrap, const UniqueId& id);  // `id`: from make_root() on any rank

class Recovery {
 public:
  // Makes the new communicator; throws if that fails. If a rank is lost meanwhile, `abort` is set and must end every
  // wait.
  using Make = std::function<void(const Membership& group, const std::shared_ptr<AbortFlag>& abort)>;

  // `excluded`: ranks that are left out although they may be alive. All callers must pass the same ranks.
  Recovery(Bootstrap& bootstrap, std::span<const int> excluded);

  // Returns when `make` has succeeded on all remaining ranks.
  void run(const Make& make);

 private:
  enum class Verdict : std::uint32_t { kRendezvous, kDone, kAgain, kFailed };
  struct Decision;
  struct Votes {
    std::set<int> voters;
    std::string failure;  // reason of the first failure
  };
  bool follow(int leader, const Make& make);  // false: start another round
  bool lead(const Make& make);
  bool try_make(const Make& make, const Membership& group, std::string& failure);
  std::optional<Decision> wait_for_decision(int leader);
  bool was_silent(int rank) const;
  void watch(std::span<const int> ranks);
  void watch_candidates();
  void collect_joins();
  void take_join(const Message& message);
  Votes collect_votes();
  void decide(int rank, std::uint64_t attempt, Verdict verdict, std::span<const std::byte> body, Code code = Code::kOk);
  void refuse_excluded(int rank, std::uint64_t attempt);
  [[noreturn]] void fail_all(Code code, const std::string& text);
  std::vector<int> candidates() const;
  std::vector<int> not_joined() const;
  bool lost_a_member() const;
  bool others_went_on() const;
  void require_not_given_up() const;     // throws if the others have declared this rank lost
  void require_not_left_behind() const;  // throws if this rank was silent for too long and all others are gone

  Bootstrap& bootstrap_;
  ControlServer& server_;
  FailureTable& failures_;
  const std::set<int> excluded_;
  const std::int64_t deadline_ns_;
  std::uint64_t attempt_ = 0;            // number of this rank's attempt: its joins, votes and decisions carry it
  std::map<int, std::uint64_t> joined_;  // leader only: the attempt of each rank that has joined
  std::vector<int> members_;             // ranks of the communicator that this round makes
  bool made_ = false;                    // `make` succeeded on this rank in this round
  std::vector<int> maybe_notified_;      // ranks that may have got "done" from a leader that died
  std::set<int> closed_;                 // ranks that refuse connections and were not known to be lost
  std::string mismatch_;                 // leader only: how the lists of excluded ranks differ
  int failed_rounds_ = 0;                // rounds that failed although no rank was lost
};

}  // namespace slip::transport
