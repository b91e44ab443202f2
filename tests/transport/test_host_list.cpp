// The hosts that a user lists, and which ranks each gets.
#include <gtest/gtest.h>

#include "slip/error.hpp"
#include "transport/job/job.hpp"

namespace slip::test::test_host_list {
namespace {

using transport::HostEntry;
using transport::HostRanks;

std::string text(const std::vector<HostEntry>& entries) {
  std::string result;
  for (const HostEntry& entry : entries) result += entry.name + "=" + std::to_string(entry.slots) + " ";
  return result;
}

std::string placed(const std::string& list, int nranks) {
  std::string result;
  for (const HostRanks& host : transport::place_ranks(transport::parse_hosts(list), nranks)) {
    result += host.name + ":";
    for (const int rank : host.ranks) result += std::to_string(rank);
    result += " ";
  }
  return result;
}

template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(HostLists, NamesAddressesUsersAndSlots) {
  EXPECT_EQ(text(transport::parse_hosts("a,b:4,me@c,me@d:2")), "a=0 b=4 me@c=0 me@d=2 ");
  EXPECT_EQ(text(transport::parse_hosts("10.0.0.7:3,fd77::1,[fd77::2],[fd77::3]:8,me@[fd77::4]:2")),
            "10.0.0.7=3 fd77::1=0 fd77::2=0 fd77::3=8 me@fd77::4=2 ");
  EXPECT_EQ(text(transport::parse_hosts("fe80::1%eth0")), "fe80::1%eth0=0 ");
}

TEST(HostLists, SaysWhatIsWrongWithAnEntry) {
  for (const char* list : {"", "a,,b", "a,", ":4", "a:0", "a:-1", "a:x", "a:", "-oProxyCommand=x", "a b", "a;b",
                           "a$(x)", "me@", "me@:2", "@a", "[fd77::1]4", "[fd77::1]:", "a:99999999999"})
    EXPECT_NE(error_of([&] { transport::parse_hosts(list); }).find("--hosts: '"), std::string::npos) << list;
  EXPECT_NE(error_of([] { transport::parse_hosts("a,b:none"); }).find("'b:none' has 'none' slots"), std::string::npos);
}

TEST(HostLists, FilesHaveTheFormatsOfOtherLaunchers) {
  EXPECT_EQ(text(transport::parse_host_file("# comment\n\na slots=4\n  b:2\t# two\r\nc\nme@d  slots=8", "hosts")),
            "a=4 b=2 c=0 me@d=8 ");
  EXPECT_NE(
      error_of([] { transport::parse_host_file("a\nb max_slots=3\n", "hosts"); }).find("hosts, line 2: 'max_slots=3'"),
      std::string::npos);
  EXPECT_NE(error_of([] { transport::parse_host_file("a:2 slots=3\n", "hosts"); }).find("hosts, line 1"),
            std::string::npos);
  EXPECT_NE(error_of([] { transport::parse_host_file("# none\n", "hosts"); }).find("hosts names no host"),
            std::string::npos);
}

TEST(HostLists, RanksFillTheHostsInOrder) {
  EXPECT_EQ(placed("a,b,c", 8), "a:012 b:345 c:67 ");
  EXPECT_EQ(placed("a,b,c", 2), "a:0 b:1 ");
  EXPECT_EQ(placed("a:4,b:4", 6), "a:0123 b:45 ");
  EXPECT_EQ(placed("a:4,b:4", 0), "a:0123 b:4567 ");
  EXPECT_EQ(placed("a,b", 0), "a:0 b:1 ");
  EXPECT_EQ(placed("a,b:4,c", 8), "a:01 b:2345 c:67 ");
  EXPECT_EQ(placed("a:2,b:1,a:2", 5), "a:0134 b:2 ");
  EXPECT_EQ(placed("a,a,b", 3), "a:01 b:2 ");
}

TEST(HostLists, RanksThatDoNotFitAreRefused) {
  EXPECT_NE(error_of([] { placed("a:4,b:4", 9); }).find("9 ranks do not fit in the 8 slots"), std::string::npos);
  EXPECT_NE(error_of([] { placed("a,b:4", 4); }).find("no rank is left"), std::string::npos);
}

TEST(HostLists, ThisHost) {
  for (const char* name : {"localhost", "127.0.0.1"}) EXPECT_TRUE(transport::is_this_host(name)) << name;
  for (const char* name : {"192.0.2.77", "no-such-host", "root@localhost"})
    EXPECT_FALSE(transport::is_this_host(name)) << name;
}

}  // namespace
}  // namespace slip::test::test_host_list
