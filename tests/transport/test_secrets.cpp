// What ranks prove to each other, and what a stranger gets that eavesdrops, forges or replays.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/clock.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "transport/bootstrap/frame_socket.hpp"
#include "transport/bootstrap/rendezvous.hpp"

namespace slip::test::test_secrets {
namespace {

// For this program and its children: tests do not touch the user's own secret.
[[maybe_unused]] const int kSet = ::setenv("SLIP_SECRET", "the secret of these tests", 0);

transport::Deadline long_enough() { return {base::deadline_after(20'000'000'000), nullptr}; }

using Bytes = std::vector<std::byte>;

struct Ends {
  transport::Socket first, second;
  static Ends make() {
    const transport::Socket listener = transport::Socket::listen(transport::SocketAddress::loopback(AF_INET));
    transport::Socket first = transport::Socket::connect(listener.local(), long_enough());
    return {std::move(first), listener.accept(long_enough())};
  }
};

// Two ends that talk through the test, which records what it sees.
class Wire {
 public:
  Wire(const transport::Secret& secret, const transport::Secret& other, Ends near = Ends::make(),
       Ends far = Ends::make())
      : near_(std::move(near.second)),
        far_(std::move(far.second)),
        connects(std::move(near.first), secret, transport::FrameSocket::Side::kConnects),
        accepts(std::move(far.first), other, transport::FrameSocket::Side::kAccepts) {}

  // Passes bytes on until `over`. False: it did not become true.
  template <class Over>
  bool run(const Over& over) {
    const std::int64_t end = base::now_ns() + 20'000'000'000;
    while (base::now_ns() < end) {
      if (over()) return true;
      connects.pump();
      accepts.pump();
      if (!held) pass(near_, far_, said);
      pass(far_, near_, answered);
      connects.flush();
      accepts.flush();
    }
    return false;
  }
  bool meet() {
    return run([this] { return connects.is_proven() && accepts.is_proven(); });
  }
  const transport::Socket& near() const { return near_; }  // where the connecting end's bytes come out
  // Writes into the connection, as a stranger could.
  void say_to_accepting(std::span<const std::byte> bytes) const { far_.send(bytes, long_enough()); }
  std::optional<transport::Frame> next() {
    std::optional<transport::Frame> frame;
    run([&] { return (frame = accepts.next()) || accepts.is_foreign(); });
    return frame;
  }

 private:
  static void pass(const transport::Socket& from, const transport::Socket& to, Bytes& seen) {
    std::array<std::byte, 4096> bytes;
    const std::size_t got = from.try_recv(bytes).bytes;
    seen.insert(seen.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(got));
    to.send(std::span(bytes).first(got), long_enough());
  }

  transport::Socket near_, far_;

 public:
  transport::FrameSocket connects, accepts;
  Bytes said, answered;  // by the connecting end, and by the other
  bool held = false;     // what the connecting end sends is kept back
};

bool contains(const Bytes& all, std::span<const std::byte> part) {
  return std::search(all.begin(), all.end(), part.begin(), part.end()) != all.end();
}

TEST(Proofs, NeverSayTheSecret) {
  const transport::Secret secret = transport::random_secret();
  Wire wire(secret, secret);
  ASSERT_TRUE(wire.meet());
  wire.connects.queue({.kind = transport::FrameKind::kAlive, .rank = 1, .nranks = 2});
  ASSERT_TRUE(wire.next());
  for (const std::size_t part : {std::size_t{0}, std::size_t{8}}) {
    EXPECT_FALSE(contains(wire.said, std::span(secret).subspan(part, 8)));
    EXPECT_FALSE(contains(wire.answered, std::span(secret).subspan(part, 8)));
  }
}

TEST(Proofs, OfAnotherSecretAreRefused) {
  Wire wire(transport::random_secret(), transport::random_secret());
  EXPECT_TRUE(wire.run([&] { return wire.connects.is_foreign(); }));
  EXPECT_FALSE(wire.accepts.is_proven());
}

// Answers each connection until the test ends: with the proof of a secret, or by closing it.
class Answering {
 public:
  enum class Way { kProof, kClose };
  Answering(const transport::Secret& secret, std::vector<Way> ways)
      : thread_([this, secret, ways = std::move(ways)] { answer(secret, ways); }) {}
  ~Answering() {
    over_.set();
    thread_.join();
  }
  transport::SocketAddress address() const { return listener_.local(); }
  std::size_t accepted() const { return accepted_; }

 private:
  void answer(const transport::Secret& secret, const std::vector<Way>& ways) {
    const transport::Deadline end{long_enough().at_ns, &over_};
    std::vector<transport::FrameSocket> ends;
    try {
      for (; accepted_ < ways.size(); ++accepted_) {
        transport::Socket socket = listener_.accept(end);
        if (ways[accepted_] == Way::kClose) continue;
        transport::FrameSocket& one =
            ends.emplace_back(std::move(socket), secret, transport::FrameSocket::Side::kAccepts);
        while (!one.ended() && !one.is_proven()) {
          if (transport::wait_for(one.socket().descriptor(), POLLIN, end) != transport::Waited::kReady) return;
          one.pump();
        }
      }
    } catch (const Error&) {  // the test has ended, or its deadline has passed: the test finds what is missing
    }
  }

  const transport::Socket listener_ = transport::Socket::listen(transport::SocketAddress::loopback(AF_INET));
  transport::AbortFlag over_;
  std::atomic<std::size_t> accepted_{0};
  std::thread thread_;
};

// A peer of another secret would answer the same at each attempt.
TEST(Attempts, EndWithAForeignPeer) {
  using enum Answering::Way;
  const Answering foreign(transport::random_secret(), {kProof, kProof, kProof});
  EXPECT_TRUE(fails(
      [&] {
        static_cast<void>(
            transport::FrameSocket::reach_in_time(foreign.address(), transport::random_secret(), long_enough()));
      },
      ErrorCode::kIo, {foreign.address().text(), "does not know the secret of this job"}));
  EXPECT_LE(foreign.accepted(), 1U);
}

// A peer with too many unproven connections closes new ones: a later attempt succeeds.
TEST(Attempts, AreRepeatedIfThePeerCloses) {
  using enum Answering::Way;
  const transport::Secret secret = transport::random_secret();
  const Answering busy(secret, {kClose, kClose, kProof});
  EXPECT_TRUE(transport::FrameSocket::reach_in_time(busy.address(), secret, long_enough()).is_proven());
}

// A stranger that has recorded a rank and replays it is refused.
TEST(Proofs, DoNotCountTwice) {
  const transport::Secret secret = transport::random_secret();
  Wire heard(secret, secret);
  ASSERT_TRUE(heard.meet());
  Wire again(secret, secret);
  again.held = true;
  again.say_to_accepting(heard.said);
  EXPECT_TRUE(again.run([&] { return again.accepts.is_foreign(); }));
  EXPECT_FALSE(again.accepts.is_proven());
}

// The proof of the accepting end is no proof for the connecting end, on any connection.
TEST(Proofs, AreNotMirrored) {
  const transport::Secret secret = transport::random_secret();
  Wire wire(secret, secret);
  wire.held = true;
  transport::Opening opening;
  opening.nonce = transport::random_secret();
  wire.say_to_accepting(transport::bytes_of(opening));
  ASSERT_TRUE(wire.run([&] { return wire.answered.size() >= sizeof(transport::Reply); }));
  transport::Reply reply;
  std::memcpy(&reply, wire.answered.data(), sizeof(reply));
  wire.say_to_accepting(reply.proof);
  EXPECT_TRUE(wire.run([&] { return wire.accepts.is_foreign(); }));
}

TEST(Codes, OfForgedFramesAreRefused) {
  const transport::Secret secret = transport::random_secret();
  Wire wire(secret, secret);
  ASSERT_TRUE(wire.meet());
  const transport::FrameHeader lost{.kind = transport::FrameKind::kLost, .rank = 1, .nranks = 2};
  Bytes forged(sizeof(lost) + sizeof(transport::Secret));
  std::memcpy(forged.data(), &lost, sizeof(lost));
  wire.say_to_accepting(forged);
  EXPECT_FALSE(wire.next());
  EXPECT_EQ(wire.accepts.reason(), "sent a message that is not authentic");
}

// A recorded heartbeat is not valid again, neither on this connection nor on another.
TEST(Codes, OfRepeatedFramesAreRefused) {
  const transport::Secret secret = transport::random_secret();
  Wire wire(secret, secret), other(secret, secret);
  ASSERT_TRUE(wire.meet());
  ASSERT_TRUE(other.meet());
  wire.said.clear();
  wire.connects.queue({.kind = transport::FrameKind::kAlive, .rank = 1, .nranks = 2});
  ASSERT_TRUE(wire.next());
  for (Wire* one : {&wire, &other}) {
    one->say_to_accepting(wire.said);
    EXPECT_FALSE(one->next());
    EXPECT_TRUE(one->accepts.is_foreign());
  }
}

TEST(Codes, OfChangedFramesAreRefused) {
  const transport::Secret secret = transport::random_secret();
  for (const std::size_t changed :
       {std::size_t{4}, sizeof(transport::FrameHeader), sizeof(transport::FrameHeader) + 5}) {
    Wire wire(secret, secret);
    ASSERT_TRUE(wire.meet());
    wire.said.clear();
    wire.held = true;
    wire.connects.queue({.kind = transport::FrameKind::kFailed, .rank = 1, .nranks = 2},
                        transport::bytes_of(std::string_view("a text")));
    const std::size_t whole = sizeof(transport::FrameHeader) + 6 + sizeof(transport::Secret);
    Bytes bytes(whole);
    wire.near().recv(bytes, long_enough());
    bytes[changed] ^= std::byte{1};
    wire.say_to_accepting(bytes);
    EXPECT_FALSE(wire.next());
  }
}

// Changes environment variables, and restores them at the end.
class Variables {
 public:
  ~Variables() {
    for (const auto& [name, value] : before_)
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }
  void set(const char* name, const char* value) {
    const char* const old = std::getenv(name);
    before_.insert({name, old ? std::optional<std::string>(old) : std::nullopt});
    value ? ::setenv(name, value, 1) : ::unsetenv(name);
  }

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

transport::Secret secret_of(const std::string& place) {
  return transport::UniqueIdParts::of(UniqueId::parse(place, "job")).secret;
}

TEST(SharedSecrets, FollowFromWhatTheUserSets) {
  Variables variables;
  variables.set("SLIP_SECRET", "sixteen letters and more");
  const transport::Secret first = secret_of("node7:29500");
  EXPECT_EQ(secret_of("node7:29500"), first);
  EXPECT_NE(transport::UniqueIdParts::of(UniqueId::parse("node7:29500", "another job")).secret, first);
  variables.set("SLIP_SECRET", "sixteen letters and others");
  EXPECT_NE(secret_of("node7:29500"), first);
  EXPECT_NE(secret_of("unix:name"), first);
  variables.set("SLIP_SECRET", "too short");
  EXPECT_TRUE(fails([] { secret_of("node7:29500"); }, ErrorCode::kInvalidValue, {"SLIP_SECRET has 9 characters"}));
}

TEST(SharedSecrets, AreMadeOnceForEachUser) {
  const std::string folder = "slip-secrets-" + std::to_string(::getpid());
  Variables variables;
  variables.set("SLIP_SECRET", nullptr);
  variables.set("SLIP_SECRET_FILE", nullptr);
  variables.set("XDG_CONFIG_HOME", folder.c_str());
  static_cast<void>(secret_of("unix:name"));  // needs none
  EXPECT_FALSE(std::filesystem::exists(folder));
  std::vector<transport::Secret> found(8);
  expect_no_errors(
      as_ranks(8, [&](int rank) { found[static_cast<std::size_t>(rank)] = secret_of("127.0.0.1:29500"); }));
  for (const transport::Secret& one : found) EXPECT_EQ(one, found[0]);
  const std::string file = folder + "/slipstream/secret";
  struct stat made {};
  ASSERT_EQ(::stat(file.c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777, 0600U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder + "/slipstream"), {}), 1);
  variables.set("XDG_CONFIG_HOME", (folder + "/other").c_str());
  EXPECT_NE(secret_of("127.0.0.1:29500"), found[0]);  // it is random
  variables.set("SLIP_SECRET_FILE", file.c_str());
  EXPECT_EQ(secret_of("127.0.0.1:29500"), found[0]);
  ASSERT_EQ(::chmod(file.c_str(), 0640), 0);
  EXPECT_TRUE(fails([] { secret_of("127.0.0.1:29500"); }, ErrorCode::kInvalidValue, {file, "chmod 600"}));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace slip::test::test_secrets
