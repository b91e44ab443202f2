// Registrations of memory with a network end when the memory is freed, and contexts of a plug-in belong to one
// communicator. The plug-ins of the tests count both.
#include <dlfcn.h>
#include <sys/mman.h>

#include "base/memory_end.hpp"
#include "plugins/wrapped_counts.h"
#include "slip/device.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "transport/net/proxy.hpp"
#include "transport/net_ends.hpp"

namespace slip::test::test_net_registrations {
namespace {

const wrapped_counts_type& counts_of(std::string_view plugin) {
  static_cast<void>(plugin_named(plugin));
  void* const library = ::dlopen(plugin_file(plugin).c_str(), RTLD_NOW | RTLD_NOLOAD);
  return *static_cast<const wrapped_counts_type*>(::dlsym(library, "wrapped_counts"));
}

// Proxied connections over the plug-in "v9", and what happened to registrations since their construction.
class Proxied {
 public:
  Proxied() {
    Ends ends(plugin_named("v9"));
    sender = std::make_unique<transport::ProxyConnection>(proxy_, std::move(ends.sender));
    receiver = std::make_unique<transport::ProxyConnection>(proxy_, std::move(ends.receiver));
    before_ = counts_;
  }
  void move(std::span<std::byte> from, std::span<std::byte> to) {
    ASSERT_TRUE(receiver->post(to));
    ASSERT_TRUE(sender->post(from));
    sender->wait(sender->posted(), long_deadline());
    receiver->wait(receiver->posted(), long_deadline());
  }
  int registered() const { return counts_.registered - before_.registered; }
  int deregistered() const { return counts_.deregistered - before_.deregistered; }

 private:
  transport::Proxy proxy_;
  const wrapped_counts_type& counts_ = counts_of("v9");
  wrapped_counts_type before_{};

