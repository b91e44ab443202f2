// Which engine carries the calls of ranks on GPUs (SLIP_NCCL), without a GPU: which files are accepted as NCCL, the
// choice for given ranks, and waiting for a communicator of NCCL. The library is fake_nccl.c.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/delegate/nccl_connection.hpp"
#include "comm/delegate/nccl_library.hpp"

namespace slip::comm::test_delegate {
namespace {

std::string build_folder() { return std::filesystem::path(SLIP_FAKE_NCCL).parent_path().string(); }

// A variable of the fake library.
int& fake(const char* name) {
  static void* const kHandle = dlopen(SLIP_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
  return *static_cast<int*>(dlsym(kHandle, name));
}

// Each offer is that of another process.
EngineOffer offer(int gpu, int host = 1, NcclRequest request = NcclRequest::kPath) {
  static std::uint64_t processes = 0;
  EngineOffer result;
  result.process = ++processes;
  result.gpu[0] = static_cast<char>(gpu);
  result.host = static_cast<std::uint64_t>(host);
  result.request = request;
  result.version = 22809;
  return result;
}

EngineChoice choose(const std::vector<EngineOffer>& offers) { return choose_engine(offers); }

TEST(EngineChoice, TheVariableIsAutoOffOrAFile) {
  EXPECT_EQ(nccl_request_of(""), NcclRequest::kNone);
  EXPECT_EQ(nccl_request_of("off"), NcclRequest::kNone);
  EXPECT_EQ(nccl_request_of("auto"), NcclRequest::kAuto);
  EXPECT_EQ(nccl_request_of("/usr/lib/libnccl.so.2"), NcclRequest::kPath);
}

TEST(EngineChoice, NcclCarriesRanksWithAGpuEach) {
  for (const NcclRequest request : {NcclRequest::kAuto, NcclRequest::kPath}) {
    EXPECT_TRUE(choose({offer(1, 1, request)}).uses_nccl);
    EXPECT_TRUE(choose({offer(1, 1, request), offer(2, 1, request), offer(3, 1, request)}).uses_nccl);
    EXPECT_TRUE(choose({offer(1, 1, request), offer(1, 2, request)}).uses_nccl) << "different hosts for NCCL";
  }
  EXPECT_FALSE(choose({offer(1, 1, NcclRequest::kNone)}).uses_nccl);
  std::vector<EngineOffer> offers{offer(1), offer(2)};
  EXPECT_FALSE(choose(offers).polls);
  offers[1].polls = 1;
  EXPECT_TRUE(choose(offers).polls) << "all ranks, if one does";
}

TEST(EngineChoice, SeveralRanksOnOneGpuAreRefusedOrSlipstreams) {
  const EngineChoice refused = choose({offer(1), offer(2), offer(1)});
  EXPECT_TRUE(refused.is_error);
  EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.reason.find("ranks 0 and 2 are on one GPU, and NCCL refuses several ranks on one GPU; unset "
                                "SLIP_NCCL"),
            std::string::npos)
      << refused.reason;
  const EngineChoice own = choose({offer(1, 1, NcclRequest::kAuto), offer(1, 1, NcclRequest::kAuto)});
  EXPECT_FALSE(own.uses_nccl);
  EXPECT_FALSE(own.is_error);
  EXPECT_NE(own.reason.find("ranks 0 and 1 are on one GPU"), std::string::npos) << own.reason;
}

TEST(EngineChoice, SeveralRanksOfOneProcessAreRefusedOrSlipstreams) {
  std::vector<EngineOffer> offers{offer(1), offer(2), offer(3)};
  offers[2].process = offers[1].process;
  const EngineChoice refused = choose(offers);
  EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.reason.find("ranks 1 and 2 are in one process"), std::string::npos) << refused.reason;
  for (EngineOffer& one : offers) one.request = NcclRequest::kAuto;
  EXPECT_FALSE(choose(offers).uses_nccl);
  EXPECT_FALSE(choose(offers).is_error);
}

TEST(EngineChoice, ALibraryThatOneRankLacksIsNotUsed) {
  std::vector<EngineOffer> offers{offer(1), offer(2)};
  offers[1].set_problem("/nowhere: No such file or directory");
  const EngineChoice refused = choose(offers);
  EXPECT_TRUE(refused.is_error);
  EXPECT_NE(refused.reason.find("rank 1: /nowhere: No such file"), std::string::npos) << refused.reason;
  for (EngineOffer& one : offers) one.request = NcclRequest::kAuto;
  EXPECT_FALSE(choose(offers).uses_nccl);
  EXPECT_FALSE(choose(offers).is_error);
}

TEST(EngineChoice, AllRanksNeedTheSameVersionAndTheSameVariable) {
  std::vector<EngineOffer> offers{offer(1), offer(2)};
  offers[1].version = 22703;
  EXPECT_NE(choose(offers).reason.find("rank 0 has NCCL 2.28.9 and rank 1 has 2.27.3"), std::string::npos);
  offers[1] = offer(2, 1, NcclRequest::kNone);
  const EngineChoice mixed = choose(offers);
  EXPECT_EQ(mixed.code, ErrorCode::kMismatch);
  EXPECT_NE(mixed.reason.find("names a library on rank 0 and is not set on rank 1"), std::string::npos) << mixed.reason;
}

TEST(EngineChoice, ADeterministicCommunicatorIsSlipstreams) {
  EngineOffer one = offer(1, 1, NcclRequest::kAuto);
  one.deterministic = 1;
  EXPECT_FALSE(choose({one}).uses_nccl);
  one.request = NcclRequest::kPath;
  EXPECT_TRUE(choose({one}).is_error);
}

TEST(EngineChoice, ALongProblemIsCut) {
  EngineOffer one;
  one.set_problem(std::string(1000, 'x'));
  EXPECT_EQ(std::string(one.problem), std::string(sizeof(one.problem) - 1, 'x'));
}

// `left`: the number of calls of each departed rank.
DepartedCalls departed(const std::map<int, std::uint64_t>& left) {
  return [left](int rank) {
    const auto found = left.find(rank);
    return found == left.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(NcclDepartures, ARankThatLeftAfterItsPartOfACollectiveIsNotAwaited) {
  const Signature call = Signature::of({.kind = Collective::kGather, .elements = 8}, 7);
  const std::vector<int> others{1, 2};
  for (const std::uint64_t calls : {7, 8}) {
    const std::vector<int> awaited = awaited_ranks(call, others, departed({{2, calls}}));
    EXPECT_EQ(awaited, std::vector<int>{1});
    EXPECT_FALSE(find_departed(call, awaited, departed({{2, calls}})));
  }
  const std::vector<int> awaited = awaited_ranks(call, others, departed({{2, 6}}));
  EXPECT_EQ(awaited, others);
  EXPECT_EQ(find_departed(call, awaited, departed({{2, 6}})), 2);
  EXPECT_FALSE(find_departed(call, others, departed({})));
}

TEST(NcclDepartures, CallNumbersWrapAround) {
  const std::uint64_t wrapped = (std::uint64_t{1} << 32) + 3;
  const Signature call = Signature::of({.kind = Collective::kBarrier}, wrapped);
  EXPECT_TRUE(awaited_ranks(call, {1}, departed({{1, wrapped}})).empty());
  EXPECT_EQ(awaited_ranks(call, {1}, departed({{1, wrapped - 5}})), std::vector<int>{1});
}

TEST(NcclDepartures, MessagesEndAsLongAsOnePeerIsThere) {
  const Signature call = Signature::of_message(8, 0);
  const std::vector<int> peers{1, 2};
  EXPECT_EQ(awaited_ranks(call, peers, departed({{2, 9}})), peers);
  EXPECT_FALSE(find_departed(call, peers, departed({{2, 9}})));
  EXPECT_EQ(find_departed(call, peers, departed({{1, 0}, {2, 9}})), 1);
  EXPECT_FALSE(find_departed(call, {}, departed({{1, 0}})));
}

TEST(NcclLibrary, AFileThatIsNotNcclIsRefused) {
  EXPECT_EQ(find_nccl("/nowhere/libnccl.so.2").problem, "/nowhere/libnccl.so.2: No such file or directory");
  EXPECT_EQ(find_nccl("libm.so.6").problem, "libm.so.6: this is not NCCL: it has no ncclGetVersion");
  EXPECT_NE(find_nccl(SLIP_SOURCE_DIR "/README.md").problem.find("invalid ELF header"), std::string::npos);
}

TEST(NcclLibrary, SlipstreamsOwnLibraryIsRefused) {
  const std::string own = build_folder() + "/slipstream/libnccl.so.2";
  ASSERT_TRUE(std::filesystem::exists(own)) << own;
  const NcclSearch found = find_nccl(own);
  EXPECT_EQ(found.loaded, nullptr);
  EXPECT_EQ(found.problem, own +
                               ": this is Slipstream's own libnccl.so.2, which would hand its calls to itself: name "
                               "NVIDIA's");
}

TEST(NcclLibrary, AnOldVersionIsRefused) {
  fake("fake_version") = 21307;
  const std::string spelled = build_folder() + "/./" + std::filesystem::path(SLIP_FAKE_NCCL).filename().string();
  const std::string problem = find_nccl(spelled).problem;
  fake("fake_version") = 22809;
  EXPECT_NE(problem.find("this is NCCL 2.13.7: at least 2.14.0 is needed"), std::string::npos) << problem;
}

TEST(NcclLibrary, TheRightOneIsFoundOnce) {
  const NcclSearch found = find_nccl(SLIP_FAKE_NCCL);
  ASSERT_NE(found.loaded, nullptr) << found.problem;
  EXPECT_EQ(found.loaded->version, 22809);
  EXPECT_EQ(found.loaded->text(), std::string("NCCL 2.28.9 (") + SLIP_FAKE_NCCL + ")");
  EXPECT_EQ(find_nccl(SLIP_FAKE_NCCL).loaded, found.loaded);
}

class NcclConnections : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* const name : {"fake_result", "fake_state", "fake_polls_left", "fake_aborts", "fake_destroyed",
                                   "fake_splits", "fake_revoked", "fake_finalized"})
      fake(name) = 0;
    fake("fake_comm_blocks") = fake("fake_child_blocks") = -1;
  }
  static const NcclLibrary& library() { return *find_nccl(SLIP_FAKE_NCCL).loaded; }
  static void give_up() { throw Error(ErrorCode::kTimeout, "too late"); }
};

