// Ranks as processes that die or stop, and strangers.
#include "base/clock.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "transport/bootstrap/frame_socket.hpp"
#include "transport/bootstrap/rendezvous.hpp"

namespace slip::test::test_losses {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

transport::Deadline long_enough() { return {base::deadline_after(20'000'000'000), nullptr}; }

// A short heartbeat, so that the test need not wait long, but long enough for a loaded machine.
transport::BootstrapOptions short_beats() {
  transport::BootstrapOptions options = within(seconds(30));
  options.heartbeat = {milliseconds(100), milliseconds(1000)};
  return options;
}

// Only a closed connection is a loss: a machine that is busy for a while is none.
transport::BootstrapOptions long_silence() {
  transport::BootstrapOptions options = short_beats();  // so that the others hear it often enough
  options.heartbeat.silence = seconds(60);
  return options;
}

constexpr int kRanks = 6, kKilled = 3, kStopped = 4, kWatcher = 5;

// One of the ranks, each a process: it joins, says so to rank 0, and waits for a message that never comes. The
// neighbour of the rank that will be stopped has a short limit of silence.
SLIP_CHILD(Losses, WaitInVain) {
  play([](const transport::LaunchInfo& info) {
    transport::Bootstrap bootstrap(info.id, info.nranks, info.rank,
                                   info.rank == kWatcher ? short_beats() : long_silence());
    bootstrap.send(0, 1, {});
    static_cast<void>(bootstrap.recv(0, 2));
    return std::string("came");
  });
}

// Rank 0 is the test, which sends `victim` a signal when all have joined. Returns what the others report.
std::vector<std::string> signal_one(int victim, int number, std::string& own) {
  const UniqueId id = local_id();
  std::vector<RankProcess> others;
  for (int rank = 1; rank < kRanks; ++rank) others.emplace_back("Losses.WaitInVain", id, kRanks, rank);
  transport::Bootstrap bootstrap(id, kRanks, 0, long_silence());
  for (int rank = 1; rank < kRanks; ++rank) static_cast<void>(bootstrap.recv(rank, 1));
  others[static_cast<std::size_t>(victim - 1)].signal(number);
  try {
    static_cast<void>(bootstrap.recv(1, 3));
  } catch (const Error& error) {
    own = error.what();
  }
  EXPECT_TRUE(bootstrap.broken());
  EXPECT_EQ(bootstrap.failures().first_loss()->rank, victim);
  if (number == SIGSTOP) others[static_cast<std::size_t>(victim - 1)].signal(SIGCONT);
  std::vector<std::string> reports;
  for (const RankProcess& other : others) reports.push_back(other.report());
  return reports;
}

TEST(Losses, AKilledRankIsReportedToAll) {
  std::string own;
  const std::vector<std::string> reports = signal_one(kKilled, SIGKILL, own);
  EXPECT_NE(own.find("rank 3 is gone"), std::string::npos) << own;
  for (int rank = 1; rank < kRanks; ++rank) {
    const std::string& report = reports[static_cast<std::size_t>(rank - 1)];
    if (rank == kKilled) EXPECT_EQ(report, "");
    else
      EXPECT_NE(report.find("rank lost: rank " + std::to_string(rank) + " of 6: rank 3 is gone"), std::string::npos)
          << report;
  }
}

TEST(Losses, AStoppedRankIsReportedToAllAndToItself) {
  std::string own;
  const std::vector<std::string> reports = signal_one(kStopped, SIGSTOP, own);
  EXPECT_NE(own.find("rank 4 gives no sign of life"), std::string::npos) << own;
  for (const std::string& report : reports)
    EXPECT_NE(report.find("rank 4 gives no sign of life"), std::string::npos) << report;
}

// A rank that meets the others, is stopped with them or alone, and meets them again when the test says so.
SLIP_CHILD(Losses, MeetTwice) {
  play([](const transport::LaunchInfo& info) {
    transport::Bootstrap bootstrap(info.id, info.nranks, info.rank, short_beats());
    bootstrap.barrier();
    char byte = 'x';
    static_cast<void>(!::write(kLine, &byte, 1));
    static_cast<void>(!::read(kLine, &byte, 1));
    bootstrap.barrier();
    return std::string("went on");
  });
}

TEST(Losses, AJobThatIsStoppedAsAWholeGoesOn) {
  const UniqueId id = local_id(), other_id = local_id();
  std::vector<RankProcess> job;
  for (int rank = 0; rank < 3; ++rank) job.emplace_back("Losses.MeetTwice", id, 3, rank);
  // Another job loses a rank meanwhile, which shows that the silence was long enough for a loss.
  const RankProcess lost("Losses.MeetTwice", other_id, 2, 1);
  transport::BootstrapOptions longer = short_beats();
  longer.heartbeat.silence += 2 * longer.heartbeat.interval;
  transport::Bootstrap watcher(other_id, 2, 0, longer);
  watcher.barrier();
  for (const RankProcess& rank : job) ASSERT_EQ(rank.hear(1), "x");
  ASSERT_EQ(lost.hear(1), "x");
  for (const RankProcess& rank : job) rank.signal(SIGSTOP);
  lost.signal(SIGSTOP);
  EXPECT_TRUE(fails([&] { watcher.barrier(); }, ErrorCode::kRankLost, {"rank 1 gives no sign of life"}));
  for (const RankProcess& rank : job) rank.signal(SIGCONT);
  for (const RankProcess& rank : job) rank.send('x');
  for (const RankProcess& rank : job) EXPECT_EQ(rank.report(), "went on");
}

// Says something to a listener and keeps the connection.
transport::Socket say(const transport::SocketAddress& to, std::string_view words) {
  transport::Socket socket = transport::Socket::connect(to, long_enough());
  socket.send(transport::bytes_of(words), long_enough());
  return socket;
}

// Says to the root that it is this rank, as a Bootstrap does.
transport::FrameSocket say_hello(const UniqueId& id, const transport::SocketAddress& root, int rank, int nranks) {
  transport::HelloBody body;
  body.address = transport::SocketAddress::loopback(AF_INET, 1).wire();
  body.pid = 4711;
  body.timeout_ns = 30'000'000'000;
  transport::FrameSocket channel =
      transport::FrameSocket::reach(root, transport::UniqueIdParts::of(id).secret, long_enough());
  channel.trust();
  channel.queue({.kind = transport::FrameKind::kHello, .rank = rank, .nranks = nranks}, transport::bytes_of(body));
  return channel;
}

// The root serves its connections in turn: when it closes this one, it has handled what the others did before.
void wait_for_root(const transport::SocketAddress& root) {
  std::byte byte{};
  const transport::Socket stranger = say(root, "no magic at all");
  EXPECT_TRUE(fails([&] { stranger.recv({&byte, 1}, long_enough()); }, ErrorCode::kIo));
}

TEST(Roots, NameTheRanksThatHaveNotCome) {
  const UniqueId id = local_id();
  const transport::SocketAddress root = transport::resolve(id.host(), id.port()).front();
  transport::FrameSocket first = say_hello(id, root, 0, 5);
  wait_for_root(root);
  EXPECT_TRUE(fails([&] { transport::Bootstrap bootstrap(id, 5, 2, within(milliseconds(50))); }, ErrorCode::kTimeout,
                    {"rank 2 of 5", "ranks 1, 3 and 4 of 5 have not joined before the deadline of rank 2"}));
  EXPECT_EQ(first.wait_for_frame(long_enough()).header.kind,
            transport::FrameKind::kRefused);  // the other rank is notified, too
}

TEST(Roots, NameARankThatDiedBeforeAllHadCome) {
  const UniqueId id = local_id();
  const transport::SocketAddress root = transport::resolve(id.host(), id.port()).front();
  const transport::FrameSocket first = say_hello(id, root, 0, 3);
  static_cast<void>(say_hello(id, root, 1, 3));  // and closes, as if it was killed
  wait_for_root(root);
  // Long before the deadline, which is too long for a test.
  EXPECT_TRUE(fails([&] { transport::Bootstrap bootstrap(id, 3, 2, within(seconds(600))); }, ErrorCode::kRankLost,
                    {"rank 2 of 3", "rank 1 of 3 is gone", "process 4711"}));
}

// With the secret of another job.
std::string stranger_hears(const transport::SocketAddress& at, transport::Secret secret) {
  secret[0] ^= std::byte{1};
  try {
    static_cast<void>(transport::FrameSocket::reach(at, secret, long_enough()));
  } catch (const Error& error) {
    return error.what();
  }
  return "it was let in";
}

TEST(Strangers, DoNotDisturbTheRoot) {
  const UniqueId id = local_id();
  const transport::SocketAddress root = transport::resolve(id.host(), id.port()).front();
  transport::Opening opening;
  transport::Opening old;
  old.version = 1;
  std::vector<transport::Socket> strangers;
  strangers.push_back(say(root, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  strangers.push_back(say(root, {reinterpret_cast<const char*>(&opening), 20}));  // then silence
  strangers.push_back(say(root, {reinterpret_cast<const char*>(&opening), sizeof(opening)}));
  strangers.back().send(transport::bytes_of(transport::Secret{}), long_enough());  // proves nothing
  strangers.push_back(say(root, {reinterpret_cast<const char*>(&old), sizeof(old)}));
  EXPECT_NE(stranger_hears(root, transport::UniqueIdParts::of(id).secret).find("does not know the secret"),
            std::string::npos);
  for (int i = 0; i < 400; ++i) strangers.push_back(transport::Socket::connect(root, long_enough()));  // says nothing
  transport::Socket::connect(root, long_enough()).close();                                             // a port scanner
  expect_no_errors(as_ranks(2, [&](int rank) {
    transport::Bootstrap bootstrap(id, 2, rank, within(seconds(20)));
    EXPECT_EQ(bootstrap.all_gather(rank)[1], 1);
  }));
  std::array<std::byte, 64> bytes{};
  for (const std::size_t sent_away : {0U, 2U, 3U})
    EXPECT_TRUE(fails([&] { strangers[sent_away].recv(bytes, long_enough()); }, ErrorCode::kIo));
}

TEST(Strangers, DoNotDisturbTheRanks) {
  const transport::SocketAddress place = transport::SocketAddress::loopback(AF_INET);
  transport::Socket listener = transport::Socket::listen(place);
  const transport::SocketAddress address = listener.local();
  const auto abort = std::make_shared<transport::AbortFlag>();
  const transport::Secret session = transport::random_secret();
  const transport::ControlServer server({0, 2}, session, std::move(listener), abort, {});
  transport::FrameHeader greeting{.kind = transport::FrameKind::kGreetDirect, .rank = 2, .nranks = 2};
  const auto sent_away = [&](const transport::FrameHeader& header) {
    transport::FrameSocket channel = transport::FrameSocket::reach(address, session, long_enough());
    channel.queue(header);
    return fails([&] { static_cast<void>(channel.wait_for_frame(long_enough())); }, ErrorCode::kIo);
  };
  EXPECT_TRUE(sent_away(greeting));  // no such rank
  greeting.rank = 1;
  greeting.nranks = 3;
  EXPECT_TRUE(sent_away(greeting));  // of another communicator
  greeting.nranks = 2;
  greeting.kind = transport::FrameKind::kMessage;
  EXPECT_TRUE(sent_away(greeting));  // did not greet
  EXPECT_NE(stranger_hears(address, session).find("does not know the secret"), std::string::npos);
  EXPECT_FALSE(server.failures().broken_flag().is_set());
}

TEST(Strangers, AreNotTakenForTheRoot) {
  const transport::Socket listener = transport::Socket::listen(transport::SocketAddress::loopback(AF_INET));
  const UniqueId id = UniqueId::parse(listener.local().text() + "/0123456789abcdef0123456789abcdef");
  std::thread server([&] {
    const transport::Socket connection = listener.accept(long_enough());
    connection.send(transport::bytes_of(std::string_view("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")),
                    long_enough());
  });
  EXPECT_TRUE(fails([&] { transport::Bootstrap bootstrap(id, 2, 1, within(seconds(20))); }, ErrorCode::kIo,
                    {"rank 1 of 2", listener.local().text()}));
  server.join();
}

}  // namespace
}  // namespace slip::test::test_losses
