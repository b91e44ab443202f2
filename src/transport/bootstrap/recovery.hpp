// Recovery: the ranks of a bootstrap that are left after a loss agree on who they are and make something new together,
// a smaller communicator. The lowest of them leads: each tells it whom it knows to be lost, it tells all who goes on
// and where they meet, each tries, and when all have succeeded it tells that, too. Whoever is lost meanwhile is left
// out in the next round; if it was the one who led, the next one leads.
//
// A rank that is believed to be lost is told so and ends with an error; so does one that was itself silent for too long
// and finds nobody when it is back. Ranks that are cut off from each other by the
// network go on as two groups, each without the other.
//
// A leader that dies just while it tells the success leaves some ranks without it: those look whether others went on,
// that is, have left what is old in peace, and then go on, too. The leader's loss is met in what is new. If the others
// keep what is old, they wait until the deadline, and end with an error.
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

// Ranks that meet at an id, to be a communicator of their own.
struct Membership {
  UniqueId id;
  int rank = 0, nranks = 1;  // in the new one
};

// A root at the address where this rank is reached by the others. The id may travel in clear: in the place of its
// secret it has a salt, from which the ranks of this bootstrap find the secret.
UniqueId make_root(const Bootstrap& bootstrap);
UniqueId with_secret(const Bootstrap& bootstrap, const UniqueId& id);  // of make_root() on some rank

class Recovery {
 public:
  // Makes what is new; throws if that fails. The flag is set when somebody is lost meanwhile, and ends every wait.
  using Make = std::function<void(const Membership& group, const std::shared_ptr<AbortFlag>& abort)>;

  // `excluded`: ranks that are left out although they may live; all who call must name the same.
  Recovery(Bootstrap& bootstrap, std::span<const int> excluded);

  // Returns when what `make` made last is that of all ranks that are left.
  void run(const Make& make);

 private:
  enum class Verdict : std::uint32_t { kMeet, kDone, kAgain, kFailed };
  struct Told;
  struct Votes {
    std::set<int> who;
    std::string failure;  // the first one
  };
  bool follow(int leader, const Make& make);  // false: once more
  bool lead(const Make& make);
  bool try_make(const Make& make, const Membership& group, std::string& failure);
  std::optional<Told> hear(int leader);
  bool was_silent(int rank) const;
  void watch(std::span<const int> ranks);
  void watch_candidates();
  void collect_joins();
  void take_join(const Message& message);
  Votes collect_votes();
  void tell(int rank, std::uint64_t turn, Verdict verdict, std::span<const std::byte> body, Code code = Code::kOk);
  void tell_left_out(int rank, std::uint64_t turn);
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
  std::uint64_t turn_ = 0;               // of this rank: what it says and is told belongs to one turn
  std::map<int, std::uint64_t> joined_;  // of who leads: the turn of each rank that has come
  std::vector<int> members_;             // who meets in this round
  bool made_ = false;                    // what was made last stands
  std::vector<int> unsure_of_;           // others that may have been told the success of what this rank made
  std::set<int> closed_;                 // ranks that take no connections any more, and were not known to be lost
  std::string mismatch_;                 // of who leads: lists that differ
  int fruitless_ = 0;                    // rounds that failed although nobody was lost
};

}  // namespace slip
