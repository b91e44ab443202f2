#include "watch/race/deadlock.hpp"

#include <algorithm>

namespace slip {
namespace {

// Lets everything run that can; what is left waits for something that is left, too.
class Run {
 public:
  explicit Run(const std::vector<Waits>& ops) : ops_(ops), left_(ops.size()), ended_(ops.size()), waiters_(ops.size()) {
    for (std::uint32_t op = 0; op < ops.size(); ++op) {
      left_[op] = static_cast<std::uint32_t>(ops[op].all.size()) + (ops[op].any.empty() ? 0 : 1);
      for (const std::uint32_t other : ops[op].all) waiters_[other].push_back({op, false});
      for (const std::uint32_t other : ops[op].any) waiters_[other].push_back({op, true});
      if (left_[op] == 0) end(op);
    }
    while (!ready_.empty()) {
      const std::uint32_t op = ready_.back();
      ready_.pop_back();
      for (const Waiter& waiter : waiters_[op]) release(waiter);
    }
  }
  bool ended(std::uint32_t op) const { return ended_[op]; }

 private:
  struct Waiter {
    std::uint32_t op;
    bool any;
  };
  void end(std::uint32_t op) {
    ended_[op] = true;
    ready_.push_back(op);
  }
  void release(const Waiter& waiter) {
    if (ended_[waiter.op]) return;
    if (waiter.any) {
      if (let_go_.size() <= waiter.op) let_go_.resize(ops_.size());
      if (let_go_[waiter.op]) return;
      let_go_[waiter.op] = true;
    }
    if (--left_[waiter.op] == 0) end(waiter.op);
  }

  const std::vector<Waits>& ops_;
  std::vector<std::uint32_t> left_;
  std::vector<bool> ended_, let_go_;
  std::vector<std::vector<Waiter>> waiters_;
  std::vector<std::uint32_t> ready_;
};

}  // namespace

std::vector<std::uint32_t> find_circle(const std::vector<Waits>& ops) {
  const Run run(ops);
  const auto first_left = [&](const std::vector<std::uint32_t>& list) {
    return std::find_if(list.begin(), list.end(), [&](std::uint32_t op) { return !run.ended(op); });
  };
  std::uint32_t op = 0;
  while (op < ops.size() && run.ended(op)) ++op;
  if (op == ops.size()) return {};
  // What is left waits for something that is left: walking on must come back.
  std::vector<std::uint32_t> way;
  std::vector<bool> seen(ops.size());
  while (!seen[op]) {
    seen[op] = true;
    way.push_back(op);
    const auto next = first_left(ops[op].all);
    op = next != ops[op].all.end() ? *next : *first_left(ops[op].any);
  }
  way.erase(way.begin(), std::find(way.begin(), way.end(), op));
  return way;
}

}  // namespace slip
