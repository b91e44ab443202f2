// Small calls that a rank makes again, with the same ranges: they take a shorter way (KnownCalls). Results, errors and
// plans must be those of a first call.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>

#include "base/sync.hpp"
#include "cpu_ranks.hpp"
#include "slip/event.hpp"
#include "slip/observer.hpp"
#include "slip/plan.hpp"
#include "support/errors.hpp"

namespace slip::test_repeated_calls {
namespace {

using test::expect_no_errors;
using test::fails;
using test::Met;
using test::Rank;
using test::with_ranks;

constexpr std::size_t kWord = sizeof(std::uint32_t);

Buffer words(const Rank& rank, std::size_t count, std::uint32_t value = 0) {
  Buffer buffer = rank.device.alloc(count * kWord, MemoryKind::kPinned);
  std::ranges::fill(buffer.host_write<std::uint32_t>().span(), value);
  return buffer;
}

std::vector<std::uint32_t> read(const Rank& rank, const Buffer& buffer) {
  rank.stream.sync();
  const HostView<const std::uint32_t> view = buffer.host_read<std::uint32_t>();
  return {view.begin(), view.end()};
}

void sum(Rank& rank, Range to, Range from) {
  rank.comm.all_reduce(to, from, DataType::kU32, ReduceOp::kSum, rank.stream);
}

// More different calls than KnownCalls keeps, mixed: each is repeated, displaced by others and made again.
TEST(RepeatedCalls, GiveTheResultsOfTheirOwnInputs) {
  constexpr int kRanks = 3, kRounds = 600;
  expect_no_errors(with_ranks(kRanks, [&](Rank& rank) {
    std::mt19937 random(7);  // the same on all ranks
    const auto me = static_cast<std::uint32_t>(rank.comm.rank());
    std::vector<Buffer> in, out;
    for (const std::size_t count : {3U, 6U, 30U, 300U}) {
      in.push_back(words(rank, count));
      out.push_back(words(rank, count * kRanks));
    }
    for (int round = 0; round < kRounds; ++round) {
      const std::size_t which = random() % in.size();
      const auto base = static_cast<std::uint32_t>(random() % 1000);
      const auto what = random() % 6;
      const auto root = static_cast<int>(random() % kRanks);
      Buffer &from = in[which], &to = out[which];
      std::ranges::fill(from.host_write<std::uint32_t>().span(), base + me);
      const std::size_t count = from.bytes() / kWord;
      const Range part = to.slice(0, from.bytes());
      SCOPED_TRACE(testing::Message() << "round " << round << " call " << what << " of " << count);
      std::uint32_t expected = 0;
      switch (what) {
        case 0:
          sum(rank, part, from);
          expected = 3 * base + 3;
          break;
        case 1:
          rank.comm.all_reduce(part, from, DataType::kU32, ReduceOp::kMax, rank.stream);
          expected = base + 2;
          break;
        case 2:
          rank.comm.broadcast(part, from, root, rank.stream);
          expected = base + static_cast<std::uint32_t>(root);
          break;
        case 3:
          rank.comm.all_gather(to, from, rank.stream);
          expected = base;
          break;
        case 4:
          rank.comm.reduce(part, from, DataType::kU32, ReduceOp::kSum, root, rank.stream);
          expected = 3 * base + 3;
          break;
        default: rank.comm.barrier(rank.stream); continue;
      }
      const std::vector<std::uint32_t> got = read(rank, to);
      if (what == 4 && rank.comm.rank() != root) continue;
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], expected);
      if (what == 3) {
        for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], base + i / count);
      }
    }
  }));
}

TEST(RepeatedCalls, EachFactorCounts) {
  expect_no_errors(with_ranks(2, [&](Rank& rank) {
    const Buffer in = words(rank, 2, 5), out = words(rank, 2);
    for (const double factor : {2.0, 3.0, 2.0, 7.0}) {
      rank.comm.all_reduce(out, in, DataType::kU32, premul_sum(factor), rank.stream);
      EXPECT_EQ(read(rank, out)[1], static_cast<std::uint32_t>(2 * 5 * factor));
    }
  }));
}

// The first call after the buffer was freed fails as any call with it, and the next buffer at its address works.
TEST(RepeatedCalls, AFreedBufferIsRefused) {
  expect_no_errors(with_ranks(2, [&](Rank& rank) {
    Buffer data = words(rank, 2, 1);
    const Range freed = data;
    for (int i = 0; i < 3; ++i) sum(rank, data, data);
    rank.stream.sync();
    data = Buffer();
    EXPECT_TRUE(fails([&] { sum(rank, freed, freed); }, ErrorCode::kInvalidHandle, {"freed"}));
    const Buffer next = words(rank, 2, 4);
    for (int i = 0; i < 3; ++i) sum(rank, next, next);
    EXPECT_EQ(read(rank, next)[0], 4U * 8);
  }));
}

