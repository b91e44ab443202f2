// Every algorithm over pipes, over the network and over both. One thread computes the expected results.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "comm/plan/algorithm.hpp"
#include "comm/plan/tuning.hpp"
#include "cpu_ranks.hpp"
#include "support/errors.hpp"
#include "support/share.hpp"
#include "transport/net/net.hpp"

namespace slip::test_algorithms {
namespace {

using test::Bytes;
using test::expect_no_errors;
using test::fails;
using test::Met;
using test::Rank;
using test::values;

enum class Way { kPipes, kNet, kBoth };

struct Case {
  Algorithm algorithm;
  Way way;
  int nranks;
  int channels = 1;
};

std::string case_name(const testing::TestParamInfo<Case>& of) {
  const char* const ways[] = {"pipes", "net", "both"};
  return std::string(algorithm_name(of.param.algorithm)) + "_" + ways[static_cast<int>(of.param.way)] + "_" +
         std::to_string(of.param.nranks) +
         (of.param.channels > 1 ? "_by_" + std::to_string(of.param.channels) + "_channels" : "");
}

std::vector<Met> with_case(const Case& how, const std::function<void(Rank&)>& body, bool deterministic = false) {
  const UniqueId id = test::local_id();
  return test::as_ranks(how.nranks, [&](int index) {
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(60);
    options.algorithm = how.algorithm;
    options.deterministic = deterministic;
    options.min_channels = options.max_channels = how.channels;
    if (how.way == Way::kNet) options.transport = Transport::kNet;
    // The ranks of one "host" do not have consecutive numbers.
    if (how.way == Way::kBoth) options.host = index % 2 == 0 ? "even" : "odd";
    Communicator comm = Communicator::init(id, how.nranks, index, Device::open("cpu", {.compute_workers = 2}), options);
    Rank rank(comm);
    body(rank);
    rank.stream.sync();
  });
}

// Whole numbers: their sums are exact, so the order in which they are added does not matter.
Bytes numbers(std::uint64_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> made(elements);
  for (float& one : made) one = static_cast<float>(random() % 4096);
  Bytes bytes(elements * 4);
  if (elements > 0) std::memcpy(bytes.data(), made.data(), bytes.size());
  return bytes;
}

Bytes part_of(const Bytes& bytes, std::size_t index, std::size_t size) {
  return {bytes.begin() + static_cast<std::ptrdiff_t>(index * size),
          bytes.begin() + static_cast<std::ptrdiff_t>((index + 1) * size)};
}

class Algorithms : public testing::TestWithParam<Case> {};

// More than a chunk of 512 KiB. With two and three ranks also more than a chunk of the direct algorithm, which is 1
// MiB: with many ranks that takes long, and its steps are the same.
std::uint64_t large(const Case& of) { return test::kShare > 1 || of.nranks > 3 ? 140'003 : 300'003; }

// Odd sizes: one part, several parts, several chunks, and so few elements that some slices are empty.
std::vector<std::uint64_t> sizes(const Case& of) { return {0, 1, 17, 1000, large(of)}; }

// With a sanitizer large calls of many ranks take minutes, so there only two ranks make them.
bool takes_minutes(const Case& of, std::uint64_t elements) {
  return test::kShare > 1 && of.nranks > 2 && elements > 1000;
}

// The input of the ranks, and the expected result, computed by one thread.
struct Sums {
  Sums(std::uint64_t count, std::size_t n) : elements(count) {
    std::vector<Bytes> firsts;
    for (std::size_t i = 0; i < n; ++i) {
      all.push_back(numbers(elements * n, static_cast<unsigned>(i + elements)));
      firsts.push_back(part_of(all.back(), 0, elements * 4));
    }
    sum = test::reduced(DataType::kF32, ReduceOp::kSum, firsts);
    average = test::reduced(DataType::kF32, ReduceOp::kAvg, firsts);
    blocks = test::reduced(DataType::kF32, ReduceOp::kSum, all);
  }
  std::uint64_t elements;
  std::vector<Bytes> all;
  Bytes sum, average, blocks;
};

TEST_P(Algorithms, Reduce) {
  if (GetParam().algorithm == Algorithm::kRelay) GTEST_SKIP() << "does not reduce";
  const auto n = static_cast<std::size_t>(GetParam().nranks);
  std::vector<Sums> sums;
  for (const std::uint64_t elements : sizes(GetParam())) {
    if (!takes_minutes(GetParam(), elements)) sums.emplace_back(elements, n);
  }
  expect_no_errors(with_case(GetParam(), [&](Rank& rank) {
    const auto me = static_cast<std::size_t>(rank.comm.rank());
    for (const Sums& one : sums) {
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(testing::Message() << one.elements << " elements" << (in_place ? " in place" : ""));
        const std::size_t bytes = one.elements * 4;
        const Buffer first = rank.upload(one.all[me]), second = rank.upload(one.all[me]),
                     third = rank.upload(one.all[me]), other = rank.upload(Bytes(bytes));
        const auto reduced_from = [&](const Buffer& in, ReduceOp op) {
          const Buffer& out = in_place ? in : other;
          rank.comm.all_reduce(out.slice(0, bytes), in.slice(0, bytes), DataType::kF32, op, rank.stream);
          return rank.download(out, bytes);
        };
        EXPECT_EQ(reduced_from(first, ReduceOp::kSum), one.sum);
        EXPECT_EQ(reduced_from(second, ReduceOp::kAvg), one.average);
        for (const std::size_t root : {n - 1, std::size_t{0}}) {
          const Buffer rooted = rank.upload(Bytes(bytes));
          rank.comm.reduce(rooted.slice(0, bytes), third.slice(0, bytes), DataType::kF32, ReduceOp::kSum,
                           static_cast<int>(root), rank.stream);
          EXPECT_EQ(rank.download(rooted, bytes), me == root ? one.sum : Bytes(bytes));
        }
        const Range scattered = in_place ? third.slice(me * bytes, bytes) : other.slice(0, bytes);
        rank.comm.reduce_scatter(scattered, third.slice(0, bytes * n), DataType::kF32, ReduceOp::kSum, rank.stream);
        const Bytes wanted = part_of(one.blocks, me, bytes);
        if (in_place) EXPECT_EQ(part_of(rank.download(third, bytes * n), me, bytes), wanted);
        else EXPECT_EQ(rank.download(other, bytes), wanted);
      }
    }
  }));
}

// The same for a sum in which rank i's elements are multiplied by i + 1.
struct ScaledSum {
  ScaledSum(std::uint64_t count, std::size_t n) : elements(count), wanted(count * 4) {
    std::vector<float> sums(count, 0);
    for (std::size_t i = 0; i < n; ++i) {
      all.push_back(numbers(count, static_cast<unsigned>(i)));
      for (std::uint64_t j = 0; j < count; ++j) {
        float value = 0;
        std::memcpy(&value, all.back().data() + j * 4, 4);
        sums[j] += value * static_cast<float>(i + 1);
      }
    }
    std::memcpy(wanted.data(), sums.data(), wanted.size());
  }
  std::uint64_t elements;
  std::vector<Bytes> all;
  Bytes wanted;
};

TEST_P(Algorithms, Scale) {
  if (GetParam().algorithm == Algorithm::kRelay) GTEST_SKIP() << "does not reduce";
  const auto n = static_cast<std::size_t>(GetParam().nranks);
  std::vector<ScaledSum> sums;
  for (const std::uint64_t elements : {std::uint64_t{17}, large(GetParam())}) {
    if (!takes_minutes(GetParam(), elements)) sums.emplace_back(elements, n);
  }
  expect_no_errors(with_case(GetParam(), [&](Rank& rank) {
    const auto me = static_cast<std::size_t>(rank.comm.rank());
    for (const auto& [elements, all, wanted] : sums) {
      for (const bool in_place : {false, true}) {
        const Buffer in = rank.upload(all[me]);
        const Buffer other = rank.upload(Bytes(elements * 4));
        const Buffer& out = in_place ? in : other;
        rank.comm.all_reduce_scaled(out.slice(0, elements * 4), in.slice(0, elements * 4), DataType::kF32,
                                    static_cast<double>(me + 1), rank.stream);
        EXPECT_EQ(rank.download(out, elements * 4), wanted) << elements << (in_place ? " in place" : "");
      }
    }
  }));
}

TEST_P(Algorithms, Copy) {
  const auto n = static_cast<std::size_t>(GetParam().nranks);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{333}, large(GetParam()) * 4 + 1}) {
    if (takes_minutes(GetParam(), bytes)) continue;
    SCOPED_TRACE(testing::Message() << bytes << " bytes");
    std::vector<Bytes> sent, come;  // by rank: its blocks for the other ranks, and their blocks for it
    for (std::size_t i = 0; i < n; ++i)
      sent.push_back(values(DataType::kU8, bytes * n, static_cast<unsigned>(100 + i)));
    const auto joined = [&](std::size_t index) {
      Bytes whole;
      for (std::size_t from = 0; from < n; ++from) {
        const Bytes one = part_of(sent[from], index, bytes);
        whole.insert(whole.end(), one.begin(), one.end());
      }
      return whole;
    };
    for (std::size_t i = 0; i < n; ++i) come.push_back(joined(i));
    const Bytes& gathered = come[0];
    expect_no_errors(with_case(GetParam(), [&](Rank& rank) {
      const auto me = static_cast<std::size_t>(rank.comm.rank());
      const Buffer blocks = rank.upload(sent[me]), out = rank.upload(Bytes(bytes)),
                   many = rank.upload(Bytes(bytes * n));
      const Range one = blocks.slice(0, bytes);
      rank.comm.all_gather(many.slice(0, bytes * n), one, rank.stream);
      EXPECT_EQ(rank.download(many, bytes * n), gathered);
      Bytes holed(bytes * n);
      std::copy_n(sent[me].begin(), bytes, holed.begin() + static_cast<std::ptrdiff_t>(me * bytes));
      const Buffer filled = rank.upload(holed);
      rank.comm.all_gather(filled.slice(0, bytes * n), filled.slice(me * bytes, bytes), rank.stream);
      EXPECT_EQ(rank.download(filled, bytes * n), gathered);
      for (const std::size_t root : {std::size_t{0}, n - 1}) {
        rank.comm.broadcast(out.slice(0, bytes), one, static_cast<int>(root), rank.stream);
        EXPECT_EQ(rank.download(out, bytes), part_of(sent[root], 0, bytes));
        const Buffer roots = rank.upload(Bytes(bytes * n));
        rank.comm.gather(roots.slice(0, bytes * n), one, static_cast<int>(root), rank.stream);
        EXPECT_EQ(rank.download(roots, bytes * n), me == root ? gathered : Bytes(bytes * n));
        rank.comm.scatter(out.slice(0, bytes), blocks.slice(0, bytes * n), static_cast<int>(root), rank.stream);
        EXPECT_EQ(rank.download(out, bytes), part_of(sent[root], me, bytes));
      }
      rank.comm.all_to_all(many.slice(0, bytes * n), blocks.slice(0, bytes * n), rank.stream);
      EXPECT_EQ(rank.download(many, bytes * n), come[me]);
      rank.comm.all_to_all(blocks.slice(0, bytes * n), blocks.slice(0, bytes * n), rank.stream);
      EXPECT_EQ(rank.download(blocks, bytes * n), come[me]);
      rank.comm.barrier(rank.stream);
    }));
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kDirect, Algorithm::kRing, Algorithm::kTree,
                                    Algorithm::kDoubling, Algorithm::kRelay}) {
    for (const Way way : {Way::kPipes, Way::kNet, Way::kBoth}) {
      for (const int nranks : {2, 3, 5, 8}) {
        const bool own_way = algorithm == Algorithm::kAuto || algorithm == Algorithm::kDirect;
        if (way == Way::kPipes && own_way) continue;  // test_collectives has them
        if (test::kShare > 1 && nranks > 3) continue;
        const bool has_levels = algorithm == Algorithm::kTree || algorithm == Algorithm::kRelay;
        if (nranks == 8 && !has_levels && algorithm != Algorithm::kAuto) continue;
        if (algorithm == Algorithm::kRelay && (way != Way::kBoth || nranks == 2))
          continue;  // needs two ranks on a host
        all.push_back({algorithm, way, nranks});
        const bool by_channels = algorithm == Algorithm::kRing || algorithm == Algorithm::kTree;
        if (by_channels && (nranks == 3 || (nranks == 5 && way == Way::kBoth)))
          all.push_back({algorithm, way, nranks, way == Way::kPipes ? 3 : 2});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Every, Algorithms, testing::ValuesIn(cases()), case_name);

// Real numbers: the bits of a sum depend on the order of the additions.
TEST(AlgorithmsThat, AreDeterministicGiveTheBitsOfRankOrder) {
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing}) {
    for (const Way way : {Way::kPipes, Way::kNet, Way::kBoth}) {
      if (way == Way::kPipes && algorithm == Algorithm::kRing) continue;
      expect_no_errors(with_case(
          {algorithm, way, 3, 2},
          [&](Rank& rank) {
            for (const std::uint64_t elements : {5U, 5000U, 500'000U}) {
              std::vector<Bytes> all;
              for (unsigned i = 0; i < 3; ++i) all.push_back(values(DataType::kF32, elements, i));
              const Buffer in = rank.upload(all[static_cast<std::size_t>(rank.comm.rank())]);
              rank.comm.all_reduce(in.slice(0, elements * 4), in.slice(0, elements * 4), DataType::kF32, ReduceOp::kSum,
                                   rank.stream);
              EXPECT_EQ(rank.download(in, elements * 4), test::reduced(DataType::kF32, ReduceOp::kSum, all));
            }
          },
          true));
    }
  }
}

TEST(AlgorithmsThat, HaveChannelsThatCannotBeAreRefused) {
  const auto refused = [](int min, int max) {
    CommunicatorOptions options;
    options.min_channels = min;
    options.max_channels = max;
    const Device device = Device::open("cpu");
    return fails(
        [&] {
          static_cast<void>(Communicator::init_all({&device, 1}, options));
        },
        ErrorCode::kInvalidValue,
        {"min_channels " + std::to_string(min), "max_channels " + std::to_string(max), "1 to 32"});
  };
  EXPECT_TRUE(refused(3, 2));
  EXPECT_TRUE(refused(-1, 0));
  EXPECT_TRUE(refused(0, 33));
}

// The communicator uses as many channels as lead from host to host, if there are cores for them, within the requested
// limits and depending on the size of the call.
TEST(AlgorithmsThat, HaveChannelsUseThoseThatAreWorthIt) {
  EXPECT_EQ(comm::useful_channels(1, 8, false), 1);
  EXPECT_EQ(comm::useful_channels(2, 3, false), 3);
  EXPECT_EQ(comm::useful_channels(2, 3, true), 1);
  const auto chosen = [](std::uint64_t bytes, int min, int max, Algorithm algorithm = Algorithm::kRing) {
    const comm::Call call{.kind = comm::Collective::kAllReduce, .type = DataType::kU8, .elements = bytes};
    const comm::TuningInputs tuning{.nranks = 4, .hosts = 2, .rates = {}, .min_channels = min, .max_channels = max};
    return comm::choose(call, tuning, algorithm, false, false).channels;
  };
  EXPECT_EQ(chosen(1000, 1, 4), 1);
  EXPECT_EQ(chosen(1000, 2, 4), 2);
  EXPECT_EQ(chosen(64 << 20, 1, 4), 4);
  EXPECT_EQ(chosen(64 << 20, 1, 4, Algorithm::kDirect), 1);
}

int open_sockets() {
  int count = 0;
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;  // the descriptor that reads this folder itself
    if (std::filesystem::read_symlink(one, closed).string().starts_with("socket:")) ++count;
  }
  return count;
}

