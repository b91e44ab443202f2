// Staged calls without a GPU: how they are divided, and how ranks run them (staged_rank.hpp).
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "staged_rank.hpp"
#include "support/share.hpp"

namespace slip::test_staged_calls {
namespace {

using comm::Call;
using comm::Collective;
using comm::kStagingBytes;
using comm::kStagingSlots;
using comm::StagedCollective;
using comm::StagedMessages;
using comm::StagedStep;
using comm::UserMessage;
using test::as_ranks;
using test::Bytes;
using test::expect_no_errors;
using test::local_id;
using test::Met;
using test::staged_options;
using test::StagedRank;
using test::with_staged;
using Where = test::StagedPlaces;
using Kind = StagedStep::Kind;
using Use = comm::StagedThread::Use;

constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kReduce,        Collective::kBroadcast,
                                       Collective::kAllGather, Collective::kReduceScatter, Collective::kAllToAll,
                                       Collective::kGather,    Collective::kScatter,       Collective::kBarrier};

Call make_call(Collective kind, std::uint64_t elements, DataType type = DataType::kU8, ReduceOp op = ReduceOp::kSum,
               int root = 0) {
  if (kind == Collective::kBarrier) return {.kind = kind, .type = DataType::kU8};
  return {.kind = kind, .type = type, .op = op, .root = root, .elements = elements};
}

// --- how a call is divided ---

TEST(StagedCalls, AllRanksDivideACallAlikeAndItsPartsFitIntoSlots) {
  for (const Collective kind : kCollectives) {
    for (const int nranks : {2, 3, 32}) {
      for (const std::uint64_t elements : {0UL, 1UL, 1000UL, 262'145UL, 3'000'001UL, 50'000'017UL}) {
        const Call call = make_call(kind, elements, DataType::kF32, ReduceOp::kSum, nranks - 1);
        const StagedCollective first(call, 0, nranks);
        for (int rank = 0; rank < nranks; ++rank) {
          const StagedCollective one(call, rank, nranks);
          ASSERT_EQ(one.parts(), first.parts());
          std::uint64_t sum = 0;
          for (std::uint64_t part = 0; part < one.parts(); ++part) {
            ASSERT_EQ(one.offset(part), sum * 4);
            ASSERT_EQ(one.part(part).elements, first.part(part).elements);
            sum += one.part(part).elements;
            const std::uint64_t bytes = one.part(part).block_bytes();
            ASSERT_LE(std::max(one.blocks().in, one.blocks().out) * bytes, kStagingBytes);
          }
          ASSERT_EQ(sum, call.elements);
        }
      }
    }
  }
}

TEST(StagedCalls, ASmallCallIsOnePart) {
  const StagedCollective small(make_call(Collective::kAllReduce, 256 << 10, DataType::kF32), 0, 2);
  EXPECT_EQ(small.parts(), 1U);
  std::vector<StagedStep> steps;
  std::byte data[1];
  write_steps(small, data, data, steps);
  ASSERT_EQ(steps.size(), 4U);
  EXPECT_EQ(steps[0].kind, Kind::kToHost);
  EXPECT_EQ(steps[1].kind, Kind::kPost);
  EXPECT_EQ(steps[2].kind, Kind::kAwait);
  EXPECT_EQ(steps[3].kind, Kind::kToDevice);
}

// A slot is used again only after its part has ended, and until then every slot has a part.
TEST(StagedCalls, CopiesOfSomePartsOverlapTheNetworkOfAnother) {
  const StagedCollective large(make_call(Collective::kAllReduce, 10 * kStagingBytes / 4, DataType::kF32), 0, 2);
  ASSERT_EQ(large.parts(), 10U);
  std::vector<StagedStep> steps;
  std::byte data[1];
  write_steps(large, data, data, steps);
  std::vector<bool> busy(kStagingSlots);
  std::uint64_t posted = 0, ended = 0;
  for (const StagedStep& step : steps) {
    if (step.kind == Kind::kToHost) {
      EXPECT_FALSE(busy[step.slot]);
    } else if (step.kind == Kind::kPost) {
      EXPECT_EQ(step.slot, posted++ % kStagingSlots);
      busy[step.slot] = true;
    } else if (step.kind == Kind::kAwait) {
      EXPECT_EQ(posted - ended, std::min(kStagingSlots, 10 - ended));
      EXPECT_EQ(step.slot, ended++ % kStagingSlots);
      busy[step.slot] = false;
    }
  }
  EXPECT_EQ(ended, 10U);
}

TEST(StagedCalls, EachPartOfAGroupHasBytesOfEveryMessage) {
  std::vector<UserMessage> messages;
  for (int rank = 1; rank < 5; ++rank) {
    messages.push_back({true, rank, nullptr, 3'000'001});
    messages.push_back({false, rank, nullptr, static_cast<std::uint64_t>(rank) * 1'000'000});
    messages.push_back({true, rank, nullptr, 0});
    messages.push_back({true, rank, nullptr, 77});
  }
  const StagedMessages group(messages, 5);
  std::vector<std::uint64_t> moved(messages.size());
  for (std::uint64_t part = 0; part < group.parts(); ++part) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> used[2];
    std::vector<bool> has(messages.size());
    for (const StagedMessages::Piece& piece : group.pieces(part)) {
      EXPECT_EQ(piece.offset, moved[piece.message]);
      moved[piece.message] += piece.bytes;
      has[piece.message] = true;
      EXPECT_LE(piece.slot_offset + piece.bytes, kStagingBytes);
      for (const auto& [begin, end] : used[group.message(piece).out])
        EXPECT_TRUE(piece.slot_offset >= end || piece.slot_offset + piece.bytes <= begin);
      used[group.message(piece).out].emplace_back(piece.slot_offset, piece.slot_offset + piece.bytes);
    }
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const bool waits = !has[i] && moved[i] < messages[i].bytes;
      const bool first = std::none_of(
          messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(i),
          [&](const UserMessage& one) { return one.rank == messages[i].rank && one.out == messages[i].out; });
      EXPECT_FALSE(waits && first) << "message " << i << " has no bytes in part " << part;
    }
  }
  for (std::size_t i = 0; i < messages.size(); ++i) EXPECT_EQ(moved[i], messages[i].bytes);
}

