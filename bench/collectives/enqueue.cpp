// The cost of a stream in a small collective: the time of all_reduce and sync, minus the time of the same call when the
// ranks' own threads run its steps, without a stream, a device or a communicator.
#include <sched.h>

#include <array>
#include <barrier>
#include <memory>
#include <stdexcept>
#include <thread>

#include "bars.hpp"
#include "base/thread.hpp"
#include "comm/host/call_run.hpp"
#include "slip/communicator.hpp"

namespace slip::bench {
namespace {

constexpr int kRanks = 2;
constexpr std::size_t kBlocks = 10, kWarmup = 200;

// Calls of one rank without a stream.
class Direct {
 public:
  Direct(const UniqueId& id, int rank)
      : bootstrap_(id, kRanks, rank),
        host_(bootstrap_, {0, 1}),
        memory_(bootstrap_, true),
        links_(bootstrap_, &host_, transport::NetOptions{}, kTimeoutNs),
        ledger_slot_({bootstrap_.id(), rank, kRanks, "direct"}),
        calls_{bootstrap_, &host_, &memory_, links_, ledger_slot_, base::core_set().count() < kRanks, kTimeoutNs},
        run_(calls_) {}

  void all_reduce(float* to, const float* from, std::uint64_t elements) {
    const comm::Call call{.kind = comm::Collective::kAllReduce, .type = DataType::kF32, .elements = elements};
    run_.plan().emplace<comm::HostProgramBuilder>(call, next_, 0, calls_.rank, kRanks);
    run_.prepare(call, next_, next_, reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from));
    ++next_;
    if (!run_.begin()) {
      while (!run_.advance(runtime::Exchange::By::kWaiter)) {}
    }
    run_.finish(nullptr);
  }

 private:
  static constexpr std::int64_t kTimeoutNs = 60'000'000'000;
  transport::Bootstrap bootstrap_;
  comm::SharedHost host_;
  comm::SharedMemory memory_;
  comm::Links links_;
  transport::LedgerSlot ledger_slot_;
  comm::CallContext calls_;
  comm::CallRun run_;
  std::uint64_t next_ = 1;  // number and ticket of the next call
};

// Nanoseconds of one call, by block, measured by rank 0 only, because calls keep the ranks in step.
struct Times {
  std::vector<double> streamed, direct;
};

template <class Call>
double timed(std::barrier<>& together, std::size_t calls, const Call& call) {
  together.arrive_and_wait();
  for (std::size_t i = 0; i < kWarmup; ++i) call();
  const Timer timer;
  for (std::size_t i = 0; i < calls; ++i) call();
  return timer.elapsed_ns() / static_cast<double>(calls);
}

// Pins all threads of a rank to a core of its own, as bench/peers does.
void stay_on_own_core(int rank) {
  const base::CoreSet cores = base::core_set();
  if (cores.count() < kRanks) return;
  int left = rank;
  for (std::size_t core = 0; core < cores.size(); ++core) {
    if (!cores.test(core) || left-- > 0) continue;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(core, &only);
    sched_setaffinity(0, sizeof(only), &only);
    return;
  }
}

void run_rank(int rank, const std::array<UniqueId, 2>& ids, std::size_t calls, std::barrier<>& together, Times& times) {
  constexpr std::size_t kElements = 2;
  stay_on_own_core(rank);
  const Device device = Device::open("cpu", {.compute_workers = 1});
  Communicator comm = Communicator::init(ids[0], kRanks, rank, device);
  const Stream stream = device.stream();
  Direct direct(ids[1], rank);
  Buffer from = device.alloc(kElements * sizeof(float), MemoryKind::kPinned),
         to = device.alloc(from.bytes(), MemoryKind::kPinned);
  for (float& value : from.host_write<float>()) value = static_cast<float>(rank + 1);
  std::array<float, kElements> input{static_cast<float>(rank + 1), static_cast<float>(rank + 1)}, output{};
  for (std::size_t block = 0; block < kBlocks; ++block) {
    times.streamed.push_back(timed(together, calls, [&] {
      comm.all_reduce(to, from, DataType::kF32, ReduceOp::kSum, stream);
      stream.sync();
    }));
    times.direct.push_back(timed(together, calls, [&] { direct.all_reduce(output.data(), input.data(), kElements); }));
  }
  constexpr float kSum = 1 + 2;
  for (std::size_t i = 0; i < kElements; ++i) {
    if (output[i] != kSum || to.host_read<float>()[i] != kSum) throw std::runtime_error("an all_reduce came out wrong");
  }
}

std::optional<double> extra_ns(Context& context) {
  const std::array<UniqueId, 2> ids{UniqueId::create({.host = "127.0.0.1"}), UniqueId::create({.host = "127.0.0.1"})};
  std::barrier<> together(kRanks);
  const std::size_t calls = context.iterations(10'000);
  std::array<Times, kRanks> times;
  std::array<std::exception_ptr, kRanks> errors;
  {
    std::array<std::jthread, kRanks> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads[static_cast<std::size_t>(rank)] = std::jthread([&, rank] {
        const auto own = static_cast<std::size_t>(rank);
        try {
          run_rank(rank, ids, calls, together, times[own]);
        } catch (...) {
          errors[own] = std::current_exception();
          together.arrive_and_drop();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return median(times[0].streamed) - median(times[0].direct);
}

}  // namespace

void add_enqueue_bars(Harness& harness) {
  harness.add({.area = "collectives",
               .name = "all_reduce_8B_stream_over_direct",
               .unit = Unit::kNanoseconds,
               .ours = extra_ns,
               .limit = 200});
}

}  // namespace slip::bench