// Open sockets after two ranks of this process have sent in both directions.
int sockets_with(int sockets) {
  const UniqueId id = test::local_id();
  std::atomic<int> counted{0};
  test::as_ranks(2, [&](int index) {
    CommunicatorOptions options;
    options.transport = Transport::kNet;
    options.sockets = sockets;
    Communicator comm = Communicator::init(id, 2, index, Device::open("cpu", {.compute_workers = 2}), options);
    Rank rank(comm);
    comm.barrier(rank.stream);
    rank.stream.sync();
    if (index == 0) counted = open_sockets();
    comm.barrier(rank.stream);
    rank.stream.sync();
  });
  return counted;
}

TEST(AlgorithmsThat, UseSeveralSockets) {
  EXPECT_EQ(sockets_with(4) - sockets_with(1), 2 * 2 * 3);  // directions x ends x additional sockets
  CommunicatorOptions many;
  many.sockets = transport::kNetMaxSockets + 1;
  EXPECT_TRUE(fails([&] { Communicator::init(test::local_id(), 1, 0, Device::open("cpu"), many); },
                    ErrorCode::kInvalidValue, {"17 sockets"}));
}

TEST(AlgorithmsThat, DifferBetweenRanksAreRefusedByAll) {
  const UniqueId id = test::local_id();
  const std::vector<Met> met = test::as_ranks(2, [&](int index) {
    CommunicatorOptions options;
    options.algorithm = index == 0 ? Algorithm::kRing : Algorithm::kTree;
    static_cast<void>(Communicator::init(id, 2, index, Device::open("cpu"), options));
  });
  for (const Met& one : met) {
    EXPECT_EQ(one.code, ErrorCode::kMismatch) << one.text;
    EXPECT_NE(one.text.find("algorithm ring"), std::string::npos) << one.text;
    EXPECT_NE(one.text.find("algorithm tree"), std::string::npos) << one.text;
  }
}

TEST(AlgorithmsThat, HaveOtherChannelsOnOtherRanksAreRefusedByAll) {
  const UniqueId id = test::local_id();
  const std::vector<Met> met = test::as_ranks(2, [&](int index) {
    CommunicatorOptions options;
    options.max_channels = 2 + index;
    static_cast<void>(Communicator::init(id, 2, index, Device::open("cpu"), options));
  });
  for (const Met& one : met) {
    EXPECT_EQ(one.code, ErrorCode::kMismatch) << one.text;
    EXPECT_NE(one.text.find("max_channels 2"), std::string::npos) << one.text;
    EXPECT_NE(one.text.find("max_channels 3"), std::string::npos) << one.text;
  }
}

}  // namespace
}  // namespace slip::test_algorithms
