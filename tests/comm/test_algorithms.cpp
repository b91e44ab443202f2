// Every algorithm over pipes, over the network and over both, against what one thread computes.
#include <gtest/gtest.h>

#include <numeric>

#include "comm/algorithm.hpp"
#include "cpu_ranks.hpp"
#include "support/errors.hpp"

namespace slip {
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
};

std::string case_name(const testing::TestParamInfo<Case>& of) {
  const char* const ways[] = {"pipes", "net", "both"};
  return std::string(algorithm_name(of.param.algorithm)) + "_" + ways[static_cast<int>(of.param.way)] + "_" +
         std::to_string(of.param.nranks);
}

std::vector<Met> with_case(const Case& how, const std::function<void(Rank&)>& body, bool deterministic = false) {
  const UniqueId id = test::local_id();
  return test::as_ranks(how.nranks, [&](int index) {
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(60);
    options.algorithm = how.algorithm;
    options.deterministic = deterministic;
    if (how.way == Way::kNet) options.transport = Transport::kNet;
    // Ranks of one "host" are not neighbours by their numbers.
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

// Odd sizes: one part, several parts, several chunks; slices of nothing.
constexpr std::uint64_t kElements[] = {0, 1, 17, 1000, 70'001, 700'003};

TEST_P(Algorithms, Reduce) {
  const auto n = static_cast<std::size_t>(GetParam().nranks);
  expect_no_errors(with_case(GetParam(), [&](Rank& rank) {
    const auto me = static_cast<std::size_t>(rank.comm.rank());
    for (const std::uint64_t elements : kElements) {
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(testing::Message() << elements << " elements" << (in_place ? " in place" : ""));
        std::vector<Bytes> all;
        for (std::size_t i = 0; i < n; ++i) all.push_back(numbers(elements * n, static_cast<unsigned>(i + elements)));
        const std::size_t bytes = elements * 4;
        std::vector<Bytes> firsts, mine;
        for (const Bytes& one : all) {
          firsts.push_back(part_of(one, 0, bytes));
          mine.push_back(part_of(one, me, bytes));
        }
        const Bytes sum = test::reduced(DataType::kF32, ReduceOp::kSum, firsts);
        const Bytes average = test::reduced(DataType::kF32, ReduceOp::kAvg, firsts);
        const Buffer in = rank.upload(all[me]), other = rank.upload(Bytes(bytes));
        const Range out = in_place ? in.slice(0, bytes) : other.slice(0, bytes);
        const Buffer& where = in_place ? in : other;
        rank.comm.all_reduce(out, in.slice(0, bytes), DataType::kF32, ReduceOp::kSum, rank.stream);
        EXPECT_EQ(rank.download(where, bytes), sum);
        const Buffer again = rank.upload(all[me]);
        const Range target = in_place ? again.slice(0, bytes) : other.slice(0, bytes);
        rank.comm.all_reduce(target, again.slice(0, bytes), DataType::kF32, ReduceOp::kAvg, rank.stream);
        EXPECT_EQ(rank.download(in_place ? again : other, bytes), average);
        const Buffer third = rank.upload(all[me]);
        for (const std::size_t root : {n - 1, std::size_t{0}}) {
          const Buffer rooted = rank.upload(Bytes(bytes));
          rank.comm.reduce(rooted.slice(0, bytes), third.slice(0, bytes), DataType::kF32, ReduceOp::kSum,
                           static_cast<int>(root), rank.stream);
          EXPECT_EQ(rank.download(rooted, bytes), me == root ? sum : Bytes(bytes));
        }
        const Range scattered = in_place ? third.slice(me * bytes, bytes) : other.slice(0, bytes);
        rank.comm.reduce_scatter(scattered, third.slice(0, bytes * n), DataType::kF32, ReduceOp::kSum, rank.stream);
        const Bytes wanted = test::reduced(DataType::kF32, ReduceOp::kSum, mine);
        if (in_place) EXPECT_EQ(part_of(rank.download(third, bytes * n), me, bytes), wanted);
        else EXPECT_EQ(rank.download(other, bytes), wanted);
      }
    }
  }));
}

TEST_P(Algorithms, Scale) {
  const auto n = static_cast<std::size_t>(GetParam().nranks);
  expect_no_errors(with_case(GetParam(), [&](Rank& rank) {
    const auto me = static_cast<std::size_t>(rank.comm.rank());
    for (const std::uint64_t elements : {17U, 300'001U}) {
      for (const bool in_place : {false, true}) {
        std::vector<float> sums(elements, 0);
        for (std::size_t i = 0; i < n; ++i) {
          const Bytes one = numbers(elements, static_cast<unsigned>(i));
          for (std::uint64_t j = 0; j < elements; ++j) {
            float value = 0;
            std::memcpy(&value, one.data() + j * 4, 4);
            sums[j] += value * static_cast<float>(i + 1);
          }
        }
        Bytes wanted(elements * 4);
        std::memcpy(wanted.data(), sums.data(), wanted.size());
        const Buffer in = rank.upload(numbers(elements, static_cast<unsigned>(me)));
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
  expect_no_errors(with_case(GetParam(), [&](Rank& rank) {
    const auto me = static_cast<std::size_t>(rank.comm.rank());
    for (const std::size_t bytes : {0U, 1U, 333U, 100'003U, 2'500'001U}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes");
      const auto block = [&](std::size_t from, std::size_t to) {
        return values(DataType::kU8, bytes, static_cast<unsigned>(100 + from * n + to));
      };
      const auto joined = [&](const std::function<Bytes(std::size_t)>& piece) {
        Bytes whole;
        for (std::size_t i = 0; i < n; ++i) {
          const Bytes one = piece(i);
          whole.insert(whole.end(), one.begin(), one.end());
        }
        return whole;
      };
      const Bytes sent = joined([&](std::size_t to) { return block(me, to); });
      const Bytes come = joined([&](std::size_t from) { return block(from, me); });
      const Bytes gathered = joined([&](std::size_t from) { return block(from, 0); });
      const Buffer one = rank.upload(block(me, 0)), out = rank.upload(Bytes(bytes)),
                   many = rank.upload(Bytes(bytes * n));
      const Buffer blocks = rank.upload(sent);
      rank.comm.all_gather(many.slice(0, bytes * n), one.slice(0, bytes), rank.stream);
      EXPECT_EQ(rank.download(many, bytes * n), gathered);
      Bytes holed(bytes * n);
      std::copy_n(block(me, 0).begin(), bytes, holed.begin() + static_cast<std::ptrdiff_t>(me * bytes));
      const Buffer filled = rank.upload(holed);
      rank.comm.all_gather(filled.slice(0, bytes * n), filled.slice(me * bytes, bytes), rank.stream);
      EXPECT_EQ(rank.download(filled, bytes * n), gathered);
      for (const std::size_t root : {std::size_t{0}, n - 1}) {
        rank.comm.broadcast(out.slice(0, bytes), one.slice(0, bytes), static_cast<int>(root), rank.stream);
        EXPECT_EQ(rank.download(out, bytes), block(root, 0));
        const Buffer roots = rank.upload(Bytes(bytes * n));
        rank.comm.gather(roots.slice(0, bytes * n), one.slice(0, bytes), static_cast<int>(root), rank.stream);
        EXPECT_EQ(rank.download(roots, bytes * n), me == root ? gathered : Bytes(bytes * n));
        rank.comm.scatter(out.slice(0, bytes), blocks.slice(0, bytes * n), static_cast<int>(root), rank.stream);
        EXPECT_EQ(rank.download(out, bytes), block(root, me));
      }
      rank.comm.all_to_all(many.slice(0, bytes * n), blocks.slice(0, bytes * n), rank.stream);
      EXPECT_EQ(rank.download(many, bytes * n), come);
      rank.comm.all_to_all(blocks.slice(0, bytes * n), blocks.slice(0, bytes * n), rank.stream);
      EXPECT_EQ(rank.download(blocks, bytes * n), come);
      rank.comm.barrier(rank.stream);
    }
  }));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Algorithm algorithm :
       {Algorithm::kAuto, Algorithm::kDirect, Algorithm::kRing, Algorithm::kTree, Algorithm::kDoubling}) {
    for (const Way way : {Way::kPipes, Way::kNet, Way::kBoth}) {
      for (const int nranks : {2, 3, 5, 8}) {
        const bool own_way = algorithm == Algorithm::kAuto || algorithm == Algorithm::kDirect;
        if (way == Way::kPipes && own_way) continue;  // test_collectives has them
        if (nranks == 8 && algorithm != Algorithm::kTree && algorithm != Algorithm::kAuto) continue;
        all.push_back({algorithm, way, nranks});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Every, Algorithms, testing::ValuesIn(cases()), case_name);

// Real numbers: other orders give other bits.
TEST(AlgorithmsThat, AreDeterministicGiveTheBitsOfRankOrder) {
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing}) {
    for (const Way way : {Way::kPipes, Way::kNet, Way::kBoth}) {
      if (way == Way::kPipes && algorithm == Algorithm::kRing) continue;
      expect_no_errors(with_case(
          {algorithm, way, 3},
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

TEST(AlgorithmsThat, DifferBetweenRanksAreRefusedByAll) {
  const UniqueId id = test::local_id();
  const std::vector<Met> met = test::as_ranks(2, [&](int index) {
    CommunicatorOptions options;
    options.algorithm = index == 0 ? Algorithm::kRing : Algorithm::kTree;
    static_cast<void>(Communicator::init(id, 2, index, Device::open("cpu"), options));
  });
  for (const Met& one : met) {
    EXPECT_EQ(one.code, Code::kMismatch) << one.text;
    EXPECT_NE(one.text.find("algorithm ring"), std::string::npos) << one.text;
    EXPECT_NE(one.text.find("algorithm tree"), std::string::npos) << one.text;
  }
}

}  // namespace
}  // namespace slip