// Messages from rank to rank, in the order in which both ranks list them.
struct Pattern {
  struct One {
    int from, to;
    std::uint64_t bytes;
  };
  int nranks = 0;
  std::vector<One> messages;

  std::vector<UserMessage> of_rank(int rank) const {
    std::vector<UserMessage> result;
    for (const One& one : messages) {
      if (one.from == rank) result.push_back({true, one.to, nullptr, one.bytes});
      if (one.to == rank) result.push_back({false, one.from, nullptr, one.bytes});
    }
    return result;
  }
};

// Rank 0 has three links for sends and one for receives, its peers have one or two: no rank knows the links of another.
Pattern uneven_links() {
  constexpr std::uint64_t kBytes = 8 << 20;
  return {4, {{0, 1, kBytes}, {0, 2, kBytes}, {0, 3, kBytes}, {1, 0, kBytes}}};
}

Pattern random_pattern(std::mt19937& random) {
  Pattern result{static_cast<int>(2 + random() % 5), {}};
  const auto n = static_cast<unsigned>(result.nranks);
  const std::size_t count = 1 + random() % 12;
  while (result.messages.size() < count) {
    const auto from = static_cast<int>(random() % n), to = static_cast<int>(random() % n);
    const std::uint64_t bytes = random() % 4 == 0 ? random() % 200 : random() % 3'000'000;
    if (from != to) result.messages.push_back({from, to, bytes});
  }
  return result;
}

// Which bytes part i has of the messages from one rank to another: as (part, offset, bytes), in order.
std::vector<std::array<std::uint64_t, 3>> pieces_between(const StagedMessages& group, bool out, int other) {
  std::vector<std::array<std::uint64_t, 3>> result;
  for (std::uint64_t part = 0; part < group.parts(); ++part) {
    for (const StagedMessages::Piece& piece : group.pieces(part)) {
      const UserMessage& message = group.message(piece);
      if (message.out == out && message.rank == other) result.push_back({part, piece.offset, piece.bytes});
    }
  }
  return result;
}

