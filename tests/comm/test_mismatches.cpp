// Ranks that make different calls: each collective, each kind of difference, each path of a call. Every rank gets an
// error that names both calls, soon and not at the deadline, even if it waits for no other rank.
#include <gtest/gtest.h>

#include "cpu_ranks.hpp"
#include "world_ranks.hpp"

namespace slip::test_mismatches {
namespace {

using test::Bytes;
using test::Met;
using test::Rank;

enum class Kind { kBroadcast, kScatter, kReduce, kGather, kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBarrier };
constexpr int kKinds = 9, kRanks = 3;
constexpr const char* kNames[] = {"broadcast",  "scatter",        "reduce",     "gather", "all_reduce",
                                  "all_gather", "reduce_scatter", "all_to_all", "barrier"};
const char* name_of(Kind kind) { return kNames[static_cast<int>(kind)]; }

// A call as one rank makes it.
struct Asked {
  Kind kind = Kind::kBarrier;
  std::size_t words = 2;  // of a block
  DataType type = DataType::kU32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
};

bool reduces(Kind kind) { return kind == Kind::kReduce || kind == Kind::kAllReduce || kind == Kind::kReduceScatter; }

class Caller {
 public:
  Caller(Communicator& comm, const Device& device, StreamRef stream)
      : comm_(comm), device_(device), stream_(stream), blocks_(static_cast<std::size_t>(comm.nranks())) {}

  void make(const Asked& asked) {
    const Range one = memory(asked.words), other = memory(asked.words), many = memory(asked.words * blocks_),
                more = memory(asked.words * blocks_);
    switch (asked.kind) {
      case Kind::kBroadcast: return comm_.broadcast(other, one, asked.root, stream_);
      case Kind::kScatter: return comm_.scatter(one, many, asked.root, stream_);
      case Kind::kReduce: return comm_.reduce(other, one, asked.type, asked.op, asked.root, stream_);
      case Kind::kGather: return comm_.gather(many, one, asked.root, stream_);
      case Kind::kAllReduce: return comm_.all_reduce(other, one, asked.type, asked.op, stream_);
      case Kind::kAllGather: return comm_.all_gather(many, one, stream_);
      case Kind::kReduceScatter: return comm_.reduce_scatter(one, many, asked.type, asked.op, stream_);
      case Kind::kAllToAll: return comm_.all_to_all(more, many, stream_);
      case Kind::kBarrier: return comm_.barrier(stream_);
    }
  }

 private:
  Range memory(std::size_t words) {
    buffers_.push_back(device_.alloc(words * 4, MemoryKind::kPinned));
    return buffers_.back();
  }
  Communicator& comm_;
  const Device& device_;
  const StreamRef stream_;
  const std::size_t blocks_;
  std::vector<Buffer> buffers_;
};

struct Way {
  const char* name;
  Transport transport;
  Algorithm algorithm;
  bool direct;
};

class Mismatches : public testing::TestWithParam<Way> {
 protected:
  static CommunicatorOptions options() {
    CommunicatorOptions options;
    options.transport = GetParam().transport;
    options.algorithm = GetParam().algorithm;
    options.direct = GetParam().direct;
    options.timeout = std::chrono::minutes(5);  // longer than the test may take: none of them ends at the deadline
    return options;
  }

  // One rank makes another call than the others. Returns the error that each rank gets, in this call, in the next one
  // or in finalize(): no rank continues.
  void expect_named(const Asked& asked, const Asked& different, int differing,
                    std::initializer_list<std::string> words) {
    SCOPED_TRACE(fmt::format("{} of {} words, rank {} differs", name_of(asked.kind), asked.words, differing));
    const std::vector<Device> devices(kRanks, device_);
    std::vector<Communicator> comms = Communicator::init_all(devices, options());
    const std::vector<Met> met = test::as_ranks(kRanks, [&](int rank) {
      Communicator& comm = comms[static_cast<std::size_t>(rank)];
      const Stream stream = device_.stream();
      Caller caller(comm, device_, stream);
      caller.make(rank == differing ? different : asked);
      stream.sync();
      comm.barrier(stream);
      stream.sync();
      comm.finalize();
    });
    for (const Met& one : met) {
      EXPECT_EQ(one.code, ErrorCode::kMismatch) << one.text;
      for (const std::string& word : words)
        EXPECT_NE(one.text.find(word), std::string::npos) << word << "\n" << one.text;
    }
  }