TEST(RepeatedCalls, OtherSizesAreChecked) {
  expect_no_errors(with_ranks(2, [&](Rank& rank) {
    const Buffer data = words(rank, 8, 1);
    const Range two = data.slice(0, 2 * kWord), next = data.slice(kWord, 2 * kWord);
    for (int i = 0; i < 3; ++i) sum(rank, two, two);
    EXPECT_TRUE(fails([&] { sum(rank, data.slice(0, kWord), two); }, ErrorCode::kInvalidValue, {"expected 8 and 8"}));
    EXPECT_TRUE(fails([&] { sum(rank, next, two); }, ErrorCode::kInvalidValue, {"overlap"}));
    EXPECT_TRUE(fails([&] { rank.comm.broadcast(two, two, 2, rank.stream); }, ErrorCode::kInvalidValue, {"root 2"}));
  }));
}

TEST(RepeatedCalls, AreCapturedLikeAFirstCall) {
  expect_no_errors(with_ranks(2, [&](Rank& rank) {
    const Buffer data = words(rank, 2, 1);
    for (int i = 0; i < 3; ++i) sum(rank, data, data);
    EXPECT_EQ(read(rank, data)[0], 8U);
    rank.stream.begin_capture();
    sum(rank, data, data);
    Plan plan = rank.stream.end_capture();
    EXPECT_EQ(read(rank, data)[0], 8U);
    rank.stream.launch(plan);
    EXPECT_EQ(read(rank, data)[0], 16U);
    sum(rank, data, data);
    EXPECT_EQ(read(rank, data)[0], 32U);
  }));
}

// Rank 1 makes another call than before. Rank 0 repeats its call, which fails while it is submitted; a point that rank
// 0 recorded before the call does not report it.
TEST(RepeatedCalls, ThatDifferAreReportedByTheCallAndNotByPointsBeforeIt) {
  std::atomic<bool> differs{false};
  const std::vector<Met> met = with_ranks(2, [&](Rank& rank) {
    const Buffer data = words(rank, 2, 1);
    for (int i = 0; i < 3; ++i) sum(rank, data, data);
    rank.stream.sync();
    if (rank.comm.rank() == 1) {
      rank.comm.all_reduce(data, data, DataType::kU32, ReduceOp::kMax, rank.stream);
      differs.store(true, std::memory_order_release);
      differs.notify_one();
    } else {
      const Event before = rank.stream.record();
      differs.wait(false, std::memory_order_acquire);
      sum(rank, data, data);
      EXPECT_TRUE(before.query());
      before.sync();
    }
    rank.stream.sync();
  });
  for (const Met& one : met) {
    EXPECT_EQ(one.code, ErrorCode::kMismatch) << one.text;
    EXPECT_NE(one.text.find("by max"), std::string::npos) << one.text;
  }
}

// Streams of two devices use the same buffers by turns; the communicator's calls stay in one order.
TEST(RepeatedCalls, OnTwoDevicesByTurns) {
  expect_no_errors(with_ranks(2, [&](Rank& rank) {
    const Device other = Device::open("cpu", {.compute_workers = 2});
    const Stream stream = other.stream();
    const Buffer data = words(rank, 2, 1);
    for (int i = 0; i < 4; ++i) {
      sum(rank, data, data);
      rank.stream.sync();
      rank.comm.all_reduce(data, data, DataType::kU32, ReduceOp::kSum, stream);
      stream.sync();
    }
    EXPECT_EQ(read(rank, data)[1], 256U);
  }));
}

// The next device often gets the address of the one that was closed before.
TEST(RepeatedCalls, OnAClosedDeviceAreNotThoseOnTheNextOne) {
  expect_no_errors(with_ranks(1, [&](Rank& rank) {
    for (int i = 0; i < 4; ++i) {
      {
        const Device closed = Device::open("cpu", {.compute_workers = 2});
        const Stream stream = closed.stream();
        for (int call = 0; call < 3; ++call) rank.comm.barrier(stream);
        stream.sync();
      }
      const Device next = Device::open("sim:h200");
      const Stream stream = next.stream();
      EXPECT_TRUE(fails([&] { rank.comm.barrier(stream); }, ErrorCode::kUnsupported, {"different clocks"}));
    }
  }));
}

TEST(RepeatedCalls, NeedTheAccessToAPeerEachTime) {
  expect_no_errors(with_ranks(1, [&](Rank& rank) {
    const Device peer = Device::open("cpu", {.compute_workers = 2});
    const Buffer in = peer.alloc(8), out = rank.device.alloc(8);
    rank.device.enable_peer_access(peer);
    for (int i = 0; i < 3; ++i) sum(rank, out, in);
    rank.stream.sync();
    rank.device.disable_peer_access(peer);
    EXPECT_TRUE(fails([&] { sum(rank, out, in); }, ErrorCode::kPeerAccessNotEnabled, {"enable_peer_access"}));
    EXPECT_TRUE(fails([&] { sum(rank, in, out); }, ErrorCode::kPeerAccessNotEnabled, {"enable_peer_access"}));
    rank.device.enable_peer_access(peer);
    sum(rank, out, in);
    rank.stream.sync();
  }));
}

