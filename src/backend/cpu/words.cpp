// Pool, as far as lanes wait for what no lane does: words that others write, and other ranks.
#include <algorithm>

#include "backend/cpu/pack.hpp"
#include "backend/cpu/pool.hpp"

namespace slip {

// Parks the lane until its word changes, or what its exchange waits for. These are polled by the searcher and by who
// waits.
void Pool::park_on_word(Lane& lane, PackedOp& op) {
  const bool told = op.kind == OpKind::kExchange && op.exchange->tell(*this);  // before anybody else can have the lane
  {
    const std::lock_guard lock(words_lock_);
    lane.told = told;
    if (!told) untold_count_.fetch_add(1, std::memory_order_seq_cst);  // see only_told()
    lane.parked_on.store(nullptr, std::memory_order_relaxed);
    lane.state.store(LaneState::kParked, std::memory_order_release);
    words_.push_back(&lane);
    words_count_.fetch_add(1, std::memory_order_seq_cst);
  }
  if (told) wake_up();  // what came before it was asked for was not told: somebody looks once
  if (search_.load(std::memory_order_seq_cst) == Search::kNone) wake_one();
  else if (!told && trusts_.load(std::memory_order_seq_cst)) wake_napper();
}

void Pool::wake_up() noexcept {
  const std::lock_guard lock(sleep_mutex_);
  told_ = true;
  if (napping_) napping_->parker.unpark();
}

// False: another thread is at it.
bool Pool::poll_words(Runner* self) {
  if (!self || !words_lock_.try_lock()) return false;
  std::vector<Lane*> ready;
  std::erase_if(words_, [&](Lane* lane) {
    if (!can_go_on(lane->at(lane->head))) return false;
    ready.push_back(lane);
    if (!lane->told) untold_count_.fetch_sub(1, std::memory_order_relaxed);
    return true;
  });
  words_count_.fetch_sub(static_cast<int>(ready.size()), std::memory_order_relaxed);
  words_lock_.unlock();
  for (Lane* lane : ready) make_ready(*self, *lane);
  return true;
}

// Whether a nap may be long: somebody tells of every word, and no thread keeps a queue that may have to be shared. Who
// parks another lane counts it, and a worker that keeps a queue says so before each op; then they look whether the
// napping thread trusts. Here it is said first and then looked, so that one of the two sees the other; against the
// worker with the dear one of two fences, as in search().
bool Pool::only_told() {
  if (words_count_.load(std::memory_order_relaxed) == 0) return false;
  trusts_.store(true, std::memory_order_seq_cst);
  full_fence();
  if (active_.load(std::memory_order_relaxed) > 0) heavy_fence();
  const std::lock_guard lock(sleep_mutex_);
  const bool others = untold_count_.load(std::memory_order_seq_cst) > 0 ||
                      std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) {
                        return worker->runner.local_count.load(std::memory_order_relaxed) > 0;
                      });
  if (others) trusts_.store(false, std::memory_order_relaxed);
  return !others;
}

}  // namespace slip
