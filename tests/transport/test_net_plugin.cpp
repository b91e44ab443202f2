// Network plug-ins of NCCL that cannot be loaded, that fail, or that report nonsense: an error that names the library,
// the function and the rank, never a hang. Also what a connection over a plug-in has beyond the tests of all networks.
#include <fmt/format.h>
#include <time.h>

#include "support/errors.hpp"
#include "support/forked.hpp"
#include "transport/net/net_choice.hpp"
#include "transport/net_ends.hpp"
#include "transport/plugin_nets.hpp"

namespace slip::test::test_net_plugin {
namespace {

struct PluginEnds : Ends {
  explicit PluginEnds(const std::string& name) : Ends(plugin_named(name)) {}
};

// The ends have not exchanged their addresses in the plug-in's network yet.
struct NewEnds : Ends {
  explicit NewEnds(const std::string& name = "v9") : Ends(plugin_named(name), local_options(0), Meet::kNo) {}
};

// The versions of the interface: their functions have different parameters.
constexpr const char* kVersions[] = {"v8", "v9", "v10", "v11"};

std::string file_of(const std::string& version) { return "libnccl-net-" + version + ".so"; }

std::string problem(const testing::AssertionResult& result) { return result ? "" : result.message(); }

// Drives both ends until one of them throws.
void drive_both(Ends& ends) {
  const std::int64_t deadline = long_deadline().at_ns;
  while (base::now_ns() < deadline) {
    static_cast<void>(ends.receiver->progress());
    static_cast<void>(ends.sender->progress());
  }
}

// A child sees other properties of a plug-in than this process, which has loaded it already.
void expect_in_child(const std::string& faults, const std::function<std::string()>& body, const std::string& expected) {
  const Child child([&] {
    const Fault fault(faults);
    return body();
  });
  EXPECT_EQ(child.report(), expected);
}

TEST(PluginLibraries, AMissingFileIsNamed) {
  EXPECT_TRUE(fails([] { transport::net_plugin("/nowhere/libnccl-net.so"); }, ErrorCode::kIo,
                    {"/nowhere/libnccl-net.so", "SLIP_NET=plugin:", "LD_LIBRARY_PATH"}));
  // A name stands for libnccl-net-NAME.so, too.
  EXPECT_TRUE(
      fails([] { transport::net_plugin("nosuch"); }, ErrorCode::kIo, {"nosuch: cannot", "libnccl-net-nosuch.so"}));
  EXPECT_TRUE(fails([] { transport::net_plugin(""); }, ErrorCode::kIo, {"libnccl-net.so"}));
}

TEST(PluginLibraries, ALibraryWithoutATableIsRefused) {
  EXPECT_TRUE(fails([] { plugin_named("empty"); }, ErrorCode::kUnsupported,
                    {"libnccl-net-empty.so", "ncclNetPlugin_v8", "no network plug-in"}));
  EXPECT_TRUE(fails([] { plugin_named("v7"); }, ErrorCode::kUnsupported,
                    {"libnccl-net-v7.so", "only ncclNetPlugin_v7", "use a release"}));
}

TEST(PluginLibraries, AMissingFunctionIsNamed) {
  EXPECT_TRUE(fails([] { plugin_named("hole"); }, ErrorCode::kUnsupported,
                    {"libnccl-net-hole.so", "ncclNetPlugin_v9", "function isend"}));
}

TEST(PluginLibraries, FunctionsThatFailAtTheStartAreNamed) {
  const std::pair<const char*, const char*> kFaults[] = {{"init=fail", "in init: ncclSystemError (2)"},
                                                         {"devices=fail", "in devices"},
                                                         {"devices=0", "found 0 network devices"},
                                                         {"devices=many", "found 1073741824 network devices"},
                                                         {"getProperties=fail", "in getProperties of device 0"},
                                                         {"recvs=0", "receives 0 messages at a time"},
                                                         {"max=10", "of 10 bytes at most"}};
  for (const auto& [faults, words] : kFaults) {
    expect_in_child(
        faults,
        [&, text = words] {
          return problem(fails([] { plugin_named("v9"); }, ErrorCode::kIo, {"libnccl-net-v9.so", text}));
        },
        "");
  }
  expect_in_child(
      "init=fail",
      [] { return problem(fails([] { plugin_named("v9"); }, ErrorCode::kIo, {"init has an injected failure"})); }, "");
}

// fork() waits for the locks of tables of the process. None of them is held while a plug-in is initialised.
TEST(PluginLibraries, MayForkWhileTheyAreInitialised) {
  expect_in_child(
      "init=fork",
      [] {
        const PluginEnds ends("v9");
        return std::string("connected");
      },
      "connected");
}

TEST(PluginLibraries, AnUnknownDeviceIsNamed) {
  const Child child([] {
    const Variable device("SLIP_NET_DEVICE", "nosuch7");
    return problem(
        fails([] { plugin_named("slip"); }, ErrorCode::kInvalidValue, {"SLIP_NET_DEVICE=nosuch7", "it has "}));
  });
  EXPECT_EQ(child.report(), "");
}

TEST(PluginLibraries, TheEnvironmentOfNcclNamesAPlugin) {
  const Child child([] {
    const Variable list("NCCL_NET_PLUGIN", "nosuch," + plugin_file("v10"));
    const transport::NetChoice choice = transport::choose_net("");
    return fmt::format("{}, {}, {}", choice.name, choice.automatic,
                       choice.why.find("interface version 10") != std::string::npos);
  });
  EXPECT_EQ(child.report(), "plugin:Wrapped, false, true");
  const Child none([] {
    const Variable list("NCCL_NET_PLUGIN", "none");
    return transport::choose_net("tcp").name;
  });
  EXPECT_EQ(none.report(), "tcp");
  const Child wrong([] {
    const Variable list("NCCL_NET_PLUGIN", "nosuch,/nowhere/x.so");
    return problem(fails([] { transport::choose_net(""); }, ErrorCode::kIo,
                         {"NCCL_NET_PLUGIN=nosuch,", "libnccl-net-nosuch.so", "/nowhere/x.so", "SLIP_NET=tcp"}));
  });
  EXPECT_EQ(wrong.report(), "");
}

TEST(PluginLibraries, SlipNetNamesAPlugin) {
  const transport::NetChoice choice = transport::choose_net("plugin:" + plugin_file("slip"));
  EXPECT_EQ(choice.name, "plugin:Slipstream");
  EXPECT_FALSE(choice.automatic);
  EXPECT_NE(choice.why.find("libnccl-net-slip.so (Slipstream, interface version 11)"), std::string::npos) << choice.why;
}

// The receiver makes the connection, and the function fails.
void expect_receiver_fails(const std::string& version, const std::string& function) {
  NewEnds ends(version);
  Memory from(*ends.sender, 8), to(*ends.receiver, 8);
  const Fault fault(function + "=fail");
  transport::NetRequest* const send = ends.sender->isend(from.part());
  EXPECT_TRUE(fails([&] { ends.receiver->wait(irecv(*ends.receiver, to.part()), long_deadline()); }, ErrorCode::kIo,
                    {"rank 1 at 127.0.0.1:", file_of(version), "in " + function, "has an injected failure"}));
  EXPECT_TRUE(fails([&] { irecv(*ends.receiver, to.part()); }, ErrorCode::kIo, {"has an injected failure"}));
  EXPECT_TRUE(fails([&] { ends.sender->wait(send, long_deadline()); }, ErrorCode::kIo,
                    {"rank 0 at 127.0.0.1:", "gave up", "has an injected failure"}));
}

// The function fails when the connection or a message needs it. Both ends get the error, and it stays.
TEST(PluginFaults, AFunctionThatFailsEndsTheConnection) {
  for (const std::string version : kVersions) {
    for (const char* const function : {"listen", "accept"}) {
      SCOPED_TRACE(version + " " + function);
      expect_receiver_fails(version, function);
    }
  }
}

// regMr: of the receiver's memory, which is registered when a receive first uses it.
TEST(PluginFaults, AReceiveThatFailsEndsTheConnection) {
  for (const std::string version : kVersions) {
    for (const std::string function : {"irecv", "regMr"}) {
      SCOPED_TRACE(version + " " + function);
      PluginEnds ends(version);
      Memory to(*ends.receiver, 8);
      const Fault fault(function + "=fail");
      EXPECT_TRUE(fails([&] { irecv(*ends.receiver, to.part()); }, ErrorCode::kIo,
                        {"rank 1 at", file_of(version), "in " + function, "has an injected failure"}));
      EXPECT_TRUE(fails([&] { drive_both(ends); }, ErrorCode::kIo, {"rank 1 at", "in " + function}));
      EXPECT_TRUE(fails(
          [&] {
            const std::int64_t deadline = long_deadline().at_ns;
            while (base::now_ns() < deadline) static_cast<void>(ends.sender->progress());
          },
          ErrorCode::kIo, {"rank 0 at", "gave up", "in " + function}));
    }
  }
}

TEST(PluginFaults, AFunctionThatFailsForASenderEndsTheConnection) {
  for (const std::string version : kVersions) {
    for (const std::string function : {"isend", "regMr"}) {
      SCOPED_TRACE(version + " " + function);
      PluginEnds ends(version);
      Memory from(*ends.sender, 8), to(*ends.receiver, 8);
      transport::NetRequest* const receive = irecv(*ends.receiver, to.part());
      const Fault fault(function + "=fail");
      EXPECT_TRUE(fails([&] { ends.sender->wait(ends.sender->isend(from.part()), long_deadline()); }, ErrorCode::kIo,
                        {"rank 0 at 127.0.0.1:", file_of(version), "in " + function, "has an injected failure"}));
      EXPECT_TRUE(fails([&] { ends.receiver->wait(receive, long_deadline()); }, ErrorCode::kIo,
                        {"rank 1 at 127.0.0.1:", "gave up", "has an injected failure"}));
    }
  }
}

TEST(PluginFaults, AConnectThatFailsIsNamed) {
  for (const std::string version : kVersions) {
    SCOPED_TRACE(version);
    NewEnds ends(version);
    Memory from(*ends.sender, 8), to(*ends.receiver, 8);
    transport::NetRequest* const receive = irecv(*ends.receiver, to.part());
    const Fault fault("connect=fail");
    transport::NetRequest* const send = ends.sender->isend(from.part());
    EXPECT_TRUE(
        fails([&] { drive_both(ends); }, ErrorCode::kIo, {"rank 0 at 127.0.0.1:", "in connect", "injected failure"}));
    EXPECT_TRUE(fails([&] { ends.sender->wait(send, long_deadline()); }, ErrorCode::kIo, {"in connect"}));
    EXPECT_TRUE(
        fails([&] { ends.receiver->wait(receive, long_deadline()); }, ErrorCode::kIo, {"rank 1 at", "in connect"}));
  }
}

// The plug-in has a limit of connections. The error names it, and the earlier connection works on.
TEST(PluginFaults, AConnectionTooManyIsRefused) {
  for (const std::string version : kVersions) {
    const Child child([version] {
      const Fault fault("comms=1");
      PluginEnds first(version);
      NewEnds second(version);
      Memory from(*second.sender, 8), to(*second.receiver, 8);
      transport::NetRequest* const send = second.sender->isend(from.part());
      static_cast<void>(irecv(*second.receiver, to.part()));
      std::string wrong =
          problem(fails([&] { drive_both(second); }, ErrorCode::kInvalidValue, {file_of(version), "no more than 1"}));
      wrong += problem(fails([&] { second.sender->wait(send, long_deadline()); }, ErrorCode::kInvalidValue,
                             {"rank 0 at", "no more than 1"}));
      Memory more(*first.sender, 8), there(*first.receiver, 8);
      finish(*first.sender, first.sender->isend(more.part()), *first.receiver, irecv(*first.receiver, there.part()));
      return wrong;
    });
    EXPECT_EQ(child.report(), "") << version;
  }
}

// Nothing can be done about a connection that cannot be closed: it is left, without an error and without waiting.
TEST(PluginFaults, AConnectionThatCannotBeClosedIsLeft) {
  for (const std::string version : kVersions) {
    const Fault fault("close=fail");
    PluginEnds ends(version);
    Memory from(*ends.sender, 8), to(*ends.receiver, 8);
    from.fill(7);
    finish(*ends.sender, ends.sender->isend(from.part()), *ends.receiver, irecv(*ends.receiver, to.part()));
    EXPECT_EQ(from.bytes, to.bytes) << version;
  }
}

TEST(PluginFaults, AListenerThatIsMissingIsNamed) {
  NewEnds ends;
  Memory to(*ends.receiver, 8);
  const Fault fault("listen=null");
  EXPECT_TRUE(fails([&] { ends.receiver->wait(irecv(*ends.receiver, to.part()), long_deadline()); }, ErrorCode::kIo,
                    {"rank 1 at", "made no listener", "libnccl-net-v9.so"}));
}

// The plug-in says that the peer is gone.
TEST(PluginFaults, ARemoteErrorMeansALostRank) {
  PluginEnds ends("v9");
  Memory to(*ends.receiver, 8);
  transport::NetRequest* const receive = irecv(*ends.receiver, to.part());
  const Fault fault("test=fail");
  EXPECT_TRUE(fails([&] { ends.receiver->wait(receive, long_deadline()); }, ErrorCode::kRankLost,
                    {"rank 1 at", "in test: ncclRemoteError (6)"}));
}

// The peer may report the cause of an error soon. Until then no call waits: the proxy's thread drives other
// connections, too, and closing one of them needs a lock that the proxy holds meanwhile.
TEST(PluginFaults, AFailureDoesNotStopTheThreadThatFindsIt) {
  PluginEnds ends("v9");
  Memory to(*ends.receiver, 8);
  transport::NetRequest* const receive = irecv(*ends.receiver, to.part());
  const Fault fault("test=fail");
  std::int64_t begun = 0, longest = 0;
  EXPECT_TRUE(fails(
      [&] {
        for (const std::int64_t deadline = long_deadline().at_ns; base::now_ns() < deadline;) {
          begun = base::now_ns();
          EXPECT_FALSE(ends.receiver->test(receive));
          longest = std::max(longest, base::now_ns() - begun);
          std::vector<pollfd> watched;
          EXPECT_LE(ends.receiver->watch(watched), 1'000'000);
        }
      },
      ErrorCode::kRankLost, {"rank 1 at", "in test: ncclRemoteError (6)"}));
  EXPECT_LT(std::max(longest, base::now_ns() - begun), 90'000'000);
}

// The sender fails first. The receiver's plug-in fails, too, and then the sender's reason arrives.
TEST(PluginFaults, AnErrorThatIsAConsequenceNamesItsCause) {
  PluginEnds ends("v9");
  Memory from(*ends.sender, 8), to(*ends.receiver, 8);
  transport::NetRequest* const receive = irecv(*ends.receiver, to.part());
  const Fault fault("isend=fail,test=fail");
  EXPECT_FALSE(ends.receiver->test(receive));
  EXPECT_TRUE(fails([&] { ends.sender->isend(from.part()); }, ErrorCode::kIo, {"in isend"}));
  EXPECT_TRUE(fails([&] { ends.receiver->wait(receive, long_deadline()); }, ErrorCode::kIo,
                    {"rank 1 at", "gave up", "in isend", "has an injected failure"}));
}

TEST(PluginFaults, LengthsThatCannotBeAreRefused) {
  const std::pair<const char*, const char*> kFaults[] = {
      {"size=negative", "-5 bytes"}, {"size=huge", "1073741824 bytes"}, {"size=none", "-1 bytes"}};
  for (const std::string version : kVersions) {
    for (const auto& [faults, words] : kFaults) {
      SCOPED_TRACE(version + " " + faults);
      PluginEnds ends(version);
      Memory from(*ends.sender, 8), to(*ends.receiver, 8);
      const Fault fault(faults);
      ends.sender->isend(from.part(4));
      EXPECT_TRUE(fails([&] { ends.receiver->wait(irecv(*ends.receiver, to.part(4)), long_deadline()); },
                        ErrorCode::kIo, {"rank 1 at", file_of(version), words, "tag 4", "room for 8"}));
    }
  }
}

// The plug-in reports success and does nothing: the wait ends at its deadline and names the rank and the library. Then
// both ends can be closed.
TEST(PluginFaults, AFunctionThatNeverGetsFurtherMeetsTheDeadline) {
  for (const std::string version : kVersions) {
    for (const std::string function : {"connect", "accept", "isend", "irecv", "test"}) {
      SCOPED_TRACE(version + " " + function);
      NewEnds ends(version);
      Memory from(*ends.sender, 8), to(*ends.receiver, 8);
      const Fault fault(function + "=never");
      transport::NetRequest* const send = ends.sender->isend(from.part());
      EXPECT_TRUE(fails([&] { ends.receiver->wait(irecv(*ends.receiver, to.part()), hasty()); }, ErrorCode::kTimeout,
                        {"rank 1 at 127.0.0.1:", "by " + file_of(version)}));
      if (function == "accept" || function == "irecv") continue;  // a send may be done before the receiver takes it
      EXPECT_TRUE(fails([&] { ends.sender->wait(send, hasty()); }, ErrorCode::kTimeout,
                        {"rank 0 at 127.0.0.1:", "by " + file_of(version)}));
    }
  }
}

// The same, and the peer closes: the end of the control socket is noticed although the plug-in does nothing.
TEST(PluginFaults, APeerThatLeavesIsNoticedWhateverThePluginDoes) {
  for (const std::string function : {"connect", "accept", "irecv", "test"}) {
    SCOPED_TRACE(function);
    NewEnds ends;
    Memory to(*ends.receiver, 8);
    const Fault fault(function + "=never");
    transport::NetRequest* const receive = irecv(*ends.receiver, to.part());
    for (int i = 0; i < 100; ++i) {
      static_cast<void>(ends.sender->progress());
      static_cast<void>(ends.receiver->progress());
    }
    ends.sender = nullptr;
    EXPECT_TRUE(fails([&] { ends.receiver->wait(receive, long_deadline()); }, ErrorCode::kRankLost,
                      {"rank 1 at 127.0.0.1:", "by libnccl-net-v9.so", "is gone"}));
  }
}

TEST(PluginFaults, ThePluginsOfBothEndsMustBeTheSame) {
  const auto listener = plugin_named("v9").listen(local_options(0));
  const auto sender = plugin_named("slip").connect(listener->handle(), local_options(1), long_deadline());
  const auto receiver = listener->accept(long_deadline());
  Memory from(*sender, 8), to(*receiver, 8);
  transport::NetRequest* const send = sender->isend(from.part());
  EXPECT_TRUE(fails([&] { receiver->wait(irecv(*receiver, to.part()), long_deadline()); }, ErrorCode::kMismatch,
                    {"rank 1 at", "'Slipstream'", "Wrapped"}));
  EXPECT_TRUE(fails([&] { sender->wait(send, long_deadline()); }, ErrorCode::kMismatch, {"rank 0 at", "Wrapped"}));
}

// Messages longer than the plug-in's maximum go in pieces; lengths at the limits are the difficult ones.
TEST(PluginEnds, SendLongMessagesInPieces) {
  expect_in_child(
      "max=4096",
      [] {
        PluginEnds ends("v9");
        for (const std::size_t size : {0, 1, 4095, 4096, 4097, 8191, 8192, 8193, 100'000}) {
          for (const std::size_t spare : {0, 1, 4096}) {
            Memory from(*ends.sender, size + 3), to(*ends.receiver, size + spare), after(*ends.receiver, 3);
            from.fill(static_cast<unsigned>(size));
            std::size_t moved = 0;
            transport::NetRequest* const receives[2] = {irecv(*ends.receiver, to.part(0, 0, size + spare)),
                                                        irecv(*ends.receiver, after.part())};
            transport::NetRequest* const sends[2] = {ends.sender->isend(from.part(0, 0, size)),
                                                     ends.sender->isend(from.part(0, size, 3))};
            finish(*ends.sender, sends[0], *ends.receiver, receives[0], std::span(&moved, 1));
            finish(*ends.sender, sends[1], *ends.receiver, receives[1]);
            if (moved != size || !std::equal(from.bytes.begin(), from.bytes.end() - 3, to.bytes.begin()) ||
                !std::equal(after.bytes.begin(), after.bytes.end(), from.bytes.end() - 3))
              return fmt::format("{} bytes into {}: {} came", size, size + spare, moved);
          }
        }
        return std::string("came");
      },
      "came");
}

TEST(PluginEnds, RegisterAndFlushGpuMemory) {
  expect_in_child(
      "cuda",
      [] {
        PluginEnds ends("v9");
        std::vector<std::byte> from(64), to(64);
        const auto out = ends.sender->register_gpu_memory(from, 7, 16);
        const auto in = ends.receiver->register_gpu_memory(to, -1, 0);
        const transport::NetPart part{to.data(), to.size(), 0, in.get()};
        finish(*ends.sender, ends.sender->isend({from.data(), from.size(), 0, out.get()}), *ends.receiver,
               irecv(*ends.receiver, part));
        transport::NetRequest* const flush = ends.receiver->flush(std::span(&part, 1));
        if (flush->done) return std::string("the flush was done at once");
        std::vector<pollfd> watched;  // a plug-in has no descriptor to poll, so a thread must not sleep for long
        if (ends.receiver->watch(watched) > 1'000'000) return std::string("a thread would sleep during the flush");
        finish(*ends.sender, nullptr, *ends.receiver, flush);
        return std::string(reinterpret_cast<const char*>(to.data()));
      },
      "dma-buf 7 at 16, type 2");
}

// Receives and flushes together are at most the requests that NCCL allows. Receives leave room for flushes.
TEST(PluginEnds, StartNoMoreFlushesThanThePluginTakes) {
  expect_in_child(
      "cuda",
      [] {
        PluginEnds ends("v9");
        std::vector<std::byte> from(64), to(64);
        const auto out = ends.sender->register_gpu_memory(from, -1, 0);
        const auto in = ends.receiver->register_gpu_memory(to, -1, 0);
        const transport::NetPart part{to.data(), to.size(), 0, in.get()};
        finish(*ends.sender, ends.sender->isend({from.data(), from.size(), 0, out.get()}), *ends.receiver,
               irecv(*ends.receiver, part));
        for (int i = 0; i < 32; ++i) irecv(*ends.receiver, part);  // no message comes for these
        std::vector<transport::NetRequest*> flushes;
        while (transport::NetRequest* const flush = ends.receiver->flush(std::span(&part, 1))) flushes.push_back(flush);
        if (flushes.size() != 8) return std::to_string(flushes.size()) + " flushes";
        for (const transport::NetRequest* const flush : flushes) {
          if (flush->done) return std::string("a flush was not passed to the plug-in");
        }
        for (transport::NetRequest* const flush : flushes) finish(*ends.sender, nullptr, *ends.receiver, flush);
        return std::string(ends.receiver->flush(std::span(&part, 1)) ? "fine" : "no flush after the others");
      },
      "fine");
}

TEST(PluginEnds, RefuseGpuMemoryThatThePluginCannotTake) {
  PluginEnds ends("slip");
  std::vector<std::byte> bytes(64);
  EXPECT_TRUE(fails([&] { ends.sender->register_gpu_memory(bytes, -1, 0); }, ErrorCode::kUnsupported,
                    {"rank 0 at", "libnccl-net-slip.so", "no GPU memory"}));
  Ends tcp;
  EXPECT_TRUE(
      fails([&] { tcp.sender->register_gpu_memory(bytes, -1, 0); }, ErrorCode::kUnsupported, {"no GPU memory"}));
}

TEST(PluginEnds, SendTheOtherEndTheReasonOfAFailure) {
  PluginEnds ends("slip");
  Memory from(*ends.sender, 100), to(*ends.receiver, 99);
  ends.sender->isend(from.part(3));
  EXPECT_TRUE(fails([&] { ends.receiver->wait(irecv(*ends.receiver, to.part(3)), long_deadline()); },
                    ErrorCode::kInvalidValue, {"rank 1 at", "100 bytes with tag 3", "room for 99"}));
  EXPECT_TRUE(fails(
      [&] {
        const std::int64_t deadline = long_deadline().at_ns;
        while (base::now_ns() < deadline) static_cast<void>(ends.sender->progress());
      },
      ErrorCode::kInvalidValue, {"rank 0 at", "100 bytes with tag 3"}));
}

// A plug-in has no descriptor to poll: a waiting thread looks again and again, and must not use a core for it.
TEST(PluginEnds, SleepWhileNothingMoves) {
  PluginEnds ends("slip");
  Memory to(*ends.receiver, 8);
  const auto cpu_ns = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1'000'000'000 + time.tv_nsec;
  };
  transport::NetRequest* const request = irecv(*ends.receiver, to.part());
  const std::int64_t begun = cpu_ns();
  constexpr std::int64_t kWaitNs = 400'000'000;
  EXPECT_TRUE(fails(
      [&] {
        ends.receiver->wait(request, {base::deadline_after(kWaitNs), nullptr});
      },
      ErrorCode::kTimeout));
  EXPECT_LT(cpu_ns() - begun, kWaitNs / 4);
}

TEST(PluginEnds, MemoryMayOutliveTheConnection) {
  auto ends = std::make_unique<PluginEnds>("slip");
  Memory from(*ends->sender, 8), to(*ends->receiver, 8);
  finish(*ends->sender, ends->sender->isend(from.part()), *ends->receiver, irecv(*ends->receiver, to.part()));
  ends = nullptr;
  from.registered = nullptr;
  PluginEnds other("slip");
  EXPECT_TRUE(fails([&] { irecv(*other.receiver, to.part()); }, ErrorCode::kInvalidValue, {"another connection"}));
}

}  // namespace
}  // namespace slip::test::test_net_plugin