TEST_F(NcclConnections, JoinWaitsUntilNcclIsReadyAndTheEndDestroys) {
  fake("fake_polls_left") = 3;
  int checks = 0;
  {
    NcclConnection connection(library(), NcclCallMode::kPolled);
    connection.join({}, 2, 0, [&] { ++checks; });
    EXPECT_EQ(checks, 3);
    connection.run([](NcclComm*) { return NcclResult::kSuccess; }, give_up);
    EXPECT_FALSE(connection.error());
  }
  wait_for_destroyed_nccl(30'000'000'000);
  EXPECT_EQ(fake("fake_destroyed"), 1);
  EXPECT_EQ(fake("fake_aborts"), 0);
}

TEST_F(NcclConnections, AJoinThatIsTooLateAborts) {
  fake("fake_polls_left") = 1'000'000;
  {
    NcclConnection connection(library(), NcclCallMode::kPolled);
    EXPECT_THROW(connection.join({}, 2, 0, give_up), Error);
  }
  EXPECT_EQ(fake("fake_aborts"), 1);
  EXPECT_EQ(fake("fake_destroyed"), 0);
}

TEST_F(NcclConnections, AnErrorOfNcclHasItsTextAndACode) {
  NcclConnection connection(library(), NcclCallMode::kPolled);
  connection.join({}, 2, 0, [] {});
  try {
    connection.run([](NcclComm*) { return NcclResult::kSystemError; }, [] {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find("NCCL 2.28.9: unhandled system error (the last error)"), std::string::npos)
        << error.what();
  }
  fake("fake_state") = static_cast<int>(NcclResult::kRemoteError);
  ASSERT_TRUE(connection.error());
  EXPECT_EQ(connection.error()->code(), ErrorCode::kRankLost);
  connection.abort();
}

TEST_F(NcclConnections, AnAbortEndsACallThatWaits) {
  NcclConnection connection(library(), NcclCallMode::kPolled);
  connection.join({}, 2, 0, [] {});
  fake("fake_polls_left") = 1'000'000'000;
  std::thread other;
  EXPECT_THROW(connection.run([](NcclComm*) { return NcclResult::kInProgress; },
                              [&] {
                                if (!other.joinable()) other = std::thread([&] { connection.abort(); });
                              }),
               Error);
  other.join();
  EXPECT_EQ(fake("fake_aborts"), 1);
  EXPECT_THROW(connection.run([](NcclComm*) { return NcclResult::kSuccess; }, [] {}), Error);
  fake("fake_polls_left") = 0;
}

TEST_F(NcclConnections, DirectCallsRunOnABlockingCommunicatorThatIsSplitOff) {
  ASSERT_EQ(best_call_mode(library()), NcclCallMode::kDirect);
  NcclLibrary old = library();
  old.functions.comm_revoke = nullptr;
  EXPECT_EQ(best_call_mode(old), NcclCallMode::kPolled) << "before NCCL 2.28";
  fake("fake_polls_left") = 5;
  {
    NcclConnection connection(library(), NcclCallMode::kDirect);
    connection.join({}, 2, 0, [] {});
    EXPECT_EQ(fake("fake_splits"), 1);
    EXPECT_EQ(fake("fake_comm_blocks"), 0) << "init must not wait inside NCCL";
    EXPECT_EQ(fake("fake_child_blocks"), 1);
    connection.end_init();
    NcclComm* used = nullptr;
    std::int64_t since = 0;
    connection.run(
        [&](NcclComm* comm) {
          used = comm;
          since = connection.inside_since_ns();
          return NcclResult::kSuccess;
        },
        give_up);
    EXPECT_EQ(static_cast<void*>(used), &fake("fake_child"));
    EXPECT_GT(since, 0);
    EXPECT_EQ(connection.inside_since_ns(), 0);
  }
  wait_for_destroyed_nccl(30'000'000'000);
  EXPECT_EQ(fake("fake_finalized"), 2);
  EXPECT_EQ(fake("fake_destroyed"), 2);
}

// The thread inside the call holds the connection. A revoke makes the call return; only then comes the abort.
TEST_F(NcclConnections, AnAbortRevokesACallThatWaitsInsideNccl) {
  NcclConnection connection(library(), NcclCallMode::kDirect);
  connection.join({}, 2, 0, [] {});
  connection.end_init();
  std::thread other;
  int aborts_inside = -1;
  const auto call = [&](NcclComm*) {
    other = std::thread([&] { connection.abort(); });
    while (__atomic_load_n(&fake("fake_revoked"), __ATOMIC_ACQUIRE) == 0) std::this_thread::yield();
    aborts_inside = __atomic_load_n(&fake("fake_aborts"), __ATOMIC_ACQUIRE);
    return NcclResult::kInvalidUsage;
  };
  EXPECT_THROW(connection.run(call, [] { throw Error(ErrorCode::kRankLost, "rank 1 is lost"); }), Error);
  other.join();
  EXPECT_EQ(aborts_inside, 0);
  EXPECT_EQ(fake("fake_aborts"), 1);
  wait_for_destroyed_nccl(30'000'000'000);
}

}  // namespace
}  // namespace slip::comm::test_delegate
