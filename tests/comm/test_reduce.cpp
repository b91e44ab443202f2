// Every type with every op against the reference, wherever the data lies.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/small_floats.hpp"
#include "comm/reduce/reduce_kernel.hpp"
#include "reduce_reference.hpp"

namespace slip::test_reduce {
namespace {

using Bytes = std::vector<std::byte>;

std::uint64_t element(DataType type, const std::byte* data, std::size_t i) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, data + i * bytes_of(type), bytes_of(type));
  return bits;
}

// Values that meet: zeros, ones, the largest and least, neighbours of a power of two, NaN; and any bits.
std::uint64_t random_bits(DataType type, std::mt19937_64& random) {
  const std::size_t width = 8 * bytes_of(type);
  const std::uint64_t all = width == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1;
  const std::uint64_t sign = std::uint64_t{1} << (width - 1);
  const std::uint64_t one = is_float(type) ? encode(type, 1) : 1;
  switch (random() % 8) {
    case 0: return random() % 2 ? sign : 0;
    case 1: return (one + random() % 3 - 1) & all;
    case 2: return (sign - 1 - random() % 4) | (random() % 2 ? sign : 0);
    case 3: return is_float(type) ? encode(type, static_cast<double>(random() % 64) - 32) : random() & all;
    default: return random() & all;
  }
}

Bytes random_elements(DataType type, std::size_t count, std::mt19937_64& random) {
  Bytes result(count * bytes_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random_bits(type, random);
    std::memcpy(result.data() + i * bytes_of(type), &bits, bytes_of(type));
  }
  return result;
}

std::uint64_t random_divisor(std::size_t ranks, std::mt19937_64& random) {
  switch (random() % 3) {
    case 0: return ranks;
    case 1: return std::uint64_t{1} << random() % 40;
    default: return 1 + random() % 70'000;
  }
}

struct Case {
  comm::Reduction how;
  std::vector<Bytes> sources;
  std::vector<comm::ReduceScale> scales;
  std::size_t elements = 0;

  Case(DataType type, ReduceOp op, std::size_t ranks, std::size_t count, std::mt19937_64& random)
      : how{.type = type, .op = op}, elements(count) {
    for (std::size_t i = 0; i < ranks; ++i) sources.push_back(random_elements(type, count, random));
    if (op == ReduceOp::kAvg) how.divisor = random_divisor(ranks, random);
    for (std::size_t i = 0; i < ranks; ++i) scales.push_back(comm::ReduceScale::of(random_bits(type, random)));
    if (op == ReduceOp::kPreMulSum) how.scales = scales;
  }
  Case(const Case&) = delete;

  std::vector<const void*> from() const {
    std::vector<const void*> result;
    for (const Bytes& source : sources) result.push_back(source.data());
    return result;
  }
  std::string name() const {
    return std::string(data_type_name(how.type)) + " " + reduce_op_name(how.op) + " of " +
           std::to_string(sources.size()) + " ranks, " + std::to_string(elements) + " elements, divisor " +
           std::to_string(how.divisor);
  }
  void expect_equal(const std::byte* result) const {
    std::vector<std::uint64_t> ranks(sources.size());
    for (std::size_t i = 0; i < elements; ++i) {
      for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = element(how.type, sources[r].data(), i);
      const std::uint64_t want = reference(how, ranks), got = element(how.type, result, i);
      if (same_bits(how.type, want, got)) continue;
      ADD_FAILURE() << name() << ": element " << i << " is " << std::hex << got << ", not " << want << ", of "
                    << ranks[0] << (ranks.size() > 1 ? " and " : "") << (ranks.size() > 1 ? ranks[1] : 0);
      return;
    }
  }
};

class ReduceTypes : public testing::TestWithParam<std::tuple<DataType, ReduceOp>> {
 protected:
  DataType type = std::get<0>(GetParam());
  ReduceOp op = std::get<1>(GetParam());
  std::mt19937_64 random{20'240'611};  // a fixed seed: the same values in each run
};

TEST_P(ReduceTypes, IsTheReferenceForAnySizeAndNumberOfRanks) {
  for (std::size_t ranks = 1; ranks <= 9; ++ranks) {
    for (const std::size_t count : {1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 127, 129, 1000, 5003}) {
      const Case some(type, op, ranks, count, random);
      Bytes result(count * bytes_of(type));
      comm::reduce(some.how, result.data(), some.from(), count);
      some.expect_equal(result.data());
      if (HasFailure()) return;
    }
  }
}

