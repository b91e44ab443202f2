// Random programs of many calls on several communicators and streams; one thread computes the expected results. The
// same while ranks are killed or stopped and the others continue. SLIP_TEST_SECONDS: how long; the seed is printed. A
// program stops at that time, too, because on a busy machine one program may take longer.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <random>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "sums.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"

namespace slip::test_soak {
namespace {

using test::as_ranks;
using test::kLine;
using test::Met;
using test::RankProcess;

std::int64_t end_of_run() {
  const std::string text = base::env_text("SLIP_TEST_SECONDS");
  return base::now_ns() + static_cast<std::int64_t>((text.empty() ? 2 : std::atof(text.c_str())) * 1e9);
}

unsigned seed_of_run() {
  const std::string text = base::env_text("SLIP_TEST_SEED");
  const unsigned seed = text.empty() ? std::random_device{}() : static_cast<unsigned>(std::atoll(text.c_str()));
  std::printf("SLIP_TEST_SEED=%u\n", seed);
  return seed;
}

std::uint32_t word(int rank, unsigned salt, std::size_t i) {
  return (static_cast<std::uint32_t>(rank) * 2'654'435'761U) ^ (salt * 40'503U + static_cast<std::uint32_t>(i) * 97U);
}

// One rank's side of a program that all ranks make from the same numbers. Calls are checked some at a time, so that
// many are under way on all streams.
class Program {
 public:
  Program(Communicator& world, const Device& device, unsigned seed) : device_(device), random_(seed) {
    for (int i = 0; i < 3; ++i) streams_.push_back(device.stream());
    parts_.push_back({&world, all_ranks(world.nranks())});
    const int rank = world.rank();
    halves_ = world.split(rank % 2);
    std::vector<int> half;
    for (int other = rank % 2; other < world.nranks(); other += 2) half.push_back(other);
    parts_.push_back({&*halves_, half});
  }

  // What is wrong; empty: nothing.
  std::string run(int calls) {
    for (int i = 0; i < calls; ++i) one_call();
    for (const Stream& stream : streams_) stream.sync();
    std::string wrong;
    for (Pending& one : pending_) {
      const HostView<const std::uint32_t> got = one.to.host_read<std::uint32_t>();
      for (std::size_t k = 0; k < one.expected.size() && wrong.empty(); ++k) {
        if (got[k] != one.expected[k])
          wrong = fmt::format("{}: word {} is {}, not {}", one.what, k, got[k], one.expected[k]);
      }
    }
    pending_.clear();
    return wrong;
  }

 private:
  struct Part {
    Communicator* comm = nullptr;
    std::vector<int> members;  // their ranks in the world: what they give depends on these
  };
  struct Pending {
    std::string what;
    Buffer from, to;
    std::vector<std::uint32_t> expected;
  };
  static std::vector<int> all_ranks(int count) {
    std::vector<int> result;
    for (int rank = 0; rank < count; ++rank) result.push_back(rank);
    return result;
  }
  unsigned next(unsigned below) { return random_() % below; }

