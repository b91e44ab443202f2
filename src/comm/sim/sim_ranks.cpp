#include "comm/sim/sim_ranks.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/terminal.hpp"
#include "base/wait.hpp"
#include "runtime/core.hpp"

namespace slip::comm {

// --- SimRun ---

void SimRun::prepare(std::uint64_t ticket, SimCall call) {
  ticket_ = ticket;
  call_ = std::move(call);
  joined_ = moved_ = begun_ = false;
  unmatched_ = call_.messages.size();
  transfers_.clear();
  deadline_ns_ = 0;
  trouble_.reset();
}

bool SimRun::advance(By) noexcept {
  try {
    if (!joined_) {
      if (ranks_.slot(rank_).ticket < ticket_) return false;  // an earlier call of this rank is under way
      ranks_.join(*this);
    }
    while (ranks_.move()) continue;
    if (!begun_ && !failed()) ranks_.try_begin(*this);
    if (!begun_ && moved_ && !failed()) check_peers();
    if (!over()) return false;
    // A network may be slower than virtual time; the CallRun enforces its own deadline.
    for (base::Backoff backoff(base::kYieldWait); !moved_;) {
      if (!ranks_.move()) backoff.pause();
    }
  } catch (const Error& error) {
    trouble_ = error;
  } catch (const std::exception& error) {
    trouble_.emplace(ErrorCode::kLaunchFailed, error.what(), Here{});
  }
  return true;
}

bool SimRun::concerns(int rank) const {
  const auto same = [&](const SimCall::Message& message) { return message.rank == rank; };
  return rank != rank_ && (!is_message() || std::any_of(call_.messages.begin(), call_.messages.end(), same));
}

// Throws if peers cannot join any more. Until the bytes have moved, the CallRun checks this. Afterwards this function
// does: the bytes may move before all ranks have joined, for example those of a broadcast's root.
void SimRun::check_peers() {
  if (calls_.aborted.load(std::memory_order_relaxed))  // relaxed: no other data is published with it
    base::fail(ErrorCode::kAborted, {}, "rank {}: aborted", rank_);
  calls_.throw_failure();
  if (deadline_ns_ == 0) deadline_ns_ = base::now_ns() + calls_.timeout_ns;
  std::string missing;
  for (int rank = 0; rank < calls_.nranks; ++rank) {
    const SimRun* const other = ranks_.slot(rank).here;
    if (!concerns(rank) || (!is_message() && other && !other->begun_)) continue;
    missing += fmt::format("{}rank {}", missing.empty() ? "" : ", ", rank);
    if (calls_.bootstrap.failures().has_left(rank))
      base::fail(ErrorCode::kRankLost, {}, "rank {} has left the communicator; rank {} waits for it", rank, rank_);
  }
  if (calls_.bootstrap.broken() || base::now_ns() > deadline_ns_)
    base::fail(calls_.bootstrap.broken() ? ErrorCode::kRankLost : ErrorCode::kTimeout, {},
               "rank {} waited {:.1f} s for {} to come to the same call", rank_,
               static_cast<double>(calls_.timeout_ns) / 1e9, missing);
}

bool SimRun::can_advance() noexcept { return joined_ ? over() : ranks_.slot(rank_).ticket >= ticket_; }

bool SimRun::over() const {
  if (failed()) return true;
  if (!begun_) return false;
  if (!is_message()) return ranks_.wires_->played(rank_);
  return std::all_of(transfers_.begin(), transfers_.end(), [&](const Transfer& transfer) {
    return ranks_.wires_->carried(transfer.from, transfer.to, transfer.number);
  });
}

// The CallRun is finished last: another call may use it from then on.
void SimRun::finish(const runtime::Failure* cause) {
  ranks_.leave(*this);
  if (!trouble_) return run_.finish(cause);
  const Error error = *trouble_;
  const runtime::Failure own{.code = error.code(), .text = error.what(), .position = 0, .here = {}};
  run_.finish(cause ? cause : &own);  // notifies the other ranks
  if (!cause) throw error;
}

// --- SimRanks ---

SimRanks::SimRanks(Settings settings)
    : settings_(std::move(settings)), slots_(static_cast<std::size_t>(settings_.tuning.nranks)) {}

// Rank 0 makes the object; the other ranks get its address, because all are in one process. The bootstrap's messages
// order the ranks in time, but the C++ memory model does not know these messages. So `order_` makes the writes visible:
// a rank adds to it before a barrier (release: the rank's earlier writes) and reads it afterwards (acquire: the earlier
// writes of all ranks).
std::shared_ptr<SimRanks> SimRanks::meet(transport::Bootstrap& bootstrap, const Device& device, Settings settings,
                                         Here here) {
  const std::vector<std::uint64_t> worlds = bootstrap.all_gather(device.info().world);
  const std::vector<transport::Placement>& places = bootstrap.placements();
  if (std::all_of(worlds.begin(), worlds.end(), [](std::uint64_t world) { return world == 0; })) return nullptr;
  for (std::size_t rank = 1; rank < worlds.size(); ++rank) {
    if (worlds[rank] == worlds[0] && transport::same_process(places[rank], places[0])) continue;
    base::fail(ErrorCode::kUnsupported, here,
               "ranks 0 and {} do not share a virtual time: open their devices together, with "
               "Device::open_all, in one process",
               rank);
  }
  std::shared_ptr<SimRanks> ranks;
  if (bootstrap.rank() == 0) ranks = std::make_shared<SimRanks>(std::move(settings));
  std::atomic<const std::shared_ptr<SimRanks>*> own = nullptr;
  own.store(&ranks, std::memory_order_release);  // release: with the object, if this is rank 0
  const std::vector<std::uint64_t> at = bootstrap.all_gather(std::uint64_t{reinterpret_cast<std::uintptr_t>(&own)});
  // acquire: with the object that rank 0 made
  if (bootstrap.rank() != 0) ranks = *reinterpret_cast<decltype(own)*>(at[0])->load(std::memory_order_acquire);
  const auto barrier = [&] {
    ranks->order_.fetch_add(1, std::memory_order_acq_rel);
    bootstrap.barrier();
    static_cast<void>(ranks->order_.load(std::memory_order_acquire));
  };
  ranks->slot(bootstrap.rank()).device = device;
  barrier();
  if (bootstrap.rank() == 0) ranks->begin();
  barrier();
  return ranks;
}

void SimRanks::begin() {
  std::vector<Device> devices;
  for (const RankSlot& one : slots_) devices.push_back(*one.device);
  wires_.emplace(std::move(devices));
  if (slots_.size() > 1) settings_.tuning.rates = wires_->measure();
}

void SimRanks::leave(SimRun& run) {
  RankSlot& own = slot(run.rank_);
  if (own.here == &run) own.here = nullptr;
  own.ticket = std::max(own.ticket, run.ticket_ + 1);
  if (run.unmatched_ == 0) return;
  for (auto* const all : {&out_, &in_}) {  // the call failed: no peer may match its messages
    for (auto& [ranks, messages] : *all)
      std::erase_if(messages, [&](const PendingMessages::value_type& one) { return one.first == &run; });
  }
}

bool SimRanks::move() {
  bool any = false;
  for (RankSlot& one : slots_) {
    SimRun* const run = one.here;
    if (!run || run->moved_ || !run->run_.can_advance()) continue;
    run->moved_ = run->run_.advance(runtime::Exchange::By::kWorker);
    any = true;
  }
  return any;
}

void SimRanks::try_begin(SimRun& run) {
  if (run.is_message()) return;  // match() begins it
  const auto waits = [](const RankSlot& one) { return one.here && !one.here->is_message() && !one.here->begun_; };
  if (std::all_of(slots_.begin(), slots_.end(), waits)) begin_collective();
}

// Compares the calls of all ranks, even of those that the CallRun does not wait for: all ranks have joined.
bool SimRanks::ask_for_the_same() {
  const Signature& first = slots_.front().here->run_.signature();
  const auto other = std::find_if(slots_.begin(), slots_.end(),
                                  [&](const RankSlot& one) { return one.here->run_.signature() != first; });
  if (other == slots_.end()) return true;
  const CallMismatch mismatch(0, first, static_cast<int>(other - slots_.begin()), other->here->run_.signature());
  for (RankSlot& one : slots_) {
    one.here->run_.fail(mismatch.code(), base::bare_text(mismatch));
    one.here->trouble_ = mismatch;
  }
  return false;
}

void SimRanks::begin_collective() {
  if (!ask_for_the_same()) return;
  const auto moved = [](const RankSlot& one) { return one.here->moved_; };
  // Ends, because the calls wait only for each other.
  for (base::Backoff backoff(base::kYieldWait); !std::all_of(slots_.begin(), slots_.end(), moved);) {
    if (!move()) backoff.pause();
  }
  if (std::any_of(slots_.begin(), slots_.end(), [](const RankSlot& one) { return one.here->failed(); })) return;
  const Call& call = slots_.front().here->call_.call;
  std::vector<RankBuffers> memory;
  for (const RankSlot& one : slots_) memory.push_back(one.here->call_.memory);
  try {
    wires_->play(call, choice_of(call), settings_.graphs, memory);
  } catch (const Error& error) {  // no rank is left waiting
    for (RankSlot& one : slots_) one.here->trouble_ = error;
  }
  for (RankSlot& one : slots_) one.here->begun_ = true;
}

ScheduleChoice SimRanks::choice_of(const Call& call) {
  const bool explain = base::debugs("tune");
  ScheduleChoice choice = choose(call, settings_.tuning, settings_.algorithm, settings_.rank_order, explain);
  if (explain && explained_.insert(choice.text).second) base::log_line("in virtual time: " + choice.text);
  return choice;
}

void SimRanks::post_messages(SimRun& run) {
  for (const SimCall::Message& message : run.call_.messages) {
    const int from = message.out ? run.rank_ : message.rank, to = message.out ? message.rank : run.rank_;
    (message.out ? out_ : in_)[{from, to}].emplace_back(&run, message.range);
    match(from, to);
  }
}

// Messages match in order. If their sizes differ, the CallRuns report the mismatch, so this function need not check.
void SimRanks::match(int from, int to) {
  PendingMessages &sent = out_[{from, to}], &received = in_[{from, to}];
  while (!sent.empty() && !received.empty()) {
    const auto [sender, out] = sent.front();
    const auto [receiver, in] = received.front();
    const std::uint64_t number = wires_->carry(from, to, out, in);
    for (SimRun* run : {sender, receiver}) {
      run->transfers_.push_back({from, to, number});
      run->begun_ = --run->unmatched_ == 0;
    }
    sent.pop_front();
    received.pop_front();
  }
}

}  // namespace slip::comm
