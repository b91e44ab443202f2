// Both ends of a network connection in one test, and memory with a pattern to send over it.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "transport/net/net.hpp"
#include "transport/net/net_choice.hpp"
#include "transport/plugin_nets.hpp"

namespace slip::test {

inline transport::Deadline long_deadline() { return {base::deadline_after(60'000'000'000), nullptr}; }
inline transport::Deadline hasty() { return {base::deadline_after(20'000'000), nullptr}; }

inline transport::NetOptions local_options(int rank, const char* host = "127.0.0.1") {
  transport::NetOptions options;
  options.rank = rank;
  options.host = host;
  return options;
}

// A network by its name: "tcp", "ucx", or "plugin:NAME" (see plugin_nets.hpp). `problem`: why it cannot be tested here;
// "": it can.
struct NamedNet {
  const transport::Net* net = nullptr;
  std::string problem;
};
inline NamedNet net_named(const std::string& name) {
  if (name == "tcp") return {&transport::net_tcp(), {}};
#if defined(__SANITIZE_THREAD__)
  if (name == "ucx") return {nullptr, "the thread sanitizer does not see how UCX synchronises its threads"};
#endif
#if defined(__SANITIZE_ADDRESS__)
  if (name == "ucx" || name == "plugin:libfabric")
    return {nullptr, "the leak check would report what this library itself keeps until the process ends"};
#endif
  try {
    if (name == "ucx") return {&transport::net_ucx(), {}};
    return {&plugin_named(name.substr(name.find(':') + 1)), {}};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

// The variables that make a process use it.
inline std::map<std::string, std::string> net_variables(const std::string& name) {
  const std::string plugin = "plugin:";
  return {{"SLIP_NET", name.starts_with(plugin) ? plugin + plugin_file(name.substr(plugin.size())) : name}};
}

// The network of a test: one for each kind.
class NetTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const NamedNet named = net_named(GetParam());
    if (!named.net) GTEST_SKIP() << named.problem;
    net_ = named.net;
  }
  const transport::Net& net() const { return *net_; }

 private:
  const transport::Net* net_ = nullptr;
};
// Without the plug-in on libfabric, whose threads poll: with many ranks on few cores it takes minutes.
inline auto quick_nets() { return testing::Values("tcp", "ucx", "plugin:slip"); }
inline auto every_net() { return testing::Values("tcp", "ucx", "plugin:slip", "plugin:libfabric"); }
inline std::string net_test_name(const testing::TestParamInfo<const char*>& which) {
  const std::string name = which.param;
  return name.substr(name.find(':') + 1);
}

// Drives both ends from one thread until both requests are done. A request may be null; its end is driven all the same,
// because a network may need that before the other end can send.
inline void finish(transport::NetConnection& one, transport::NetRequest* ones, transport::NetConnection& two,
                   transport::NetRequest* twos, std::span<std::size_t> moved = {}) {
  const std::int64_t deadline = long_deadline().at_ns;
  while (ones || twos) {
    if (!ones) static_cast<void>(one.progress());
    else if (one.test(ones)) ones = nullptr;
    if (!twos) static_cast<void>(two.progress());
    else if (two.test(twos, moved)) twos = nullptr;
    ASSERT_LT(base::now_ns(), deadline);
  }
}

inline transport::NetRequest* irecv(transport::NetReceiver& line, const transport::NetPart& part) {
  return line.irecv(std::span(&part, 1));
}

// Rank 1 sends to rank 0. Both ends have exchanged an empty message: some networks finish a connection only while both
// ends are driven.
struct Ends {
  std::unique_ptr<transport::NetSender> sender;
  std::unique_ptr<transport::NetReceiver> receiver;

  enum class Meet { kYes, kNo };
  explicit Ends(const transport::Net& net, transport::NetOptions options = local_options(0), Meet meet = Meet::kYes) {
    const auto listener = net.listen(options);
    options.rank = 1;
    sender = net.connect(listener->handle(), options, long_deadline());
    receiver = listener->accept(long_deadline());
    const transport::NetPart empty;
    if (meet == Meet::kYes) finish(*sender, sender->isend(empty), *receiver, irecv(*receiver, empty));
  }
  explicit Ends(const transport::NetOptions& options = local_options(0)) : Ends(transport::net_tcp(), options) {}
};

// Bytes that are registered with one end.
struct Memory {
  std::vector<std::byte> bytes;
  std::unique_ptr<transport::NetMemory> registered;

  Memory(transport::NetConnection& line, std::size_t size) : bytes(size), registered(line.register_memory(bytes)) {}
  transport::NetPart part(int tag = 0) { return part(tag, 0, bytes.size()); }
  transport::NetPart part(int tag, std::size_t offset, std::size_t size) {
    return {bytes.data() + offset, size, tag, registered.get()};
  }
  void fill(unsigned seed) {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
  }
};

}  // namespace slip::test