  // The same numbers are drawn on all ranks, whichever part they are of.
  void one_call() {
    const Part& part = parts_[next(2)];
    const unsigned kind = next(8), salt = next(1'000'000), raw_root = next(1000), shift = next(1000);
    const std::size_t n = next(6) == 0 ? 1 + next(40'000) : 1 + next(60);
    const Stream& stream = streams_[next(3)];
    Communicator& comm = *part.comm;
    const auto size = static_cast<std::size_t>(comm.nranks()), me = static_cast<std::size_t>(comm.rank());
    const std::size_t root = raw_root % size;
    const auto said = [&](std::size_t member, std::size_t i) { return word(part.members[member], salt, i); };
    const auto sum = [&](std::size_t i) {
      std::uint32_t result = 0;
      for (std::size_t member = 0; member < size; ++member) result += said(member, i);
      return result;
    };
    const bool much_in = kind == 3 || kind == 4, much_out = kind == 2 || kind == 4;
    const std::size_t in = much_in ? n * size : n, out = much_out ? n * size : n;
    Pending call{fmt::format("call of kind {} with {} words among {}, rank {}", kind, n, size, me),
                 device_.alloc(in * 4, MemoryKind::kPinned),
                 device_.alloc(out * 4, MemoryKind::kPinned),
                 {}};
    std::uint32_t* const given = call.from.host_write<std::uint32_t>().begin();
    for (std::size_t i = 0; i < in; ++i) given[i] = said(me, i);
    call.expected.resize(out);
    const auto expect = [&](const auto& value) {
      for (std::size_t i = 0; i < out; ++i) call.expected[i] = value(i);
    };
    switch (kind) {
      case 0:
        expect(sum);
        comm.all_reduce(call.to, call.from, DataType::kU32, ReduceOp::kSum, stream);
        break;
      case 1:
        expect([&](std::size_t i) { return said(root, i); });
        comm.broadcast(call.to, call.from, static_cast<int>(root), stream);
        break;
      case 2:
        expect([&](std::size_t i) { return said(i / n, i % n); });
        comm.all_gather(call.to, call.from, stream);
        break;
      case 3:
        expect([&](std::size_t i) { return sum(me * n + i); });
        comm.reduce_scatter(call.to, call.from, DataType::kU32, ReduceOp::kSum, stream);
        break;
      case 4:
        expect([&](std::size_t i) { return said(i / n, me * n + i % n); });
        comm.all_to_all(call.to, call.from, stream);
        break;
      case 5: {
        const std::size_t step = shift % size;
        expect([&](std::size_t i) { return said((me + size - step) % size, i); });
        Group group;
        comm.send(call.from, static_cast<int>((me + step) % size), stream);
        comm.recv(call.to, static_cast<int>((me + size - step) % size), stream);
        group.end();
        break;
      }
      case 6:
        if (me == root) expect(sum);
        else call.expected.clear();
        comm.reduce(call.to, call.from, DataType::kU32, ReduceOp::kSum, static_cast<int>(root), stream);
        break;
      default:
        call.expected.clear();
        comm.barrier(stream);
        break;
    }
    pending_.push_back(std::move(call));
  }

  const Device& device_;
  std::mt19937 random_;
  std::vector<Stream> streams_;
  std::vector<Part> parts_;
  std::optional<Communicator> halves_;
  std::vector<Pending> pending_;
};

// Whether another round is run: all ranks must do the same, so the first of them to come decides. The first round is
// always run.
class Rounds {
 public:
  explicit Rounds(std::int64_t end_ns) : end_ns_(end_ns) {}
  static constexpr std::size_t kMax = 4;
  bool go_on(std::size_t round) {
    int wanted = round == 0 || base::now_ns() < end_ns_ ? kGo : kStop, decided = kOpen;
    // relaxed: nothing else is passed with it.
    return decided_[round].compare_exchange_strong(decided, wanted, std::memory_order_relaxed) ? wanted == kGo
                                                                                               : decided == kGo;
  }

