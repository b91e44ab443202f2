// Many more ranks than cores.
#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>

#include "base/clock.hpp"
#include "sums.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "support/share.hpp"

namespace slip::test_many {
namespace {

using test::Adder;
using test::as_ranks;
using test::kLine;
using test::RankProcess;

constexpr int kMany = test::kShare == 1 ? 64 : 16;

CommunicatorOptions long_timeouts() {
  CommunicatorOptions options;
  options.silence = std::chrono::seconds(50);  // no rank is lost here
  return options;
}

class Times {
 public:
  void note(const char* what) {
    const std::int64_t now = base::now_ns();
    text_ += fmt::format("{}{} {:.1f} ms", text_.empty() ? "" : ", ", what, static_cast<double>(now - begun_) / 1e6);
    begun_ = now;
  }
  const std::string& text() const { return text_; }

 private:
  std::int64_t begun_ = base::now_ns();
  std::string text_;
};

// The calls of one rank; what is wrong.
std::string use(Communicator& comm, const Adder& adder, Times& times) {
  const Device& device = adder.device();
  const auto size = static_cast<std::size_t>(comm.nranks());
  for (const std::size_t elements : {std::size_t{1}, std::size_t{100'000}}) {
    for (int turn = 0; turn < 2; ++turn) {
      if (const std::string wrong = adder.wrong_sum(comm, elements); !wrong.empty()) return wrong;
      times.note(elements == 1 ? "all_reduce of 4 B" : "of 400 kB");
    }
  }
  Buffer from = device.alloc(size * 4, MemoryKind::kPinned), to = device.alloc(size * 4, MemoryKind::kPinned);
  const auto first = static_cast<std::uint32_t>(comm.rank()) * 1000;
  std::iota(from.host_write<std::uint32_t>().begin(), from.host_write<std::uint32_t>().end(), first);
  comm.all_to_all(to, from, adder.stream());
  adder.stream().sync();
  times.note("all_to_all");
  for (std::size_t i = 0; i < size; ++i) {
    if (to.host_read<std::uint32_t>()[i] != 1000 * i + static_cast<std::size_t>(comm.rank()))
      return fmt::format("all_to_all: block {} of rank {} is wrong", i, comm.rank());
  }
  for (int i = 0; i < 10; ++i) comm.barrier(adder.stream());
  adder.stream().sync();
  times.note("10 barriers");
  return "";
}

SLIP_CHILD(Many, UseAll) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    Times times;
    const Adder adder;
    CommunicatorOptions options = long_timeouts();
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, adder.device(), options);
    times.note("init");
    std::string wrong = use(comm, adder, times);
    comm.finalize();
    times.note("finalize");
    return wrong.empty() ? "fine: " + times.text() : wrong;
  });
}

TEST(Many, RanksAreProcesses) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < kMany; ++rank) ranks.emplace_back("Many.UseAll", id, kMany, rank);
  for (const RankProcess& rank : ranks) {
    const std::string report = rank.report();
    EXPECT_EQ(report.substr(0, 4), "fine") << report;
    if (&rank == &ranks.front()) std::printf("%d processes: %s\n", kMany, report.c_str());
  }
}

void expect_right_in_threads(const CommunicatorOptions& options, const char* what) {
  const std::int64_t begun = base::now_ns();
  const std::vector<Device> devices(static_cast<std::size_t>(kMany), Device::open("cpu", {.compute_workers = 2}));
  std::vector<Communicator> comms = Communicator::init_all(devices, options);
  std::printf("%d threads%s: init %.1f ms, ", kMany, what, static_cast<double>(base::now_ns() - begun) / 1e6);
  std::string text;
  test::expect_no_errors(as_ranks(kMany, [&](int rank) {
    Times times;
    EXPECT_EQ(use(comms[static_cast<std::size_t>(rank)], Adder(), times), "");
    if (rank == 0) text = times.text();
  }));
  std::printf("%s\n", text.c_str());
}

TEST(Many, RanksAreThreads) { expect_right_in_threads(long_timeouts(), ""); }

TEST(Many, RanksAreThreadsThatExchangeMessages) {
  CommunicatorOptions options = long_timeouts();
  options.algorithm = Algorithm::kRing;
  expect_right_in_threads(options, " in a ring");
  options.transport = Transport::kNet;
  expect_right_in_threads(options, " over the network");
}

}  // namespace
}  // namespace slip::test_many
