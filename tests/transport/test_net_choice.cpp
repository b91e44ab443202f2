// Which network a process chooses, and how the ranks of a communicator compare their choices.
#include <filesystem>

#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "transport/net/net_choice.hpp"
#include "transport/net_ends.hpp"

namespace slip::test::test_net_choice {
namespace {

using Variables = std::map<std::string, std::string>;

// The choice of a process with these variables: its name and reason, or the error.
SLIP_CHILD(NetChoices, Choose) {
  play([](const transport::LaunchInfo&) {
    const transport::NetChoice& choice = transport::net_choice();
    return fmt::format("{} ({}): {}", choice.name, choice.automatic ? "automatic" : "named", choice.why);
  });
}
std::string choice_with(const Variables& variables) {
  return RankProcess("NetChoices.Choose", local_id(), 1, 0, variables).report();
}

testing::AssertionResult has(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& one : words) {
    if (text.find(one) == std::string::npos)
      return testing::AssertionFailure() << "'" << one << "' is not in: " << text;
  }
  return testing::AssertionSuccess();
}

bool has_rdma_device() {
  std::error_code error;
  return std::filesystem::directory_iterator("/sys/class/infiniband", error) != std::filesystem::directory_iterator();
}

TEST(NetChoices, OtherValuesAreRefused) {
  for (const char* const value : {"UCX", "infiniband", "tcp ", "plugin", "plugin:"}) {
    EXPECT_TRUE(fails([&] { transport::require_known_net(value); }, ErrorCode::kInvalidValue,
                      {std::string("SLIP_NET=") + value + ":", "tcp, ucx or plugin:NAME", "unset it"}));
    EXPECT_TRUE(fails([&] { transport::choose_net(value); }, ErrorCode::kInvalidValue, {"SLIP_NET="}));
  }
}

TEST(NetChoices, TheVariableNamesTheNetwork) {
  EXPECT_EQ(choice_with({{"SLIP_NET", "tcp"}}), "tcp (named): SLIP_NET=tcp");
  for (const char* const name : {"slip", "libfabric"}) {
    if (!net_named(std::string("plugin:") + name).problem.empty()) continue;
    EXPECT_TRUE(has(choice_with(net_variables(std::string("plugin:") + name)),
                    {"plugin:", "(named): SLIP_NET=plugin:", "interface version", "devices: "}));
  }
  if (const NamedNet ucx = net_named("ucx"); !ucx.net) GTEST_SKIP() << ucx.problem;
  EXPECT_TRUE(has(choice_with({{"SLIP_NET", "ucx"}}), {"ucx (named): SLIP_NET=ucx: UCX 1.", "libucp.so", "tcp/"}));
  EXPECT_TRUE(
      has(choice_with({{"SLIP_NET", "ucx"}, {"UCX_TLS", "tcp"}}), {"no network but TCP", "SLIP_NET=tcp is faster"}));
}

TEST(NetChoices, WithoutAFastDeviceTcpIsChosen) {
  if (has_rdma_device()) GTEST_SKIP() << "this host has an RDMA device, which UCX may use";
  EXPECT_EQ(choice_with({}), "tcp (automatic): no RDMA device on this host, so UCX would use TCP, too");
  if (const NamedNet ucx = net_named("ucx"); !ucx.net) GTEST_SKIP() << ucx.problem;
  // The variable says that UCX is worth a look.
  EXPECT_TRUE(has(choice_with({{"SLIP_UCX_LIBRARY", "libucp.so.0"}}),
                  {"tcp (automatic): no network but TCP in UCX 1.", "tcp/"}));
}

TEST(NetChoices, FastNetworksAreThoseOfRdmaDevices) {
  EXPECT_EQ(transport::fast_networks({"self/memory", "tcp/eth0", "sysv/memory", "posix/memory", "cma/memory",
                                      "cuda_copy/cuda", "cuda_ipc/cuda", "gdr_copy/cuda", "xpmem/memory"}),
            std::vector<std::string>());
  EXPECT_EQ(transport::fast_networks({"tcp/eth0", "rc_mlx5/mlx5_0:1", "ud_verbs/hfi1_0:1", "ugni_rdma/GNI"}),
            (std::vector<std::string>{"rc_mlx5/mlx5_0:1", "ud_verbs/hfi1_0:1", "ugni_rdma/GNI"}));
}

TEST(NetChoices, ALibraryOfUcxThatIsMissingIsNamed) {
  if (const NamedNet ucx = net_named("ucx"); !ucx.net) GTEST_SKIP() << ucx.problem;
  const std::string missing = "/nowhere/libucp.so.0";
  EXPECT_TRUE(has(choice_with({{"SLIP_NET", "ucx"}, {"SLIP_UCX_LIBRARY", missing}}),
                  {"UCX cannot be used", missing, "No such file", "libucx0", "SLIP_UCX_LIBRARY=FILE", "SLIP_NET=tcp"}));
  // An automatic choice does without UCX, and says why.
  EXPECT_TRUE(has(choice_with({{"SLIP_UCX_LIBRARY", missing}}), {"tcp (automatic): UCX cannot be used", missing}));
}

TEST(NetChoices, ALibraryThatIsNotUcxIsRefused) {
  if (const NamedNet ucx = net_named("ucx"); !ucx.net) GTEST_SKIP() << ucx.problem;
  EXPECT_TRUE(has(choice_with({{"SLIP_NET", "ucx"}, {"SLIP_UCX_LIBRARY", plugin_file("empty")}}),
                  {"libnccl-net-empty.so: it has no function ucp_get_version", "UCX 1.13", "SLIP_NET=tcp"}));
}

TEST(NetChoices, AUcxWithoutATransportSaysWhichWereWanted) {
  if (const NamedNet ucx = net_named("ucx"); !ucx.net) GTEST_SKIP() << ucx.problem;
  EXPECT_TRUE(has(choice_with({{"SLIP_NET", "ucx"}, {"UCX_TLS", "nosuch"}}),
                  {"UCX 1.", "libucp.so", "UCX_TLS=nosuch", "ucx_info -d", "SLIP_NET=tcp"}));
  EXPECT_TRUE(has(choice_with({{"SLIP_NET", "ucx"}, {"UCX_TLS", "tcp"}, {"UCX_NET_DEVICES", "nosuch0"}}),
                  {"UCX_NET_DEVICES=nosuch0", "ucx_info -d", "SLIP_NET=tcp"}));
}

transport::NetOffer offer(const std::string& name, bool automatic) {
  return transport::NetOffer::of({.net = nullptr, .name = name, .why = "", .automatic = automatic});
}

TEST(NetAgreements, TheSameNetworkNeedsNoWord) {
  for (const char* const name : {"tcp", "ucx", "plugin:Slipstream"}) {
    const transport::NetOffer offers[] = {offer(name, true), offer(name, false), offer(name, true)};
    EXPECT_FALSE(transport::agree_on_net(offers).falls_back);
  }
}

TEST(NetAgreements, AutomaticChoicesThatDifferFallBackToTcp) {
  for (const bool tcp_is_automatic : {true, false}) {
    const transport::NetOffer offers[] = {offer("ucx", true), offer("ucx", true), offer("tcp", tcp_is_automatic)};
    const transport::NetAgreement agreement = transport::agree_on_net(offers);
    EXPECT_TRUE(agreement.falls_back);
    EXPECT_TRUE(
        has(agreement.why, {"rank 0 uses the network ucx", "rank 2 uses the network tcp", "all ranks can use TCP"}));
  }
}

TEST(NetAgreements, ANamedNetworkIsNotReplaced) {
  const transport::NetOffer offers[] = {offer("tcp", true), offer("ucx", false)};
  EXPECT_TRUE(fails([&] { transport::agree_on_net(offers); }, ErrorCode::kMismatch,
                    {"rank 0 uses the network tcp (chosen automatically)",
                     "rank 1 uses the network ucx (SLIP_NET names it)", "the same value for all", "SLIP_DEBUG=net"}));
}

TEST(NetAgreements, APluginMayBeNamedByTwoVariables) {
  const transport::NetOffer offers[] = {offer("tcp", false), offer("plugin:Slipstream", false)};
  EXPECT_TRUE(fails([&] { transport::agree_on_net(offers); }, ErrorCode::kMismatch,
                    {"rank 0 uses the network tcp (SLIP_NET names it)",
                     "rank 1 uses the network plugin:Slipstream (SLIP_NET or NCCL_NET_PLUGIN names it)"}));
}

TEST(NetAgreements, NamesHaveALimit) {
  EXPECT_EQ(offer(std::string(255, 'n'), false).name_text().size(), 255U);
  EXPECT_TRUE(fails([] { offer(std::string(256, 'n'), false); }, ErrorCode::kInvalidValue, {"255", "256"}));
}

}  // namespace
}  // namespace slip::test::test_net_choice
