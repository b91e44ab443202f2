// A rank whose staged calls need no GPU: the thread of the test plays the stream. It copies between vectors ("device
// memory") and the slots, and sets and awaits the flags, in the order of the steps. The thread that runs the parts is
// the real one, and the ranks are threads that count as on different hosts.
#pragma once

#include <atomic>
#include <cstring>

#include "base/clock.hpp"
#include "comm/staged/staged_thread.hpp"
#include "cpu_ranks.hpp"
#include "support/ranks.hpp"

namespace slip::test {

inline constexpr std::int64_t kStreamDeadlineNs = 120'000'000'000;

// A rank whose stream is the thread of the test.
class StagedRank {
 public:
  StagedRank(const UniqueId& id, int nranks, int rank, const CommunicatorOptions& options)
      : ranks({id, rank, nranks}, Device::open("cpu", {.compute_workers = 1}), options, {}, nullptr, -1),
        calls_{ranks.bootstrap,
               ranks.host ? &*ranks.host : nullptr,
               nullptr,
               *ranks.links,
               *ranks.ledger_slot,
               true,
               ranks.timeout_ns(),
               &ranks.monitor->history} {
    storage_.resize(comm::StagingMemory::kBytes + 4096);
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    memory_.data = storage_.data() + (4096 - address % 4096);
    comm::StagedThread::Setup setup;
    setup.memory = memory_;
    setup.error = [this] { return error(); };
    setup.fail = [this](ErrorCode code, const std::string& text) { ranks.bootstrap.failures().fail(code, text); };
    setup.fail_streams = [this](const Error& error) {
      ++failed_;
      if (cannot_fail) throw Error(ErrorCode::kDeviceFault, "the GPU is lost", {});
      failure_.emplace(error);
      // release: a stream that is released later finds the failure
      has_failure_.store(true, std::memory_order_release);
    };
    setup.ranks = &ranks;
    setup.calls = &calls_;
    thread_.start(std::move(setup));
  }
  ~StagedRank() { thread_.stop(); }

  // `later`: not 0: the id that the stream posts with all parts but the first.
  void collective(const comm::Call& call, const std::byte* input, std::byte* output,
                  comm::StagedThread::Use use = comm::StagedThread::Use::kOnce, std::uint32_t later = 0) {
    const comm::StagedCollective staged(call, ranks.bootstrap.rank(), ranks.bootstrap.nranks());
    std::vector<comm::StagedStep> steps;
    write_steps(staged, input, output, steps);
    play(thread_.add(staged, use), steps, later);
  }
  void messages(std::span<const comm::UserMessage> list, comm::StagedThread::Use use = comm::StagedThread::Use::kOnce) {
    comm::StagedMessages staged(list, ranks.bootstrap.nranks());
    std::vector<comm::StagedStep> steps;
    write_steps(staged, list, steps);
    play(thread_.add(std::move(staged), use), steps);
  }
  void post_first_part(const comm::Call& call) {
    const std::uint32_t id = add(call, comm::StagedThread::Use::kOnce);
    __atomic_store_n(&memory_.flags(0).posted, id, __ATOMIC_RELEASE);
  }
  // Waits until the communicator has failed, and throws its error.
  void await_error() const {
    const std::int64_t deadline = base::now_ns() + kStreamDeadlineNs;
    for (base::Backoff backoff; base::now_ns() < deadline; backoff.pause())
      if (const std::optional<Error> failed = error()) throw Error(*failed);
  }
  std::uint32_t add(const comm::Call& call, comm::StagedThread::Use use) {
    return thread_.add(comm::StagedCollective(call, ranks.bootstrap.rank(), ranks.bootstrap.nranks()), use);
  }

  // Only after stop().
  int times_failed() const { return failed_; }
  void stop() { thread_.stop(); }
  // Waits for a slot without a call, as a stream that was enqueued before the failure and goes on after it.
  void await_slot(std::uint64_t slot) { await(memory_.flags(slot).done); }

  comm::RankConnections ranks;
  bool cannot_fail = false;  // set before the first call: the streams cannot be failed

 private:
  std::optional<Error> error() const {
    try {
      calls_.throw_failure();
      if (ranks.bootstrap.broken()) ranks.bootstrap.failures().throw_if_broken();
    } catch (const Error& error) {
      return error;
    }
    return std::nullopt;
  }

  void play(std::uint32_t id, std::span<const comm::StagedStep> steps, std::uint32_t later = 0) {
    for (const comm::StagedStep& step : steps) {
      comm::StagingFlags& flags = memory_.flags(step.slot);
      switch (step.kind) {
        case comm::StagedStep::Kind::kPost:
          __atomic_store_n(&flags.posted, id, __ATOMIC_RELEASE);
          if (later != 0) id = later;
          break;
        case comm::StagedStep::Kind::kAwait: await(flags.done); break;
        case comm::StagedStep::Kind::kToHost:
        case comm::StagedStep::Kind::kToDevice: copy(step); break;
      }
    }
  }
  void await(std::uint32_t& done) {
    const std::int64_t deadline = base::now_ns() + kStreamDeadlineNs;
    for (base::Backoff backoff; __atomic_load_n(&done, __ATOMIC_ACQUIRE) != 1; backoff.pause())
      if (base::now_ns() > deadline) throw Error(ErrorCode::kTimeout, "the stream was not released", {});
    __atomic_store_n(&done, 0, __ATOMIC_RELEASE);
    // As a stream: it has no error but that of fail_streams. acquire: pairs with the store there.
    if (has_failure_.load(std::memory_order_acquire)) throw Error(*failure_);
  }
  void copy(const comm::StagedStep& step) const {
    const comm::StagingSlot slot = memory_.slot(step.slot);
    const bool to_host = step.kind == comm::StagedStep::Kind::kToHost;
    std::byte* host = (to_host || step.from_input ? slot.input : slot.output) + step.copy.slot_offset;
    std::byte* device = step.copy.device;
    for (std::uint64_t row = 0; row < step.copy.rows; ++row) {
      std::memcpy(to_host ? host : device, to_host ? device : host, step.copy.bytes);
      host += step.copy.bytes;
      device += step.copy.pitch;
    }
  }

  comm::CallContext calls_;
  Bytes storage_;
  comm::StagingMemory memory_;
  comm::StagedThread thread_;
  int failed_ = 0;
  std::optional<Error> failure_;
  std::atomic<bool> has_failure_{false};
};

struct StagedPlaces {
  int nranks;
  int hosts;
};

inline CommunicatorOptions staged_options(int rank, int hosts) {
  CommunicatorOptions options;
  options.deterministic = true;  // bits as of adding in rank order
  options.timeout = std::chrono::seconds(60);
  options.host = "host" + std::to_string(rank % hosts);
  return options;
}

inline std::vector<Met> with_staged(const StagedPlaces& where, const std::function<void(StagedRank&, int)>& body) {
  const UniqueId id = local_id();
  return as_ranks(where.nranks, [&](int rank) {
    StagedRank one(id, where.nranks, rank, staged_options(rank, where.hosts));
    body(one, rank);
  });
}

}  // namespace slip::test
