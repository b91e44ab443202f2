#include "comm/sim/sim_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/error_text.hpp"
#include "base/sync.hpp"
#include "base/terminal.hpp"
#include "runtime/core.hpp"

namespace slip {

// --- a call ---

void SimRun::prepare(std::uint64_t turn, SimCall call) {
  turn_ = turn;
  call_ = std::move(call);
  come_ = moved_ = begun_ = false;
  unmatched_ = call_.letters.size();
  ways_.clear();
  deadline_ns_ = 0;
  trouble_.reset();
}

bool SimRun::advance(By) noexcept {
  try {
    if (!come_) {
      if (ranks_.seat(rank_).turn < turn_) return false;  // an earlier call of this rank is under way
      ranks_.come(*this);
    }
    while (ranks_.move()) continue;
    if (!begun_ && !failed()) ranks_.try_begin(*this);
    if (!begun_ && moved_ && !failed()) look_for_trouble();
    if (!over()) return false;
    while (!moved_) {  // a network may be slower than virtual time; the run has a deadline of its own
      if (!ranks_.move()) yield_thread();
    }
  } catch (const Error& error) {
    trouble_ = error;
  } catch (const std::exception& error) {
    trouble_.emplace(Code::kLaunchFailed, error.what(), Here{});
  }
  return true;
}

bool SimRun::concerns(int rank) const {
  const auto same = [&](const SimCall::Letter& letter) { return letter.rank == rank; };
  return rank != rank_ && (!is_message() || std::any_of(call_.letters.begin(), call_.letters.end(), same));
}

// As long as its bytes are not there the run does it. A root's may be there before all have come.
void SimRun::look_for_trouble() {
  if (calls_.aborted.load(std::memory_order_relaxed))  // relaxed: nothing else is passed with it
    throw Error(Code::kAborted, fmt::format("rank {}: aborted", rank_), {});
  calls_.throw_failure();
  if (deadline_ns_ == 0) deadline_ns_ = now_ns() + calls_.timeout_ns;
  std::string missing;
  for (int rank = 0; rank < calls_.nranks; ++rank) {
    const SimRun* const other = ranks_.seat(rank).here;
    if (!concerns(rank) || (!is_message() && other && !other->begun_)) continue;
    missing += fmt::format("{}rank {}", missing.empty() ? "" : ", ", rank);
    if (calls_.bootstrap.has_left(rank))
      throw Error(Code::kRankLost, fmt::format("rank {} has left the communicator; rank {} waits for it", rank, rank_),
                  {});
  }
  if (calls_.bootstrap.broken() || now_ns() > deadline_ns_)
    throw Error(calls_.bootstrap.broken() ? Code::kRankLost : Code::kTimeout,
                fmt::format("rank {} waited {:.1f} s for {} to come to the same call", rank_,
                            static_cast<double>(calls_.timeout_ns) / 1e9, missing),
                {});
}

bool SimRun::can_advance() noexcept { return come_ ? over() : ranks_.seat(rank_).turn >= turn_; }

bool SimRun::over() const {
  if (failed()) return true;
  if (!begun_) return false;
  if (!is_message()) return ranks_.wires_->played(rank_);
  return std::all_of(ways_.begin(), ways_.end(),
                     [&](const Way& way) { return ranks_.wires_->carried(way.from, way.to, way.number); });
}

// The run may be another call's as soon as it is finished.
void SimRun::finish(const Failure* cause) {
  ranks_.leave(*this);
  if (!trouble_) return run_.finish(cause);
  const Error error = *trouble_;
  const Failure own{.code = error.code(), .text = error.what(), .position = 0, .here = {}};
  run_.finish(cause ? cause : &own);  // the other ranks are told
  if (!cause) throw error;
}

// --- the ranks ---

SimRanks::SimRanks(Manner manner) : manner_(std::move(manner)), seats_(static_cast<std::size_t>(manner_.site.nranks)) {}

// One makes it, and the others find it where that one says.
std::shared_ptr<SimRanks> SimRanks::meet(Bootstrap& bootstrap, const Device& device, Manner manner, Here here) {
  const std::vector<std::uint64_t> worlds = bootstrap.all_gather(device.info().world);
  const std::vector<Placement>& places = bootstrap.placements();
  if (std::all_of(worlds.begin(), worlds.end(), [](std::uint64_t world) { return world == 0; })) return nullptr;
  for (std::size_t rank = 1; rank < worlds.size(); ++rank) {
    if (worlds[rank] == worlds[0] && same_process(places[rank], places[0])) continue;
    throw Error(Code::kUnsupported,
                fmt::format("ranks 0 and {} do not share a virtual time: open their devices together, with "
                            "Device::open_all, in one process",
                            rank),
                here);
  }
  std::shared_ptr<SimRanks> ranks;
  if (bootstrap.rank() == 0) ranks = std::make_shared<SimRanks>(std::move(manner));
  const std::vector<std::uint64_t> at = bootstrap.all_gather(std::uint64_t{reinterpret_cast<std::uintptr_t>(&ranks)});
  if (bootstrap.rank() != 0) ranks = *reinterpret_cast<const std::shared_ptr<SimRanks>*>(at[0]);
  ranks->seat(bootstrap.rank()).device = device;
  bootstrap.barrier();
  if (bootstrap.rank() == 0) ranks->begin();
  bootstrap.barrier();
  return ranks;
}

void SimRanks::begin() {
  std::vector<Device> devices;
  for (const Seat& one : seats_) devices.push_back(*one.device);
  wires_.emplace(std::move(devices));
  if (seats_.size() > 1) manner_.site.rates = wires_->measure();
}

void SimRanks::come(SimRun& run) {
  run.come_ = true;
  seat(run.rank_).here = &run;
  if (run.is_message()) post_letters(run);
}

void SimRanks::leave(SimRun& run) {
  Seat& own = seat(run.rank_);
  if (own.here == &run) own.here = nullptr;
  own.turn = std::max(own.turn, run.turn_ + 1);
  if (run.unmatched_ == 0) return;
  for (auto* const all : {&out_, &in_}) {  // it failed: nobody will find it there
    for (auto& [ranks, letters] : *all)
      std::erase_if(letters, [&](const Letters::value_type& one) { return one.first == &run; });
  }
}

bool SimRanks::move() {
  bool any = false;
  for (Seat& one : seats_) {
    SimRun* const run = one.here;
    if (!run || run->moved_ || !run->run_.can_advance()) continue;
    run->moved_ = run->run_.advance(Exchange::By::kWorker);
    any = true;
  }
  return any;
}

void SimRanks::try_begin(SimRun& run) {
  if (run.is_message()) return;  // match() does
  const auto waits = [](const Seat& one) { return one.here && !one.here->is_message() && !one.here->begun_; };
  if (std::all_of(seats_.begin(), seats_.end(), waits)) begin_collective();
}

// All ranks are here, so all are compared, whomever the call waits for.
bool SimRanks::ask_for_the_same() {
  const Signature& first = seats_.front().here->run_.signature();
  const auto other =
      std::find_if(seats_.begin(), seats_.end(), [&](const Seat& one) { return one.here->run_.signature() != first; });
  if (other == seats_.end()) return true;
  const CallMismatch mismatch(0, first, static_cast<int>(other - seats_.begin()), other->here->run_.signature());
  for (Seat& one : seats_) {
    one.here->run_.fail(mismatch.code(), bare_text(mismatch));
    one.here->trouble_ = mismatch;
  }
  return false;
}

void SimRanks::begin_collective() {
  if (!ask_for_the_same()) return;
  const auto moved = [](const Seat& one) { return one.here->moved_; };
  while (!std::all_of(seats_.begin(), seats_.end(), moved)) {  // they wait for nobody but each other
    if (!move()) yield_thread();
  }
  if (std::any_of(seats_.begin(), seats_.end(), [](const Seat& one) { return one.here->failed(); })) return;
  const Call& call = seats_.front().here->call_.call;
  std::vector<SimWires::Memory> memory;
  for (const Seat& one : seats_) memory.push_back(one.here->call_.memory);
  try {
    wires_->play(call, choice_of(call), manner_.formations, memory);
  } catch (const Error& error) {  // nobody is left waiting
    for (Seat& one : seats_) one.here->trouble_ = error;
  }
  for (Seat& one : seats_) one.here->begun_ = true;
}

Choice SimRanks::choice_of(const Call& call) {
  const bool explain = env().debugs("tune");
  Choice choice = choose(call, manner_.site, manner_.algorithm, manner_.rank_order, explain);
  if (explain && explained_.insert(choice.text).second) log_line("in virtual time: " + choice.text);
  return choice;
}

void SimRanks::post_letters(SimRun& run) {
  for (const SimCall::Letter& letter : run.call_.letters) {
    const int from = letter.out ? run.rank_ : letter.rank, to = letter.out ? letter.rank : run.rank_;
    (letter.out ? out_ : in_)[{from, to}].emplace_back(&run, letter.range);
    match(from, to);
  }
}

// The first that was sent is the first that is received. If their sizes differ the runs find it, before this counts.
void SimRanks::match(int from, int to) {
  Letters &sent = out_[{from, to}], &received = in_[{from, to}];
  while (!sent.empty() && !received.empty()) {
    const auto [sender, out] = sent.front();
    const auto [receiver, in] = received.front();
    const std::uint64_t number = wires_->carry(from, to, out, in);
    for (SimRun* run : {sender, receiver}) {
      run->ways_.push_back({from, to, number});
      run->begun_ = --run->unmatched_ == 0;
    }
    sent.pop_front();
    received.pop_front();
  }
}

}  // namespace slip
