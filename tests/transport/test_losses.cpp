// Ranks that are processes, and die, stop or are strangers.
#include <array>

#include "base/clock.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "transport/frame.hpp"
#include "transport/socket.hpp"

namespace slip::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Patience long_enough() { return {deadline_after(20'000'000'000), nullptr}; }

class Losses : public testing::Test {
 protected:
  void SetUp() override {
    if (!kThreadsAfterFork) GTEST_SKIP() << "the thread sanitizer does not run threads in forked children";
  }
};

// Rank 0 listens, after all children were forked: a fork beside a root that is just at work could take a lock of the
// sanitizer's allocator along, which nobody in the child would ever give back.
UniqueId id_without_root() {
  static int count = 0;
  return UniqueId::parse("unix:slip-losses-" + std::to_string(::getpid()) + "-" + std::to_string(++count));
}

// Short beats, so that the test need not wait long, and still long for a loaded machine.
BootstrapOptions short_beats() {
  BootstrapOptions options = within(seconds(30));
  options.heartbeat = {milliseconds(100), milliseconds(1000)};
  return options;
}

// A rank that comes, says so to rank 0, and then waits for what never comes.
std::string wait_in_vain(const UniqueId& id, int nranks, int rank, const BootstrapOptions& options) {
  Bootstrap bootstrap(id, nranks, rank, options);
  bootstrap.send(0, 1, {});
  static_cast<void>(bootstrap.recv(0, 2));
  return "came";
}

// Ranks 1 to n - 1 are children; rank 0 is the test, which gives `victim` a signal when all are there.
std::vector<std::string> signal_one(int nranks, int victim, int number, std::string& own) {
  const UniqueId id = id_without_root();
  std::vector<Child> children;
  for (int rank = 1; rank < nranks; ++rank)
    children.emplace_back([&, rank] { return wait_in_vain(id, nranks, rank, short_beats()); });
  Bootstrap bootstrap(id, nranks, 0, short_beats());
  for (int rank = 1; rank < nranks; ++rank) static_cast<void>(bootstrap.recv(rank, 1));
  children[static_cast<std::size_t>(victim - 1)].signal(number);
  try {
    static_cast<void>(bootstrap.recv(1, 3));
  } catch (const Error& error) {
    own = error.what();
  }
  EXPECT_TRUE(bootstrap.broken());
  EXPECT_EQ(bootstrap.lost()->rank, victim);
  if (number == SIGSTOP) children[static_cast<std::size_t>(victim - 1)].signal(SIGCONT);
  std::vector<std::string> reports;
  for (const Child& child : children) reports.push_back(child.report());
  return reports;
}

TEST_F(Losses, AKilledRankIsToldToAll) {
  std::string own;
  const std::vector<std::string> reports = signal_one(6, 3, SIGKILL, own);
  EXPECT_NE(own.find("rank 3 is gone"), std::string::npos) << own;
  for (int rank = 1; rank < 6; ++rank) {
    const std::string& report = reports[static_cast<std::size_t>(rank - 1)];
    if (rank == 3) EXPECT_EQ(report, "");
    else
      EXPECT_NE(report.find("rank lost: rank " + std::to_string(rank) + " of 6: rank 3 is gone"), std::string::npos)
          << report;
  }
}

TEST_F(Losses, AStoppedRankIsToldToAllAndToItself) {
  std::string own;
  const std::vector<std::string> reports = signal_one(6, 4, SIGSTOP, own);
  EXPECT_NE(own.find("rank 4 gives no sign of life"), std::string::npos) << own;
  for (const std::string& report : reports)
    EXPECT_NE(report.find("rank 4 gives no sign of life"), std::string::npos) << report;
}

TEST_F(Losses, AJobThatIsStoppedAsAWholeGoesOn) {
  const UniqueId id = id_without_root();
  std::vector<Child> children;
  int news[2];
  ASSERT_EQ(::pipe(news), 0);
  for (int rank = 0; rank < 3; ++rank) {
    children.emplace_back([&, rank] {
      Bootstrap bootstrap(id, 3, rank, short_beats());
      bootstrap.barrier();
      static_cast<void>(!::write(news[1], "x", 1));
      // Goes on only after many beats, so that the stop falls into them.
      static_cast<void>(fails([&] { static_cast<void>(bootstrap.recv(0, 9, milliseconds(2000))); }, Code::kTimeout));
      bootstrap.barrier();
      return std::string("went on");
    });
  }
  char byte = 0;
  for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(::read(news[0], &byte, 1), 1);
  for (const Child& child : children) child.signal(SIGSTOP);
  // Time itself is what is tested: longer than the silence that counts as a loss.
  EXPECT_EQ(wait_a_moment(1'300'000'000, {}), Waited::kReady);
  for (const Child& child : children) child.signal(SIGCONT);
  for (const Child& child : children) EXPECT_EQ(child.report(), "went on");
  ::close(news[0]);
  ::close(news[1]);
}

// Says something to a listener and keeps the connection.
Socket say(const SocketAddress& to, std::string_view words) {
  Socket socket = Socket::connect(to, long_enough());
  socket.send(bytes_of(words), long_enough());
  return socket;
}

TEST_F(Losses, ARankThatDiesBeforeAllHaveComeIsNamedByTheRoot) {
  const UniqueId id = local_id();
  const SocketAddress root = resolve(id.host(), id.port()).front();
  {
    // It says that it is rank 1 and is killed.
    FrameHeader header{.magic = id.magic(), .kind = FrameKind::kHello, .rank = 1, .nranks = 3};
    HelloBody body;
    body.address = SocketAddress::loopback(AF_INET, 1).wire();
    body.pid = 4711;
    body.patience_ns = 1'000'000'000;
    header.bytes = sizeof(body);
    const Socket socket = Socket::connect(root, long_enough());
    socket.send(bytes_of(header), long_enough());
    socket.send(bytes_of(body), long_enough());
  }
  // The root serves its guests in turn: when this one is sent away, it has seen the other go.
  std::byte byte{};
  const Socket stranger = say(root, "no magic at all");
  EXPECT_TRUE(fails([&] { stranger.recv({&byte, 1}, long_enough()); }, Code::kIo));
  const std::vector<Met> met =
      as_ranks(2, [&](int i) { Bootstrap bootstrap(id, 3, 2 * i, within(milliseconds(500))); });
  for (const Met& one : met) {
    EXPECT_EQ(one.code, Code::kTimeout) << one.text;
    EXPECT_NE(one.text.find("rank 1 of 3 has not come"), std::string::npos) << one.text;
    EXPECT_NE(one.text.find("process 4711"), std::string::npos) << one.text;
  }
}

TEST(Strangers, DoNotDisturbTheRoot) {
  const UniqueId id = local_id();
  const SocketAddress root = resolve(id.host(), id.port()).front();
  FrameHeader half{.magic = id.magic(), .kind = FrameKind::kHello, .rank = 0, .nranks = 2, .bytes = 4000};
  FrameHeader wrong = half;
  wrong.magic ^= 1;
  std::vector<Socket> strangers;
  strangers.push_back(say(root, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  strangers.push_back(say(root, {reinterpret_cast<const char*>(&half), 20}));            // then silence
  strangers.push_back(say(root, {reinterpret_cast<const char*>(&half), sizeof(half)}));  // too long to be true
  strangers.push_back(say(root, {reinterpret_cast<const char*>(&wrong), sizeof(wrong)}));
  for (int i = 0; i < 400; ++i) strangers.push_back(Socket::connect(root, long_enough()));  // says nothing
  Socket::connect(root, long_enough()).close();                                             // a port scanner
  expect_no_errors(as_ranks(2, [&](int rank) {
    Bootstrap bootstrap(id, 2, rank, within(seconds(20)));
    EXPECT_EQ(bootstrap.all_gather(rank)[1], 1);
  }));
  std::byte byte{};
  for (const std::size_t sent_away : {0U, 2U, 3U})
    EXPECT_TRUE(fails([&] { strangers[sent_away].recv({&byte, 1}, long_enough()); }, Code::kIo));
}

TEST(Strangers, DoNotDisturbTheRanks) {
  const SocketAddress place = SocketAddress::loopback(AF_INET);
  Socket listener = Socket::listen(place);
  const SocketAddress address = listener.local();
  const auto abort = std::make_shared<AbortFlag>();
  const Switchboard::Self self{0, 2, 0x1234567890abcdef};
  Switchboard switchboard(self, std::move(listener), abort, {});
  FrameHeader greeting{.magic = self.session, .kind = FrameKind::kGreetDirect, .rank = 2, .nranks = 2};
  const auto sent_away = [&](const FrameHeader& header) {
    const Socket socket = say(address, {reinterpret_cast<const char*>(&header), sizeof(header)});
    std::byte byte{};
    return fails([&] { socket.recv({&byte, 1}, long_enough()); }, Code::kIo);
  };
  EXPECT_TRUE(sent_away(greeting));  // no such rank
  greeting.rank = 1;
  greeting.nranks = 3;
  EXPECT_TRUE(sent_away(greeting));  // of another communicator
  greeting.nranks = 2;
  greeting.kind = FrameKind::kMessage;
  EXPECT_TRUE(sent_away(greeting));  // did not greet
  greeting.kind = FrameKind::kGreetDirect;
  greeting.magic ^= 1;
  EXPECT_TRUE(sent_away(greeting));
  EXPECT_FALSE(switchboard.broken());
}

TEST(Strangers, AreNotTakenForTheRoot) {
  const Socket listener = Socket::listen(SocketAddress::loopback(AF_INET));
  const UniqueId id = UniqueId::parse(listener.local().text() + "/0123456789abcdef");
  std::thread server([&] {
    const Socket guest = listener.accept(long_enough());
    guest.send(bytes_of(std::string_view("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")), long_enough());
  });
  EXPECT_TRUE(fails([&] { Bootstrap bootstrap(id, 2, 1, within(seconds(20))); }, Code::kIo,
                    {"rank 1 of 2", listener.local().text()}));
  server.join();
}

}  // namespace
}  // namespace slip::test