// The error of a call: its code and text, which names the line of the call.
std::string error_of(Rank& rank, const Buffer& data, StreamRef stream) {
  try {
    rank.comm.all_reduce(data, data, DataType::kU32, ReduceOp::kSum, stream);
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.code())) + " " + error.what();
  }
  return "none";
}

// In each state that a known call does not check itself, it fails as a first call does.
TEST(RepeatedCalls, FailAsAFirstCallDoes) {
  expect_no_errors(with_ranks(1, [&](Rank& rank) {
    const Buffer known = words(rank, 2, 1), first = words(rank, 2, 1);
    for (int i = 0; i < 3; ++i) sum(rank, known, known);
    const auto compare = [&](const char* state, StreamRef stream) {
      const std::string error = error_of(rank, known, stream);
      EXPECT_EQ(error, error_of(rank, first, stream)) << state;
      EXPECT_NE(error, "none") << state;
    };

    rank.stream.host([&] { compare("in a host function", rank.stream); });
    rank.stream.sync();

    std::optional<Stream> closed = rank.device.stream();
    const StreamRef destroyed = *closed;
    closed.reset();
    compare("destroyed stream", destroyed);

    const Stream failed = rank.device.stream();
    const Kernel wrong{"wrong", [](const Args&) { throw std::runtime_error("as asked"); }};
    failed.launch(wrong, {});
    EXPECT_TRUE(fails([&] { failed.sync(); }, ErrorCode::kLaunchFailed));
    compare("failed stream", failed);

    const Stream captured = rank.device.stream();
    captured.begin_capture();
    compare("legacy stream in a capture", rank.device.default_stream());
    EXPECT_TRUE(fails([&] { static_cast<void>(captured.end_capture()); }, ErrorCode::kCaptureInvalidated));

    sum(rank, known, known);
    rank.stream.sync();
    rank.comm.abort();
    compare("aborted communicator", rank.stream);
  }));
}

// The records of one stream, as texts without times.
class StreamLog final : public Observer {
 public:
  void on(const Record& record) override {
    const base::LockGuard lock(mutex_);
    if (record.stream == 0 || record.stream != stream_) return;
    std::string text = fmt::format("kind {} {} {} at {}:{}", static_cast<int>(record.kind), record.name.text(),
                                   engine_name(record.engine), record.here.file, record.here.line);
    if (record.op) {
      text += fmt::format(" {} bytes", record.op->cost.bytes);
      for (const Ranges& ranges : {record.op->reads, record.op->writes}) {
        for (const Range& range : ranges) text += fmt::format(" {}+{}:{}", range.id, range.offset, range.bytes);
      }
    }
    texts_.push_back(text);
    if (record.kind == RecordKind::kSubmit) positions_.push_back(record.position);
  }
  void begin(std::uint64_t stream) {
    const base::LockGuard lock(mutex_);
    stream_ = stream;
    texts_.clear();
    positions_.clear();
  }
  std::vector<std::string> texts() const {
    const base::LockGuard lock(mutex_);
    return texts_;
  }
  std::vector<std::uint64_t> positions() const {
    const base::LockGuard lock(mutex_);
    return positions_;
  }

 private:
  mutable base::Mutex mutex_;
  std::uint64_t stream_ SLIP_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> texts_ SLIP_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> positions_ SLIP_GUARDED_BY(mutex_);
};

struct Attached : base::NoCopy {
  explicit Attached(Observer& which) : observer(which) { attach_observer(observer); }
  ~Attached() { detach_observer(observer); }
  Observer& observer;
};

// The observer is attached when the call is known already.
TEST(RepeatedCalls, AreReportedLikeAFirstCall) {
  expect_no_errors(with_ranks(1, [&](Rank& rank) {
    const Buffer data = words(rank, 2, 1);
    for (int i = 0; i < 3; ++i) sum(rank, data, data);
    rank.stream.sync();
    StreamLog log;
    const Attached attached(log);
    const auto records = [&](StreamRef stream, int calls) {
      log.begin(stream.id());
      for (int i = 0; i < calls; ++i) {
        rank.comm.all_reduce(data, data, DataType::kU32, ReduceOp::kSum, stream);
        stream.sync();
      }
      return log.texts();
    };
    const std::vector<std::string> got = records(rank.stream, 1);
    static_cast<void>(records(rank.stream, 3));
    const std::vector<std::uint64_t> positions = log.positions();
    const Device other = Device::open("cpu", {.compute_workers = 2});
    const Stream first = other.stream();  // no call on this device is known
    const std::vector<std::string> expected = records(first, 1);
    EXPECT_GE(expected.size(), 2U);  // submitted, and run
    EXPECT_EQ(got, expected);
    ASSERT_EQ(positions.size(), 3U);
    EXPECT_LT(positions[0], positions[1]);
    EXPECT_LT(positions[1], positions[2]);
  }));
}

}  // namespace
}  // namespace slip::test_repeated_calls