  // In a box, staged or in place, and through several pieces.
  template <class Body>
  void with_sizes(const Body& body) {
    for (const std::size_t words : {2U, 20'000U}) {
      body(words);
      if (HasFatalFailure()) return;
    }
  }

  const Device device_ = Device::open("cpu", {.compute_workers = 2});
};

INSTANTIATE_TEST_SUITE_P(Through, Mismatches,
                         testing::Values(Way{"Shared", Transport::kAuto, Algorithm::kAuto, true},
                                         Way{"Staged", Transport::kAuto, Algorithm::kAuto, false},
                                         Way{"Pipes", Transport::kAuto, Algorithm::kRing, true},
                                         Way{"Net", Transport::kNet, Algorithm::kAuto, true}),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(Mismatches, OfTheRoot) {
  with_sizes([&](std::size_t words) {
    for (int kind = 0; kind < 4; ++kind) {
      const Asked asked{.kind = static_cast<Kind>(kind), .words = words};
      for (const int differing : {0, 1, 2}) {
        Asked different = asked;
        different.root = differing == 0 ? 1 : differing;  // one rank believes to be the root, or the root does not
        expect_named(asked, different, differing, {kNames[kind], "root 0", fmt::format("root {}", different.root)});
      }
    }
  });
}

TEST_P(Mismatches, OfTheCount) {
  with_sizes([&](std::size_t words) {
    for (int kind = 0; kind < kKinds - 1; ++kind) {
      const Asked asked{.kind = static_cast<Kind>(kind), .words = words};
      Asked different = asked;
      different.words += 3;
      const std::size_t factor = reduces(asked.kind) ? 1 : 4;
      expect_named(asked, different, kind % kRanks,
                   {fmt::format("of {} U", words * factor), fmt::format("of {} U", (words + 3) * factor)});
    }
  });
}

TEST_P(Mismatches, OfTypeAndOp) {
  with_sizes([&](std::size_t words) {
    int rank = 0;
    for (const Kind kind : {Kind::kReduce, Kind::kAllReduce, Kind::kReduceScatter}) {
      const Asked asked{.kind = kind, .words = words};
      Asked different = asked;
      different.type = DataType::kF32;
      expect_named(asked, different, rank++ % kRanks, {"U32", "F32"});
      different = asked;
      different.op = ReduceOp::kMax;
      expect_named(asked, different, rank++ % kRanks, {"by sum", "by max"});
    }
  });
}

TEST_P(Mismatches, OfTheKind) {
  with_sizes([&](std::size_t words) {
    for (int kind = 0; kind < kKinds; ++kind) {
      const Asked asked{.kind = static_cast<Kind>(kind), .words = words};
      Asked different = asked;
      different.kind = static_cast<Kind>((kind + 1) % kKinds);
      expect_named(asked, different, (kind + 1) % kRanks, {name_of(asked.kind), name_of(different.kind)});
    }
  });
}

// In these calls no rank waits, so none notices at once. The first call in which a rank waits finds it.
TEST_P(Mismatches, OfAnEarlierCallAreFoundLater) {
  const std::vector<Device> devices(2, device_);
  for (const int before : {0, 1, 5, 20}) {
    SCOPED_TRACE(before);
    std::vector<Communicator> comms = Communicator::init_all(devices, options());
    const std::vector<Met> met = test::as_ranks(2, [&](int rank) {
      const Stream stream = device_.stream();
      Caller caller(comms[static_cast<std::size_t>(rank)], device_, stream);
      for (int i = 0; i < before; ++i) caller.make({.kind = Kind::kBroadcast, .root = 0});
      stream.sync();
      caller.make({.kind = Kind::kScatter, .root = rank});
      stream.sync();
      for (int i = 0; i < 3; ++i) caller.make({.kind = Kind::kBroadcast, .root = 0});
      caller.make({.kind = Kind::kAllReduce});
      stream.sync();
    });
    for (const Met& one : met) {
      EXPECT_EQ(one.code, ErrorCode::kMismatch) << one.text;
      for (const int root : {0, 1}) {
        const std::string call = fmt::format("scatter of 8 U8, root {}, call {}", root, before + 1);
        EXPECT_NE(one.text.find(call), std::string::npos) << call << "\n" << one.text;
      }
    }
  }
}

// The last call of all: finalize() finds it.
TEST_P(Mismatches, OfTheLastCallAreFoundAtTheEnd) {
  const std::vector<Device> devices(2, device_);
  for (const Kind kind : {Kind::kBroadcast, Kind::kScatter}) {
    std::vector<Communicator> comms = Communicator::init_all(devices, options());
    const std::vector<Met> met = test::as_ranks(2, [&](int rank) {
      Communicator& comm = comms[static_cast<std::size_t>(rank)];
      const Stream stream = device_.stream();
      Caller caller(comm, device_, stream);
      caller.make({.kind = kind, .root = rank});
      stream.sync();
      comm.finalize();
    });
    for (const Met& one : met) {
      EXPECT_EQ(one.code, ErrorCode::kMismatch) << one.text;
      for (const char* word : {name_of(kind), "root 0", "root 1"})
        EXPECT_NE(one.text.find(word), std::string::npos) << word << "\n" << one.text;
    }
    for (const Communicator& comm : comms) EXPECT_EQ(comm.error()->code(), ErrorCode::kMismatch);
  }
}

// One rank makes an additional call of a kind that waits for no other rank.
TEST_P(Mismatches, OfTheNumberOfCalls) {
  const std::vector<Device> devices(2, device_);
  std::vector<Communicator> comms = Communicator::init_all(devices, options());
  const std::vector<Met> met = test::as_ranks(2, [&](int rank) {
    Communicator& comm = comms[static_cast<std::size_t>(rank)];
    const Stream stream = device_.stream();
    Caller caller(comm, device_, stream);
    caller.make({.kind = Kind::kBarrier});
    if (rank == 0) caller.make({.kind = Kind::kBroadcast, .root = 0});
    stream.sync();
    comm.finalize();
  });
  for (const Met& one : met) {
    EXPECT_EQ(one.code, ErrorCode::kMismatch) << one.text;
    for (const char* word : {"made 1", "made 2", "rank 0 alone called broadcast of 8 U8, root 0, call 2"})
      EXPECT_NE(one.text.find(word), std::string::npos) << word << "\n" << one.text;
  }
}

// In virtual time all ranks are compared in the call itself.
TEST(MismatchesInVirtualTime, AreFoundInTheCall) {
  for (int kind = 0; kind < 4; ++kind) {
    SCOPED_TRACE(kNames[kind]);
    test::WorldRanks ranks(test::sim_world(), 2, test::with(Algorithm::kAuto, std::chrono::minutes(5)));
    std::vector<Caller> callers;
    for (std::size_t rank = 0; rank < 2; ++rank)
      callers.emplace_back(ranks.comms[rank], ranks.devices[rank], ranks.streams[rank]);
    for (std::size_t rank = 0; rank < 2; ++rank)
      callers[rank].make({.kind = static_cast<Kind>(kind), .root = static_cast<int>(rank)});
    for (std::size_t rank = 0; rank < 2; ++rank) {
      try {
        ranks.streams[rank].sync();
        ADD_FAILURE() << "rank " << rank << " went on";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
        for (const char* word : {kNames[kind], "root 0", "root 1"})
          EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      }
      EXPECT_EQ(ranks.comms[rank].error()->code(), ErrorCode::kMismatch);
    }
  }
}

}  // namespace
}  // namespace slip::test_mismatches