TEST_P(ReduceTypes, AlignmentChangesNothingAndNothingElseIsWritten) {
  const std::size_t count = 211, bytes = count * bytes_of(type);
  const Case some(type, op, 3, count, random);
  for (std::size_t shift = 0; shift < 16; ++shift) {
    std::vector<Bytes> moved;
    std::vector<const void*> from;
    for (std::size_t r = 0; r < 3; ++r) {
      const std::size_t at = (shift * (r + 1)) % 16;
      moved.emplace_back(at + bytes);
      std::memcpy(moved.back().data() + at, some.sources[r].data(), bytes);
      from.push_back(moved.back().data() + at);
    }
    Bytes result(bytes + 32, std::byte{0xa5});
    comm::reduce(some.how, result.data() + shift, from, count);
    some.expect_equal(result.data() + shift);
    for (std::size_t i = 0; i < result.size(); ++i) {
      const bool inside = i >= shift && i < shift + bytes;
      ASSERT_TRUE(inside || result[i] == std::byte{0xa5}) << some.name() << ", byte " << i;
    }
    if (HasFailure()) return;
  }
}

TEST_P(ReduceTypes, ATargetMayBeAnySourceAndThereMayBeSeveral) {
  for (const std::size_t ranks : {1, 2, 4, 5, 7}) {
    for (std::size_t in_place = 0; in_place < ranks; ++in_place) {
      const std::size_t count = 3001;
      const Case some(type, op, ranks, count, random);
      Bytes result = some.sources[in_place], also(result.size());
      std::vector<const void*> from = some.from();
      from[in_place] = result.data();
      void* const to[] = {also.data(), result.data()};
      if (ranks % 2) comm::reduce(some.how, std::span<void* const>(to), from, count);
      else comm::reduce(some.how, result.data(), from, count);
      some.expect_equal(result.data());
      EXPECT_TRUE(ranks % 2 == 0 || result == also) << some.name();
      if (HasFailure()) return;
    }
  }
}

// What a ring does, step by step, is what one call does.
TEST_P(ReduceTypes, OneRankAtATimeIsTheSame) {
  const std::size_t ranks = 7, count = 1003;
  const Case some(type, op, ranks, count, random);
  Bytes at_once(count * bytes_of(type)), ring = some.sources[0];
  comm::reduce(some.how, at_once.data(), some.from(), count);
  for (std::size_t r = 1; r < ranks; ++r) {
    comm::Reduction step = some.how;
    const comm::ReduceScale scales[] = {r == 1 ? some.scales[0] : comm::ReduceScale::one(type), some.scales[r]};
    if (op == ReduceOp::kPreMulSum) step.scales = scales;
    if (r + 1 < ranks) step.divisor = 1;
    const void* const from[] = {ring.data(), some.sources[r].data()};
    comm::reduce(step, ring.data(), from, count);
  }
  some.expect_equal(ring.data());
  some.expect_equal(at_once.data());
}

TEST_P(ReduceTypes, EachInstructionSetGivesTheSameBits) {
  const std::size_t bytes = 1 << 14, count = bytes / bytes_of(type);
  for (const comm::InstructionSet some :
       {comm::InstructionSet::kAvx2, comm::InstructionSet::kAvx512, comm::InstructionSet::kArmHalf}) {
    if (!comm::has_instructions(some)) continue;
    for (const comm::ReduceExtra extra : {comm::ReduceExtra::kNone, comm::ReduceExtra::kScales,
                                          comm::ReduceExtra::kDivisor, comm::ReduceExtra::kPowerOfTwo}) {
      for (std::size_t sources = 1; sources <= comm::kMaxSources; ++sources) {
        const Case data(type, op, sources, count, random);
        Bytes base(bytes), other(bytes);
        comm::KernelCall call{
            .sources = sources, .bytes = bytes, .divisor = extra == comm::ReduceExtra::kPowerOfTwo ? 64U : 1'000'003U};
        for (std::size_t r = 0; r < sources; ++r) {
          call.from[r] = data.sources[r].data();
          call.scales[r] = data.scales[r];
        }
        call.to = base.data();
        comm::reduce_kernel(type, op, extra, comm::InstructionSet::kBase)(call);
        call.to = other.data();
        comm::reduce_kernel(type, op, extra, some)(call);
        for (std::size_t i = 0; i < count; ++i) {
          const std::uint64_t a = element(type, base.data(), i), b = element(type, other.data(), i);
          ASSERT_TRUE(same_bits(type, a, b))
              << data.name() << ": element " << i << " is " << std::hex << b << ", not " << a;
        }
      }
    }
  }
}

