// Recovery: after a loss, the remaining ranks of a bootstrap agree on the set of survivors and make a smaller
// communicator. The lowest surviving rank leads a round:
//   1. each rank sends the leader a join message with the losses that it knows of;
//   2. the leader sends all survivors the members and the id of a new root, and each tries to make the communicator;
//   3. each votes, and the leader sends the decision: done, again or failed.
// A rank that is lost meanwhile is left out in the next round. If it was the leader, the next lowest rank leads.
//
// A rank that the others believe to be lost is notified and ends with an error. So does a rank that was itself silent
// for too long and finds no other when it is back. If the network splits the ranks, they go on as two groups, each
// without the other.
//
// A leader that dies while it sends the decision "done" leaves some ranks without it. Those find out whether others
// went on, that is, have left the old communicator by a clean shutdown, and then go on, too. They find the leader's
// loss in the new communicator. If the others keep the old one, they wait until the deadline and end with an error.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "transport/bootstrap/bootstrap.hpp"

namespace slip {

// A rank of a new communicator, and the id at which its ranks meet.
struct Membership {
  UniqueId id;
  int rank = 0, nranks = 1;  // in the new communicator
};

// Starts a root at the address at which the others reach this rank. The id may be sent in clear: instead of a secret it
// has a salt, from which the ranks of this bootstrap derive the secret.
UniqueId make_root(const Bootstrap& bootstrap);
UniqueId with_secret(const Bootstrap& bootstrap, const UniqueId& id);  // of make_root() on some rank

class Recovery {
 public:
  // Makes the new communicator; throws if that fails. The flag is set if a rank is lost meanwhile, and ends every wait.
  using Make = std::function<void(const Membership& group, const std::shared_ptr<AbortFlag>& abort)>;

  // `excluded`: ranks that are left out although they may live. All callers must name the same ranks.
  Recovery(Bootstrap& bootstrap, std::span<const int> excluded);

  // Returns when all remaining ranks have what `make` made last.
  void run(const Make& make);

 private:
  enum class Verdict : std::uint32_t { kRendezvous, kDone, kAgain, kFailed };
  struct Decision;
  struct Votes {
    std::set<int> voters;
    std::string failure;  // the first one
  };
  bool follow(int leader, const Make& make);  // false: try again
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
  void require_not_given_up() const;
  void require_not_left_behind() const;

  Bootstrap& bootstrap_;
  ControlServer& server_;
  const std::set<int> excluded_;
  const std::int64_t deadline_ns_;
  std::uint64_t attempt_ = 0;            // of this rank: joins, votes and decisions carry it
  std::map<int, std::uint64_t> joined_;  // the leader's: the attempt of each rank that has joined
  std::vector<int> members_;             // of the communicator that this round makes
  bool made_ = false;                    // this rank made its part in this round
  std::vector<int> maybe_notified_;      // ranks that may have got "done" from a leader that died
  std::set<int> closed_;                 // ranks that take no connections and were not known to be lost
  std::string mismatch_;                 // the leader's: how the lists of excluded ranks differ
  int failed_rounds_ = 0;                // although no rank was lost
};

}  // namespace slip
