#include "comm/sim/sim_ranks.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/terminal.hpp"
#include "base/wait.hpp"
#include "runtime/backend.hpp"
#include "runtime/core.hpp"

namespace slip::comm {
namespace {

constexpr std::size_t kScratchBytes = std::numeric_limits<std::size_t>::max() / 2;  // more than any program uses

void submit(runtime::StreamState& stream, const Op& op) { stream.core->backend->submit(stream, op); }

}  // namespace

// --- SimWires ---

SimWires::Flags::Flags(std::size_t count)
    : values_(new std::uint32_t[count]{}),
      block_(runtime::take_block(nullptr, MemoryKind::kPinned, values_.get(), count * sizeof(std::uint32_t), {})) {}

SimWires::Flags::~Flags() { runtime::drop_block(block_); }

Range SimWires::Flags::range() const { return {block_, block_->id.load(std::memory_order_relaxed), 0, block_->bytes}; }

// relaxed: the thread that drives the sim world has written it, and the same thread calls this.
std::uint32_t SimWires::Flags::value() const { return __atomic_load_n(&values_[0], __ATOMIC_RELAXED); }

SimWires::SimWires(std::vector<Device> devices)
    : devices_(std::move(devices)), player_(*this, nranks(), WireKind::kPipelined) {
  for (const Device& device : devices_) {
    cores_.push_back(device.legacy_stream().state()->core);
    scratch_.push_back(runtime::take_block(cores_.back(), MemoryKind::kDevice, nullptr, kScratchBytes, {}));
  }
}

SimWires::~SimWires() {
  for (runtime::StreamState* stream : streams_) {
    stream->core->backend->wait(stream, runtime::kEverything, 0);
    stream->core->backend->close_stream(*stream);
  }
  for (runtime::Block* block : scratch_) runtime::drop_block(block);
}

Range SimWires::scratch_of(int rank, std::size_t bytes) const {
  runtime::Block* const block = scratch_[static_cast<std::size_t>(rank)];
  return {block, block->id.load(std::memory_order_relaxed), 0, bytes};
}

void SimWires::play(const Call& call, const ScheduleChoice& how, std::span<const CommGraph> graphs,
                    std::span<const RankBuffers> buffers) {
  Program program;
  if (nranks() == 1) {  // schedules are for two ranks or more
    channels_ = 1;
    if (buffers[0].input.bytes > 0 && !buffers[0].in_place)
      program.copy({BufferSpace::kOutput, 0, 0}, {BufferSpace::kInput, 0, 0}, buffers[0].input.bytes);
    return play(program, buffers, 0, 0);
  }
  channels_ = how.channels;
  for (int rank = 0; rank < nranks(); ++rank) {
    const bool in_place = buffers[static_cast<std::size_t>(rank)].in_place;
    const MessageProgramBuilder builder(*how.schedule, {call, rank, nranks(), in_place, how.chunk_bytes},
                                        graphs.first(static_cast<std::size_t>(how.channels)));
    for (int channel = 0; channel < channels_; ++channel) {
      program.clear();
      for (std::uint64_t piece = 0; piece < builder.pieces(channel); ++piece) builder.write(channel, piece, program);
      play(program, buffers, rank, channel);
    }
  }
  player_.deliver();
}

void SimWires::play(const Program& program, std::span<const RankBuffers> buffers, int rank, int channel) {
  Track& own = tracks_[{rank, channel}];
  if (!own.done) {
    own.done = std::make_unique<Flags>(1);
    own.stream = open_stream(rank);
  }
  player_.play({.program = &program,
                .rank = rank,
                .track = channel,
                .buffers = buffers,
                .scratch = scratch_of(rank, kScratchBytes)},
               own.stream);
  write_flag(own.stream, own.done->range(), ++own.played);
}

bool SimWires::played(int rank) const {
  for (int channel = 0; channel < channels_; ++channel) {
    const Track& one = tracks_.at({rank, channel});
    if (one.done->value() < one.played) return false;
  }
  return true;
}

// --- SimWires as the OpSink of its player ---

OpSink::StreamId SimWires::open_stream(int rank) {
  runtime::DeviceCore& core = *cores_[static_cast<std::size_t>(rank)];
  runtime::StreamState* const stream = core.backend->open_stream({.flags = StreamFlags::kNonBlocking, .wire = true});
  stream->core = &core;
  stream->failure.clear();
  streams_.push_back(stream);
  return streams_.size() - 1;
}

void SimWires::write_flag(StreamId stream, const Range& flag, std::uint64_t value) {
  submit(*streams_[stream], {.kind = OpKind::kWriteValue,
                             .value = static_cast<std::uint32_t>(value),
                             .writes = std::span<const Range>(&flag, 1)});
}

void SimWires::wait_flag(StreamId stream, const Range& flag, std::uint64_t value) {
  submit(*streams_[stream], {.kind = OpKind::kWaitValue,
                             .value = static_cast<std::uint32_t>(value),
                             .reads = std::span<const Range>(&flag, 1)});
}

// A message without bytes is copied as one byte, so that it takes the latency of the link, too.
void SimWires::copy(StreamId stream, const Range& to, const Range& from) {
  Range target = to, source = from;
  target.bytes = source.bytes = std::max<std::size_t>(from.bytes, 1);
  submit(*streams_[stream], {.kind = OpKind::kCopy,
                             .reads = std::span<const Range>(&source, 1),
                             .writes = std::span<const Range>(&target, 1)});
}

// The channels of a rank share the bandwidth of its memory, so each op costs as many times its bytes.
void SimWires::launch(StreamId stream, const Kernel& kernel, const Operands&, const Cost& cost) {
  submit(*streams_[stream], {.kind = OpKind::kKernel,
                             .kernel = &kernel,
                             .cost = {.bytes = cost.bytes * static_cast<std::uint64_t>(channels_)}});
}

LinkRates SimWires::measure() {
  constexpr std::size_t kSmall = 64, kLarge = std::size_t{1} << 20;
  std::array<runtime::Stamp*, 3> marks{};
  for (const int from : {1, 0}) {  // the copies of rank 0 are measured, so those of rank 1 are submitted before
    const StreamId stream = player_.wire_stream(from, 1 - from, 0);
    const auto mark = [&](std::size_t index) {
      if (from != 0) return;
      marks[index] = new runtime::Stamp;
      submit(*streams_[stream], {.kind = OpKind::kRecord, .event = marks[index]});
    };
    const auto send = [&](std::size_t bytes) { copy(stream, scratch_of(1 - from, bytes), scratch_of(from, bytes)); };
    mark(0);
    send(kSmall);
    mark(1);
    send(kLarge);
    mark(2);
  }
  runtime::StreamState& last = *streams_[player_.wire_stream(0, 1, 0)];
  last.core->backend->wait(&last, runtime::kEverything, 0);
  const auto us = [&](std::size_t from, std::size_t to) {
    return static_cast<double>(marks[to]->since(*marks[from])) / 1e6;
  };
  LinkRates rates{.latency_us = us(0, 1), .gbps = 0, .message_us = 0};
  rates.gbps = static_cast<double>(kLarge) / (std::max(us(1, 2) - rates.latency_us, 1e-3) * 1e3);
  // Ranks 0 and 1 are mostly of one machine.
  rates.host_latency_us = rates.latency_us;
  rates.host_gbps = rates.gbps;
  for (runtime::Stamp* stamp : marks) stamp->release();
  return rates;
}

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
  return rank != rank_ && (!is_message() || std::ranges::any_of(call_.messages, same));
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
  return std::ranges::all_of(transfers_, [&](const Transfer& transfer) {
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
  if (std::ranges::all_of(worlds, [](std::uint64_t world) { return world == 0; })) return nullptr;
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
  if (std::ranges::all_of(slots_, waits)) begin_collective();
}

// Compares the calls of all ranks, even of those that the CallRun does not wait for: all ranks have joined.
bool SimRanks::ask_for_the_same() {
  const Signature& first = slots_.front().here->run_.signature();
  const auto differs = [&](const RankSlot& one) { return one.here->run_.signature() != first; };
  const auto other = std::ranges::find_if(slots_, differs);
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
  for (base::Backoff backoff(base::kYieldWait); !std::ranges::all_of(slots_, moved);) {
    if (!move()) backoff.pause();
  }
  if (std::ranges::any_of(slots_, [](const RankSlot& one) { return one.here->failed(); })) return;
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