 private:
  static constexpr int kOpen = 0, kGo = 1, kStop = 2;
  const std::int64_t end_ns_;
  std::array<std::atomic<int>, kMax> decided_{};
};

void expect_random_programs_right(bool virtual_time) {
  std::mt19937 random(seed_of_run());
  const std::int64_t end = end_of_run();
  int programs = 0;
  for (; programs == 0 || base::now_ns() < end; ++programs) {
    const int count = 2 + static_cast<int>(random() % 4);
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(60);
    constexpr Algorithm kAlgorithms[] = {Algorithm::kAuto, Algorithm::kAuto, Algorithm::kDirect, Algorithm::kRing,
                                         Algorithm::kTree};
    options.algorithm = kAlgorithms[random() % 5];
    options.transport = random() % 3 == 0 ? Transport::kNet : Transport::kAuto;
    const auto seed = static_cast<unsigned>(random());
    SCOPED_TRACE(testing::Message() << "program " << programs << ", " << count << " ranks, "
                                    << algorithm_name(options.algorithm));
    const std::vector<Device> devices = virtual_time ? Device::open_all("sim:h200", count)
                                                     : std::vector<Device>(static_cast<std::size_t>(count),
                                                                           Device::open("cpu", {.compute_workers = 2}));
    std::vector<Communicator> comms = Communicator::init_all(devices, options);
    Rounds rounds(end);
    test::expect_no_errors(as_ranks(
        count,
        [&](int rank) {
          const Device own =
              virtual_time ? devices[static_cast<std::size_t>(rank)] : Device::open("cpu", {.compute_workers = 2});
          Program program(comms[static_cast<std::size_t>(rank)], own, seed);
          for (std::size_t round = 0; round < Rounds::kMax && rounds.go_on(round); ++round)
            ASSERT_EQ(program.run(12), "");
        },
        [&](int rank) { comms[static_cast<std::size_t>(rank)].abort(); }));
    if (testing::Test::HasFailure()) return;
  }
  std::printf("%d programs\n", programs);
}

TEST(Soak, RandomPrograms) { expect_random_programs_right(false); }
TEST(SoakInVirtualTime, RandomPrograms) { expect_random_programs_right(true); }

// An endless program with the remaining ranks, until as few are left as the test expects.
SLIP_CHILD(SoakWithLosses, GoOn) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const auto byte = [] {
      unsigned char one = 0;
      if (::read(kLine, &one, 1) != 1) throw std::runtime_error("no orders");
      return static_cast<unsigned>(one);
    };
    const unsigned seed = byte(), left = byte();
    CommunicatorOptions options;
    options.heartbeat = std::chrono::milliseconds(100);
    options.silence = std::chrono::milliseconds(6000);  // beside other work a thread may get no core for seconds
    const Device device = Device::open("cpu", {.compute_workers = 2});
    std::optional<Communicator> comm(Communicator::init(info.id, info.nranks, info.rank, device, options));
    for (;;) {
      try {
        Program program(*comm, device, seed * 100 + static_cast<unsigned>(comm->nranks()));
        // Fewer than that are left if one was taken for lost: then the report says so.
        for (int round = 0; comm->nranks() > static_cast<int>(left) || round < 5; ++round) {
          if (const std::string wrong = program.run(6); !wrong.empty()) return wrong;
          static_cast<void>(!::send(kLine, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
        }
        return fmt::format("rank {} of {}", comm->rank(), comm->nranks());
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kRankLost) return error.what();
      }
      comm.emplace(comm->shrink());
    }
  });
}

TEST(SoakWithLosses, TheOthersGoOn) {
  std::mt19937 random(seed_of_run());
  const std::int64_t end = end_of_run();
  int jobs = 0;
  for (; jobs == 0 || base::now_ns() < end; ++jobs) {
    const int count = 3 + static_cast<int>(random() % 3), lost = 1 + static_cast<int>(random() % 2);
    const UniqueId id = test::local_id();
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < count; ++rank) ranks.emplace_back("SoakWithLosses.GoOn", id, count, rank);
    const auto seed = static_cast<char>(random() % 128);
    for (const RankProcess& rank : ranks) {
      rank.send(seed);
      rank.send(static_cast<char>(count - lost));
    }
    std::vector<bool> victims(static_cast<std::size_t>(count));
    for (int i = 0; i < lost; ++i) {
      std::size_t victim = random() % ranks.size();
      while (victims[victim]) victim = (victim + 1) % ranks.size();
      victims[victim] = true;
      const std::size_t rounds = 1 + random() % 20;
      for (std::size_t round = 0; round == 0 || (round < rounds && base::now_ns() < end); ++round)
        ASSERT_EQ(ranks[victim].hear(1), "x") << "job " << jobs;
      ranks[victim].signal(random() % 4 == 0 ? SIGSTOP : SIGKILL);
    }
    int next = 0;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (victims[rank]) continue;
      const std::string report = ranks[rank].report();
      EXPECT_EQ(report.substr(report.find_last_of('x') == std::string::npos ? 0 : report.find_first_not_of('x')),
                fmt::format("rank {} of {}", next++, count - lost))
          << "job " << jobs << ", rank " << rank << " of " << count;
    }
    if (testing::Test::HasFailure()) return;
  }
  std::printf("%d jobs\n", jobs);
}

}  // namespace
}  // namespace slip::test_soak
