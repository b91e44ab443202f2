// Frames between a launcher and its agents, also after noise and from a hostile sender.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "transport/job/agent_channel.hpp"

namespace slip::test::test_agent_channel {
namespace {

using transport::AgentChannel;
using transport::AgentFrame;
using transport::AgentFrameKind;
using transport::AgentHello;
using transport::AgentJob;
using transport::OwnedDescriptor;

struct Pair {
  Pair() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    one.reset(ends[0]);
    two.reset(ends[1]);
  }
  OwnedDescriptor one, two;
};

std::optional<AgentFrame> receive(AgentChannel& channel) {
  channel.pump();
  return channel.next();
}

TEST(AgentChannels, FramesArriveAfterTheTextOfALoginShell) {
  Pair pair;
  const std::string noise = "Welcome to b!\nYou have mail.\n";
  ASSERT_EQ(::write(pair.two.number(), noise.data(), noise.size()), static_cast<ssize_t>(noise.size()));
  AgentChannel launcher(AgentChannel::Side::kLauncher, std::move(pair.one), OwnedDescriptor());
  EXPECT_FALSE(receive(launcher));
  AgentChannel agent(AgentChannel::Side::kAgent, std::move(pair.two), OwnedDescriptor());
  agent.send({.kind = AgentFrameKind::kExit, .rank = 3, .value = 7, .exited = true, .body = "abc"});
  agent.send({.kind = AgentFrameKind::kAlive});
  const std::optional<AgentFrame> first = receive(launcher), second = launcher.next();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->kind, AgentFrameKind::kExit);
  EXPECT_EQ(first->rank, 3);
  EXPECT_EQ(first->value, 7);
  EXPECT_TRUE(first->exited);
  EXPECT_EQ(first->body, "abc");
  EXPECT_EQ(second->kind, AgentFrameKind::kAlive);
  EXPECT_FALSE(launcher.next());
  EXPECT_EQ(launcher.noise(), noise);
}

TEST(AgentChannels, LargeFramesArriveInPieces) {
  Pair pair;
  AgentChannel launcher(AgentChannel::Side::kLauncher, std::move(pair.one), OwnedDescriptor());
  AgentChannel agent(AgentChannel::Side::kAgent, std::move(pair.two), OwnedDescriptor());
  std::string body(5 << 20, 'x');
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>(i * 31 / 7);
  agent.send({.kind = AgentFrameKind::kJob, .body = body});
  std::optional<AgentFrame> frame;
  for (int i = 0; i < 100'000 && !frame; ++i) {
    frame = receive(launcher);
    agent.flush();
  }
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->body, body);
  EXPECT_EQ(agent.unsent(), 0U);
}

TEST(AgentChannels, TheEndIsSeenAndAClosedChannelTakesFrames) {
  Pair pair;
  AgentChannel launcher(AgentChannel::Side::kLauncher, std::move(pair.one), OwnedDescriptor());
  pair.two.reset();
  launcher.send({.kind = AgentFrameKind::kAlive});  // must not raise SIGPIPE
  EXPECT_FALSE(receive(launcher));
  EXPECT_TRUE(launcher.ended());
}

// An agent ends its ranks, which takes a while, after its launcher is gone. Frames that stay unsent would keep it busy.
TEST(AgentChannels, AfterTheEndNoFrameStaysUnsent) {
  Pair pair;
  AgentChannel agent(AgentChannel::Side::kAgent, std::move(pair.one), OwnedDescriptor());
  agent.send({.kind = AgentFrameKind::kOutput, .rank = 0, .value = 1, .body = std::string(4 << 20, 'x')});
  EXPECT_GT(agent.unsent(), 0U);  // more than the socket takes
  pair.two.reset();
  EXPECT_FALSE(receive(agent));
  EXPECT_TRUE(agent.ended());
  agent.send({.kind = AgentFrameKind::kAlive});
  EXPECT_EQ(agent.unsent(), 0U);
}

TEST(AgentChannels, RandomBytesEndAChannel) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Pair pair;
    std::string bytes(16 + random() % 4000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    ASSERT_GT(::write(pair.two.number(), bytes.data(), bytes.size()), 0);
    pair.two.reset();
    AgentChannel channel(AgentChannel::Side::kAgent, std::move(pair.one), OwnedDescriptor());
    while (receive(channel)) {}
    EXPECT_TRUE(channel.ended());
  }
}

TEST(AgentChannels, JobsAndHellosAreWritten) {
  const AgentJob job{.ranks = {2, 5},
                     .nranks = 8,
                     .directory = "/a b",
                     .command = {"sh", "-c", "", "x\ny"},
                     .variables = {{"A", "1"}, {"B", ""}},
                     .grace_ns = 5,
                     .silence_ns = 6,
                     .nccl = true};
  const std::string body = job.body();
  const std::optional<AgentJob> read = AgentJob::parse(body);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->body(), body);
  EXPECT_EQ(read->command, job.command);
  EXPECT_EQ(read->variables, job.variables);
  EXPECT_EQ(read->ranks, job.ranks);
  for (std::size_t bytes = 0; bytes < body.size(); ++bytes)
    EXPECT_FALSE(AgentJob::parse(std::string_view(body).substr(0, bytes))) << bytes;
  EXPECT_FALSE(AgentJob::parse(body + "x"));

  const AgentHello hello{.version = "slip 1", .from_host = "10.0.0.1", .own_host = "10.0.0.2"};
  EXPECT_EQ(AgentHello::parse(hello.body())->own_host, "10.0.0.2");
  EXPECT_FALSE(AgentHello::parse(hello.body() + "x"));
  EXPECT_EQ(AgentHello::parse(AgentHello{.protocol = 9, .version = "slip 9"}.body() + "more")->version, "slip 9");
}

TEST(AgentChannels, HostileBodiesAreRefused) {
  std::mt19937 random(7);
  const std::string body =
      AgentJob{.ranks = {0}, .directory = "/", .command = {"true"}, .variables = {{"A", "1"}}}.body();
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = body;
    for (int k = 0; k < 3; ++k) changed[random() % changed.size()] = static_cast<char>(random());
    const std::optional<AgentJob> job = AgentJob::parse(changed);  // must neither crash nor take long
    if (job) {
      EXPECT_TRUE(!job->command.empty() && !job->ranks.empty() && job->body().size() <= changed.size());
    }
    refused += job ? 0 : 1;
  }
  EXPECT_GT(refused, 10'000);
}

}  // namespace
}  // namespace slip::test::test_agent_channel