// Of 8-bit types there are few enough pairs to try them all.
class ReduceBytes : public ReduceTypes {};
TEST_P(ReduceBytes, EveryPair) {
  std::array<Bytes, 2> pairs = {Bytes(65'536), Bytes(65'536)};
  for (std::size_t i = 0; i < 65'536; ++i) {
    pairs[0][i] = static_cast<std::byte>(i >> 8);
    pairs[1][i] = static_cast<std::byte>(i & 255);
  }
  Case all(type, op, 2, 0, random);
  all.sources = {pairs[0], pairs[1]};
  all.elements = 65'536;
  for (std::uint64_t trial = 0; trial < (op == ReduceOp::kAvg || op == ReduceOp::kPreMulSum ? 24 : 1); ++trial) {
    all.how.divisor = trial + 1;
    for (comm::ReduceScale& scale : all.scales) scale = comm::ReduceScale::of(random_bits(type, random));
    Bytes result(65'536);
    comm::reduce(all.how, result.data(), all.from(), 65'536);
    all.expect_equal(result.data());
  }
}

std::string case_name(const testing::TestParamInfo<std::tuple<DataType, ReduceOp>>& info) {
  return std::string(data_type_name(std::get<0>(info.param))) + "_" + reduce_op_name(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(All, ReduceTypes,
                         testing::Combine(testing::ValuesIn(kReducedTypes), testing::ValuesIn(kReduceOps)), case_name);
INSTANTIATE_TEST_SUITE_P(All, ReduceBytes,
                         testing::Combine(testing::Values(DataType::kI8, DataType::kU8, DataType::kF8E4M3,
                                                          DataType::kF8E5M2),
                                          testing::ValuesIn(kReduceOps)),
                         case_name);

TEST(Reduce, KnownResults) {
  const float a[] = {1, 0x1p24F, 3}, b[] = {2, 1, 5}, c[] = {4, 1, 6};
  const void* const from[] = {a, b, c};
  float sum[3], average[3];
  comm::reduce({}, sum, from, 3);
  EXPECT_EQ(sum[0], 7);
  EXPECT_EQ(sum[1], 0x1p24F) << "each 1 is lost by itself, in this order";
  comm::reduce({.op = ReduceOp::kAvg, .divisor = 3}, average, from, 3);
  EXPECT_EQ(average[2], 14.0F / 3);

  const std::int8_t d[] = {-100, 100, -7}, e[] = {-100, 100, 0};
  const void* const integers[] = {d, e};
  std::int8_t wrapped[3];
  comm::reduce({.type = DataType::kI8, .op = ReduceOp::kAvg, .divisor = 2}, wrapped, integers, 3);
  EXPECT_EQ(wrapped[0], 28) << "-200 wraps around to 56";
  EXPECT_EQ(wrapped[1], -28);
  EXPECT_EQ(wrapped[2], -3) << "towards zero";

  const base::F8E4M3 large[] = {base::from_float<base::F8E4M3>(448)}, more[] = {base::from_float<base::F8E4M3>(32)};
  const void* const eights[] = {large, more};
  base::F8E4M3 held[1];
  comm::reduce({.type = DataType::kF8E4M3}, held, eights, 1);
  EXPECT_EQ(base::to_float(held[0]), 448);
}

TEST(Reduce, NothingToDoTouchesNothing) {
  float one = 1, two = 2, out = 7;
  const void* const from[] = {&one, &two};
  comm::reduce({}, &out, from, 0);
  EXPECT_EQ(out, 7);
}

TEST(Reduce, OpsHaveNames) {
  for (const ReduceOp op : kReduceOps) EXPECT_EQ(reduce_op_of(reduce_op_name(op)), op);
  EXPECT_EQ(reduce_op_of("xor"), std::nullopt);
}

}  // namespace
}  // namespace slip::test_reduce