 public:
  std::unique_ptr<transport::ProxyConnection> sender, receiver;
};

constexpr std::size_t kBytes = 64 << 10;

std::span<std::byte> map(void* at = nullptr) {
  void* const data =
      ::mmap(at, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);
  return {static_cast<std::byte*>(data), kBytes};
}

TEST(Registrations, AreKeptUntilTheMemoryIsFreed) {
  Proxied lines;
  const std::span<std::byte> from = map(), to = map();
  lines.move(from, to);
  EXPECT_EQ(lines.registered(), 2);
  lines.move(from.subspan(100, 10), to.subspan(5000, 10));
  EXPECT_EQ(lines.registered(), 2);
  EXPECT_EQ(lines.deregistered(), 0);
  base::notify_memory_end(from.data(), from.size());
  EXPECT_EQ(lines.deregistered(), 1);
  ::munmap(from.data(), from.size());
  const std::span<std::byte> later = map(from.data());  // other pages at the same addresses
  ASSERT_EQ(later.data(), from.data());
  later[0] = std::byte{77};
  lines.move(later, to);
  EXPECT_EQ(to[0], std::byte{77});
  EXPECT_EQ(lines.registered(), 3);
  base::notify_memory_end(later.data() + 5, 1);  // a part of it: the whole registration ends
  EXPECT_EQ(lines.deregistered(), 2);
  base::notify_memory_end(later.data(), later.size());
  EXPECT_EQ(lines.deregistered(), 2);
  ::munmap(later.data(), later.size());
  base::notify_memory_end(to.data(), to.size());
  ::munmap(to.data(), to.size());
  EXPECT_EQ(lines.deregistered(), lines.registered());
}

TEST(Registrations, OfBuffersEndWithTheBuffers) {
  const Device device = Device::open("cpu");
  Proxied lines;
  int ended = 0;
  const auto check = [&](Buffer from, const char* kind) {
    Buffer to = device.alloc(kBytes);
    lines.move({static_cast<std::byte*>(from.native()), kBytes}, {static_cast<std::byte*>(to.native()), kBytes});
    EXPECT_EQ(lines.deregistered(), ended) << kind;
    from = Buffer();
    EXPECT_EQ(lines.deregistered(), ended += 1) << kind;
    to = Buffer();
    EXPECT_EQ(lines.deregistered(), ended += 1) << kind;
    EXPECT_EQ(lines.registered(), ended) << kind;
  };
  check(device.alloc(kBytes), "device");
  check(device.alloc(kBytes, MemoryKind::kPinned), "host");
  // The owner of wrapped memory may free it when the Buffer is gone.
  std::vector<std::byte, base::NotifyingAllocator<std::byte>> bytes(kBytes);
  check(device.wrap(bytes.data(), bytes.size()), "wrapped");
}

TEST(Registrations, OfStreamOrderedMemoryEndWithThePool) {
  Proxied lines;
  std::vector<std::byte> to(kBytes);
  {
    DeviceOptions options;
    options.pool.release_threshold = 1 << 20;
    const Device device = Device::open("cpu", options);
    Stream stream = device.stream();
    {
      Buffer from = stream.alloc(kBytes);
      stream.sync();
      lines.move({static_cast<std::byte*>(from.native()), kBytes}, to);
    }
    stream.sync();
    EXPECT_EQ(lines.deregistered(), 0);  // the pool keeps the memory for later buffers
  }
  EXPECT_EQ(lines.deregistered(), 1);
  base::notify_memory_end(to.data(), to.size());
}

TEST(Registrations, EndAfterTheOperationThatUsesThem) {
  Proxied lines;
  std::vector<std::byte> from(8);
  const std::span<std::byte> to = map();
  ASSERT_TRUE(lines.receiver->post(to.first(8)));
  ASSERT_TRUE(lines.receiver->post(to.subspan(8, 8)));
  base::notify_memory_end(to.data(), to.size());
  EXPECT_EQ(lines.deregistered(), 0);
  ASSERT_TRUE(lines.sender->post(from));
  lines.receiver->wait(1, long_deadline());
  ASSERT_TRUE(lines.receiver->post(to.subspan(16, 8)));  // the memory is registered again
  EXPECT_EQ(lines.deregistered(), 0);
  ASSERT_TRUE(lines.sender->post(from));
  ASSERT_TRUE(lines.sender->post(from));
  lines.sender->wait(3, long_deadline());
  lines.receiver->wait(3, long_deadline());
  EXPECT_EQ(lines.registered(), 3);
  base::notify_memory_end(to.data(), to.size());
  EXPECT_EQ(lines.deregistered(), 2);
  ::munmap(to.data(), to.size());
}

TEST(Registrations, EndWhileAnotherThreadMovesBytes) {
  Proxied lines;
  const std::span<std::byte> from = map(), to = map(), other = map();
  std::atomic<bool> moved{false};
  expect_no_errors(as_ranks(2, [&](int rank) {
    if (rank == 1) {
      while (!moved) base::notify_memory_end(other.data(), other.size());
      return;
    }
    for (std::size_t i = 0; i < 200; ++i) {
      const std::span<std::byte> source = i % 2 == 0 ? from : other;
      source[i] = static_cast<std::byte>(i);
      lines.move(source.first(i + 1), to.first(i + 1));
      EXPECT_EQ(to[i], static_cast<std::byte>(i));
    }
    moved = true;
  }));
  lines.sender = nullptr;
  lines.receiver = nullptr;
  EXPECT_EQ(lines.deregistered(), lines.registered() + 2);  // and the memory for messages without bytes, of both ends
  for (const std::span<std::byte> one : {from, to, other}) ::munmap(one.data(), one.size());
}

transport::NetOptions options_of(std::byte communicator) {
  transport::NetOptions options = local_options(0);
  options.key[0] = communicator;
  return options;
}

// Version 11 numbers communicators. Both ranks pass the same number; each communicator has another one.
TEST(PluginContexts, BelongToOneRankOfOneCommunicator) {
  const wrapped_counts_type& counts = counts_of("v11");
  const wrapped_counts_type before = counts;
  std::uint64_t first = 0;
  {
    const Ends ends(plugin_named("v11"), options_of(std::byte{1}));
    EXPECT_EQ(counts.begun - before.begun, 2);  // of both ranks
    first = counts.listening;
    EXPECT_EQ(counts.connecting, first);
    EXPECT_NE(first, 0U);
    EXPECT_EQ(counts.ended, before.ended);
    const Ends other(plugin_named("v11"), options_of(std::byte{2}));
    EXPECT_EQ(counts.begun - before.begun, 4);
    EXPECT_EQ(counts.connecting, counts.listening);
    EXPECT_NE(counts.listening, first);
    const Ends more(plugin_named("v11"), options_of(std::byte{1}));  // another connection of these ranks
    EXPECT_EQ(counts.begun - before.begun, 4);
    EXPECT_EQ(counts.listening, first);
  }
  EXPECT_EQ(counts.ended - before.ended, 4);
  const Ends again(plugin_named("v11"), options_of(std::byte{1}));
  EXPECT_EQ(counts.begun - before.begun, 6);
  EXPECT_EQ(counts.connecting, first);
}

TEST(PluginContexts, EndWithTheLastConnection) {
  const wrapped_counts_type& counts = counts_of("v11");
  const int ended = counts.ended;
  auto listener = plugin_named("v11").listen(options_of(std::byte{3}));
  auto ends = std::make_unique<Ends>(plugin_named("v11"), options_of(std::byte{3}));
  Memory kept(*ends->receiver, 8);
  finish(*ends->sender, nullptr, *ends->receiver, nullptr);
  ends->sender = nullptr;
  EXPECT_EQ(counts.ended - ended, 1);
  ends->receiver = nullptr;
  EXPECT_EQ(counts.ended - ended, 1);
  listener = nullptr;
  EXPECT_EQ(counts.ended - ended, 2);  // although memory of a closed connection exists
}

TEST(PluginContexts, ThatCannotBeMadeAreAnError) {
  const transport::Net& net = plugin_named("v11");
  const Fault fault("init=fail");
  EXPECT_TRUE(fails([&] { net.listen(options_of(std::byte{4})); }, ErrorCode::kIo, {"libnccl-net-v11.so", "in init"}));
}

}  // namespace
}  // namespace slip::test::test_net_registrations