// If the ranks of a message had its bytes in different parts, groups could wait for each other for ever.
TEST(StagedCalls, BothRanksOfAMessageHaveItsBytesInTheSameParts) {
  std::vector<Pattern> patterns{uneven_links()};
  std::mt19937 random(20261117);  // the seed
  while (patterns.size() < 200) patterns.push_back(random_pattern(random));
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    std::vector<StagedMessages> groups;
    for (int rank = 0; rank < patterns[i].nranks; ++rank)
      groups.emplace_back(patterns[i].of_rank(rank), patterns[i].nranks);
    for (const Pattern::One& one : patterns[i].messages)
      ASSERT_EQ(pieces_between(groups[static_cast<std::size_t>(one.from)], true, one.to),
                pieces_between(groups[static_cast<std::size_t>(one.to)], false, one.from))
          << "pattern " << i << ", seed 20261117: rank " << one.from << " to " << one.to;
  }
}

// --- ranks ---

Bytes slice(const Bytes& bytes, std::uint64_t begin, std::uint64_t size) {
  return {bytes.begin() + static_cast<std::ptrdiff_t>(begin),
          bytes.begin() + static_cast<std::ptrdiff_t>(begin + size)};
}

// The expected output of a rank. `inputs`: of all ranks, each as many blocks as there are ranks.
Bytes expected(const Call& call, const std::vector<Bytes>& inputs, int rank) {
  const std::uint64_t block = call.block_bytes(), own = static_cast<std::uint64_t>(rank) * block;
  const auto root = static_cast<std::size_t>(call.root);
  const auto gathered = [&](std::uint64_t begin) {
    Bytes all;
    for (const Bytes& one : inputs) {
      const Bytes part = slice(one, begin, block);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  const auto summed = [&](std::uint64_t begin) {
    std::vector<Bytes> parts;
    for (const Bytes& one : inputs) parts.push_back(slice(one, begin, block));
    return test::reduced(call.type, call.op, parts);
  };
  switch (call.kind) {
    case Collective::kAllReduce: return summed(0);
    case Collective::kReduce: return rank == call.root ? summed(0) : Bytes();
    case Collective::kBroadcast: return slice(inputs[root], 0, block);
    case Collective::kAllGather: return gathered(0);
    case Collective::kReduceScatter: return summed(own);
    case Collective::kAllToAll: return gathered(own);
    case Collective::kGather: return rank == call.root ? gathered(0) : Bytes();
    case Collective::kScatter: return slice(inputs[root], own, block);
    default: return {};
  }
}

void check_call(StagedRank& one, int rank, int nranks, const Call& call, bool in_place) {
  std::vector<Bytes> inputs;
  const auto n = static_cast<std::uint64_t>(nranks);
  for (int other = 0; other < nranks; ++other)
    inputs.push_back(test::values(call.type, n * call.elements, static_cast<unsigned>(other + 1)));
  const Bytes right = expected(call, inputs, rank);
  Bytes data = inputs[static_cast<std::size_t>(rank)];
  const comm::Blocks blocks = blocks_of(call, rank, nranks);
  Bytes apart(right.size());
  const std::uint64_t own = static_cast<std::uint64_t>(rank) * call.block_bytes();
  std::byte *input = data.data(), *output = apart.data();
  if (in_place) {  // the smaller one is this rank's part of the larger
    output = data.data();
    if (blocks.in > blocks.out && blocks.out > 0) output += own;
    if (blocks.in < blocks.out && blocks.in > 0) {
      std::memmove(data.data() + own, data.data(), call.block_bytes());
      input += own;
    }
  }
  one.collective(call, input, output);
  const bool equal = right.empty() || std::memcmp(output, right.data(), right.size()) == 0;
  EXPECT_TRUE(equal) << comm::Signature::of(call, 0).text() << (in_place ? " in place" : "") << " on rank " << rank;
}

// With a sanitizer large calls of many ranks take minutes, so there only two ranks make them.
bool takes_minutes(int nranks, std::uint64_t elements) { return test::kShare > 1 && nranks > 2 && elements > 10'000; }

class StagedRanks : public testing::TestWithParam<Where> {};

TEST_P(StagedRanks, EveryCollectiveGivesTheResultOfOneThread) {
  const int nranks = GetParam().nranks;
  expect_no_errors(with_staged(GetParam(), [&](StagedRank& one, int rank) {
    for (const Collective kind : kCollectives) {
      for (const std::uint64_t elements : {0UL, 1UL, 1003UL, 300'007UL}) {
        if (takes_minutes(nranks, elements)) continue;
        for (const bool in_place : {false, true})
          check_call(one, rank, nranks, make_call(kind, elements, DataType::kU32, ReduceOp::kSum, nranks - 1),
                     in_place);
      }
    }
  }));
}

TEST_P(StagedRanks, EveryTypeAndReduction) {
  const int nranks = GetParam().nranks;
  expect_no_errors(with_staged(GetParam(), [&](StagedRank& one, int rank) {
    for (const DataType type : kReducedTypes) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg}) {
        check_call(one, rank, nranks, make_call(Collective::kAllReduce, 777, type, op), true);
        check_call(one, rank, nranks, make_call(Collective::kReduceScatter, 501, type, op), false);
      }
    }
    if (takes_minutes(nranks, 5'000'011)) return;
    check_call(one, rank, nranks, make_call(Collective::kAllReduce, 5'000'011, DataType::kU8, ReduceOp::kSum), true);
  }));
}

TEST_P(StagedRanks, MessagesArriveInOrder) {
  const int n = GetParam().nranks;
  expect_no_errors(with_staged(GetParam(), [&](StagedRank& one, int rank) {
    for (const std::uint64_t bytes : {0UL, 1UL, 3000UL, 2'600'003UL}) {
      if (takes_minutes(n, bytes)) continue;
      const auto of = [&](int from, int to) {
        return test::values(DataType::kU8, 2 * bytes + 5, static_cast<unsigned>(100 * from + to));
      };
      std::vector<Bytes> sent, received;
      std::vector<UserMessage> list;
      for (int step = 1; step < n; ++step) {
        const int to = (rank + step) % n, from = (rank + n - step) % n;
        sent.push_back(of(rank, to));
        received.emplace_back(2 * bytes + 5);
        for (const bool second : {false, true}) {  // two messages with every rank, of different sizes
          const std::uint64_t begin = second ? bytes : 0, size = second ? bytes + 5 : bytes;
          list.push_back({true, to, sent.back().data() + begin, size});
          list.push_back({false, from, received.back().data() + begin, size});
        }
      }
      one.messages(list);
      for (int step = 1; step < n; ++step)
        EXPECT_EQ(received[static_cast<std::size_t>(step) - 1], of((rank + n - step) % n, rank));
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Hosts, StagedRanks, testing::Values(Where{2, 2}, Where{3, 3}, Where{4, 2}),
                         [](const auto& of) {
                           return std::to_string(of.param.nranks) + "_on_" + std::to_string(of.param.hosts);
                         });

void expect_pattern_arrives(const Pattern& pattern, const std::string& name) {
  SCOPED_TRACE(name);
  const auto data_of = [&](std::size_t message) {
    return test::values(DataType::kU8, pattern.messages[message].bytes, static_cast<unsigned>(message + 1));
  };
  expect_no_errors(with_staged({pattern.nranks, pattern.nranks}, [&](StagedRank& one, int rank) {
    std::vector<UserMessage> list = pattern.of_rank(rank);
    std::vector<std::pair<std::size_t, Bytes>> own;  // by message of the group
    for (std::size_t i = 0; i < pattern.messages.size(); ++i) {
      if (pattern.messages[i].from == rank) own.emplace_back(i, data_of(i));
      if (pattern.messages[i].to == rank) own.emplace_back(i, Bytes(pattern.messages[i].bytes));
    }
    for (std::size_t i = 0; i < list.size(); ++i) list[i].data = own[i].second.data();
    if (!list.empty()) one.messages(list);
    one.collective(make_call(Collective::kBarrier, 0), nullptr, nullptr);  // no rank leaves before
    for (const auto& [message, bytes] : own)
      EXPECT_TRUE(bytes == data_of(message)) << name << ": message " << message << " on rank " << rank;
  }));
}

TEST(StagedThreads, GroupsWithUnevenLinksEnd) { expect_pattern_arrives(uneven_links(), "uneven links"); }

TEST(StagedThreads, RandomGroupsEnd) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  for (int i = 0; i < 5; ++i)
    expect_pattern_arrives(random_pattern(random), "pattern " + std::to_string(i) + " of seed " + std::to_string(seed));
}

// Pieces of a message match, however the receiver groups its receives.
TEST(StagedThreads, OneRankSendsAGroupAndTheOtherReceivesAlone) {
  expect_no_errors(with_staged({2, 2}, [](StagedRank& one, int rank) {
    const Bytes first = test::values(DataType::kU8, 9'000'001, 1), second = test::values(DataType::kU8, 2'000'000, 2);
    Bytes a = first, b = second;
    if (rank == 0) {
      const UserMessage group[] = {{true, 1, a.data(), a.size()}, {true, 1, b.data(), b.size()}};
      return one.messages(group);
    }
    std::fill(a.begin(), a.end(), std::byte{});
    std::fill(b.begin(), b.end(), std::byte{});
    for (Bytes* const bytes : {&a, &b}) {
      const UserMessage alone{false, 0, bytes->data(), bytes->size()};
      one.messages({&alone, 1});
    }
    EXPECT_EQ(a, first);
    EXPECT_EQ(b, second);
  }));
}

// As a CUDA graph that is launched several times: the stream posts the same id again.
TEST(StagedThreads, ACapturedCallRunsAnyNumberOfTimes) {
  expect_no_errors(with_staged({2, 2}, [](StagedRank& one, int) {
    const Call call = make_call(Collective::kAllReduce, 1'000'000, DataType::kI32),
               other = make_call(Collective::kBarrier, 0);
    EXPECT_EQ(one.add(call, Use::kCaptured), one.add(call, Use::kCaptured));
    EXPECT_NE(one.add(call, Use::kCaptured), one.add(other, Use::kCaptured));
    std::vector<std::int32_t> data(call.elements, 1);
    auto* const bytes = reinterpret_cast<std::byte*>(data.data());
    for (int round = 1; round <= 3; ++round) {
      one.collective(call, bytes, bytes, Use::kCaptured);
      one.collective(other, nullptr, nullptr);
      ASSERT_EQ(data.front(), 1 << round);
      ASSERT_EQ(data.back(), 1 << round);
    }
  }));
}

TEST(StagedThreads, DifferentCallsAreAnErrorThatNamesTheWholeCalls) {
  const auto met = with_staged({2, 2}, [](StagedRank& one, int rank) {
    std::vector<float> data(2'000'000);
    auto* const bytes = reinterpret_cast<std::byte*>(data.data());
    one.collective(make_call(Collective::kAllReduce, 2'000'000, rank == 0 ? DataType::kF32 : DataType::kI32), bytes,
                   bytes);
  });
  for (const Met& rank : met) {
    EXPECT_EQ(rank.code, ErrorCode::kMismatch);
    EXPECT_NE(rank.text.find("all_reduce of 2000000 F32 by sum, call 1"), std::string::npos) << rank.text;
    EXPECT_NE(rank.text.find("all_reduce of 2000000 I32 by sum, call 1"), std::string::npos) << rank.text;
  }
}

TEST(StagedThreads, MessagesOfDifferentSizesAreAnError) {
  const auto met = with_staged({2, 2}, [](StagedRank& one, int rank) {
    Bytes data(3'000'000);
    const UserMessage message{rank == 0, 1 - rank, data.data(), rank == 0 ? data.size() : data.size() - 1};
    one.messages({&message, 1});
    one.await_error();  // the sender may be done before the receiver finds the difference
  });
  for (const Met& rank : met) {
    EXPECT_EQ(rank.code, ErrorCode::kMismatch);
    EXPECT_NE(rank.text.find("send or recv of 3000000 bytes"), std::string::npos) << rank.text;
    EXPECT_NE(rank.text.find("send or recv of 2999999 bytes"), std::string::npos) << rank.text;
  }
}

// A program that does not order its CUDA graphs and its other calls: the flags of a slot would mix two calls.
TEST(StagedThreads, ACallThatBeginsInsideAnotherIsAnError) {
  const auto met = with_staged({2, 2}, [](StagedRank& one, int rank) {
    const Call call = make_call(Collective::kAllReduce, 2'000'000, DataType::kF32);
    std::vector<float> data(call.elements);
    auto* const bytes = reinterpret_cast<std::byte*>(data.data());
    if (rank == 1) return one.collective(call, bytes, bytes);
    const std::uint32_t other = one.add(make_call(Collective::kBarrier, 0), Use::kCaptured);
    one.collective(call, bytes, bytes, Use::kOnce, other);
  });
  for (const Met& rank : met) {
    EXPECT_EQ(rank.code, ErrorCode::kInvalidValue);
    EXPECT_NE(rank.text.find("rank 0: a call began before the previous one had ended"), std::string::npos) << rank.text;
  }
}

TEST(StagedThreads, ALostRankReleasesTheStreams) {
  const auto met = with_staged({3, 3}, [](StagedRank& one, int rank) {
    std::vector<float> data(4'000'000);
    auto* const bytes = reinterpret_cast<std::byte*>(data.data());
    one.collective(make_call(Collective::kAllReduce, 100, DataType::kF32), bytes, bytes);
    if (rank == 2) return;  // leaves
    one.collective(make_call(Collective::kAllReduce, 4'000'000, DataType::kF32), bytes, bytes);
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(met[static_cast<std::size_t>(rank)].code, ErrorCode::kRankLost);
    EXPECT_NE(met[static_cast<std::size_t>(rank)].text.find("rank 2"), std::string::npos)
        << met[static_cast<std::size_t>(rank)].text;
  }
}

// The thread releases the streams even if it could not fail them, and it tries that once.
TEST(StagedThreads, StreamsThatCannotBeFailedAreReleased) {
  int failed[2] = {};
  const auto met = with_staged({2, 2}, [&](StagedRank& one, int rank) {
    one.cannot_fail = true;
    one.collective(make_call(Collective::kBarrier, 0), nullptr, nullptr);
    if (rank == 0) one.ranks.bootstrap.failures().fail(ErrorCode::kAborted, "the test ends the communicator");
    for (std::uint64_t wait = 0; wait < 2 * kStagingSlots; ++wait) one.await_slot(wait % kStagingSlots);
    one.stop();
    failed[rank] = one.times_failed();
  });
  expect_no_errors(met);  // of the streams
  EXPECT_EQ(failed[0], 1);
  EXPECT_EQ(failed[1], 1);
}

// Two ranks on two hosts, which wait for each other for a moment only.
std::vector<Met> with_short_deadline(const std::function<void(StagedRank&, int rank)>& body) {
  const UniqueId id = local_id();
  return as_ranks(2, [&](int rank) {
    CommunicatorOptions options = staged_options(rank, 2);
    options.timeout = std::chrono::milliseconds(300);
    StagedRank one(id, 2, rank, options);
    body(one, rank);
  });
}

// The next part never comes: the GPU hangs, or the program has destroyed the stream.
TEST(StagedThreads, AStreamThatPostsOnlySomePartsIsAnErrorAtTheDeadline) {
  const auto met = with_short_deadline([](StagedRank& one, int) {
    one.post_first_part(make_call(Collective::kAllReduce, 2'000'000, DataType::kF32));
    one.await_error();
  });
  EXPECT_EQ(met[0].code, ErrorCode::kTimeout);
  EXPECT_EQ(met[1].code, ErrorCode::kTimeout);
}

TEST(StagedThreads, ADeadlineNamesTheRankThatHasNotJoined) {
  const auto met = with_short_deadline([](StagedRank& one, int rank) {
    if (rank == 1) {
      while (!one.ranks.bootstrap.broken()) std::this_thread::yield();
      return;
    }
    one.collective(make_call(Collective::kBarrier, 0), nullptr, nullptr);
  });
  EXPECT_EQ(met[0].code, ErrorCode::kTimeout);
  EXPECT_NE(met[0].text.find("for rank 1"), std::string::npos) << met[0].text;
}

}  // namespace
}  // namespace slip::test_staged_calls
