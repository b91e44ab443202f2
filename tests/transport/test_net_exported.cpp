// libnccl-net-slip.so as NCCL uses it: through its tables, with all versions of the interface, without our loader.
#include <dlfcn.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>

#include "base/clock.hpp"
#include "gtest/gtest.h"
#include "transport/net_plugin/nccl_net.h"
#include "transport/plugin_nets.hpp"

namespace slip::test::test_net_exported {
namespace {

thread_local std::string t_logged;

void log(net_log_level level, unsigned long, const char*, int, const char* format, ...) {
  if (level != NET_LOG_WARN) return;
  char line[1024];
  va_list values;
  va_start(values, format);
  std::vsnprintf(line, sizeof(line), format, values);
  va_end(values);
  t_logged = line;
}

template <class Table>
const Table& table(const char* symbol) {
  static void* const kLibrary = ::dlopen(SLIP_OWN_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  const void* const found = kLibrary ? ::dlsym(kLibrary, symbol) : nullptr;
  if (!found) throw std::runtime_error(::dlerror());
  return *static_cast<const Table*>(found);
}

const net_table_v11& newest() {
  static const net_table_v11* const kTable = [&] {
    const auto* const one = &table<net_table_v11>("ncclNetPlugin_v11");
    void* context = nullptr;
    net_config config{NET_TRAFFIC_CLASS_UNDEF};
    if (one->init(&context, 1, &config, &log, nullptr) != NET_SUCCESS) throw std::runtime_error(t_logged);
    return one;
  }();
  return *kTable;
}

// A connection as NCCL makes one: connect() and accept() are called until both have an object.
struct Pair {
  void *sender = nullptr, *receiver = nullptr;

  Pair() {
    const net_table_v11& net = newest();
    std::array<std::byte, NET_HANDLE_BYTES> handle{};
    void* listener = nullptr;
    EXPECT_EQ(net.listen(nullptr, 0, handle.data(), &listener), NET_SUCCESS) << t_logged;
    const std::int64_t deadline = base::deadline_after(60'000'000'000);
    while ((!sender || !receiver) && base::now_ns() < deadline) {
      if (!sender) {
        EXPECT_EQ(net.connect(nullptr, 0, handle.data(), &sender, nullptr), NET_SUCCESS) << t_logged;
      }
      if (!receiver) {
        EXPECT_EQ(net.accept(listener, &receiver, nullptr), NET_SUCCESS) << t_logged;
      }
    }
    EXPECT_EQ(net.close_listen(listener), NET_SUCCESS);
  }
  ~Pair() {
    if (sender) newest().close_send(sender);
    if (receiver) newest().close_recv(receiver);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
};

void* register_bytes(void* comm, std::span<char> bytes) {
  void* memory = nullptr;
  EXPECT_EQ(newest().reg_mr(comm, bytes.data(), bytes.size(), NET_PTR_HOST, &memory), NET_SUCCESS) << t_logged;
  return memory;
}

// Tests both requests until they are done; returns the lengths of the second one.
std::array<int, 8> finish(void* one, void* two) {
  std::array<int, 8> bytes{};
  const std::int64_t deadline = base::deadline_after(60'000'000'000);
  while ((one || two) && base::now_ns() < deadline) {
    int done = 0;
    if (one) {
      EXPECT_EQ(newest().test(one, &done, nullptr), NET_SUCCESS) << t_logged;
    }
    if (done) one = nullptr;
    done = 0;
    if (two) {
      EXPECT_EQ(newest().test(two, &done, bytes.data()), NET_SUCCESS) << t_logged;
    }
    if (done) two = nullptr;
  }
  EXPECT_EQ(one, nullptr);
  EXPECT_EQ(two, nullptr);
  return bytes;
}

TEST(ExportedPlugin, DescribesItsDevices) {
  int count = 0;
  ASSERT_EQ(newest().devices(&count), NET_SUCCESS);
  ASSERT_GE(count, 1);
  for (int device = 0; device < count; ++device) {
    net_properties_v11 all{};
    net_properties_v8 old{};
    ASSERT_EQ(newest().get_properties(device, &all), NET_SUCCESS);
    ASSERT_EQ(table<net_table_v8>("ncclNetPlugin_v8").get_properties(device, &old), NET_SUCCESS);
    EXPECT_STREQ(all.name, old.name);
    EXPECT_NE(all.name[0], '\0');
    EXPECT_GT(all.speed, 0);
    EXPECT_EQ(all.ptr_support, NET_PTR_HOST);
    EXPECT_EQ(all.max_recvs, 8);
    EXPECT_EQ(old.max_recvs, 8);
    EXPECT_EQ(all.max_p2p_bytes, std::size_t{1} << 30);
    EXPECT_EQ(all.virtual_device.ndevs, 1);
    EXPECT_EQ(all.virtual_device.devs[0], device);
    net_properties_v11 again{};
    ASSERT_EQ(newest().get_properties(device, &again), NET_SUCCESS);
    EXPECT_EQ(again.name, all.name) << "NCCL keeps the pointer";
  }
  net_properties_v11 none{};
  EXPECT_EQ(newest().get_properties(count, &none), NET_INVALID_USAGE);
  EXPECT_NE(t_logged.find("no device " + std::to_string(count)), std::string::npos) << t_logged;
}

TEST(ExportedPlugin, AConnectionIsMadeWithoutWaiting) {
  const net_table_v11& net = newest();
  std::array<std::byte, NET_HANDLE_BYTES> handle{};
  void *listener = nullptr, *receiver = nullptr;
  ASSERT_EQ(net.listen(nullptr, 0, handle.data(), &listener), NET_SUCCESS) << t_logged;
  EXPECT_EQ(net.accept(listener, &receiver, nullptr), NET_SUCCESS);
  EXPECT_EQ(receiver, nullptr) << "nobody has connected";
  net.close_listen(listener);
  const Pair pair;
  EXPECT_NE(pair.sender, nullptr);
  EXPECT_NE(pair.receiver, nullptr);
}

TEST(ExportedPlugin, CarriesGroupsOfMessagesByTheirTags) {
  const Pair pair;
  std::string from = "one.two.three";
  std::array<char, 64> to{};
  void* const out = register_bytes(pair.sender, from);
  void* const in = register_bytes(pair.receiver, to);
  void* data[3] = {to.data(), to.data() + 16, to.data() + 32};
  std::size_t bytes[3] = {16, 16, 16};
  int tags[3] = {7, 5, 6};
  void* memories[3] = {in, in, in};
  void* receive = nullptr;
  ASSERT_EQ(newest().irecv(pair.receiver, 3, data, bytes, tags, memories, nullptr, &receive), NET_SUCCESS) << t_logged;
  void* sends[3] = {};
  ASSERT_EQ(newest().isend(pair.sender, from.data(), 4, 5, out, nullptr, &sends[0]), NET_SUCCESS);
  ASSERT_EQ(newest().isend(pair.sender, from.data() + 4, 4, 6, out, nullptr, &sends[1]), NET_SUCCESS);
  ASSERT_EQ(newest().isend(pair.sender, from.data() + 8, 5, 7, out, nullptr, &sends[2]), NET_SUCCESS);
  finish(sends[0], nullptr);
  finish(sends[1], nullptr);
  const std::array<int, 8> moved = finish(sends[2], receive);
  EXPECT_EQ(moved[0], 5);
  EXPECT_EQ(moved[1], 4);
  EXPECT_EQ(moved[2], 4);
  EXPECT_STREQ(to.data(), "three");
  EXPECT_STREQ(to.data() + 16, "one.");
  EXPECT_STREQ(to.data() + 32, "two.");
  void* flush = &flush;
  EXPECT_EQ(newest().iflush(pair.receiver, 0, data, nullptr, memories, &flush), NET_SUCCESS);
  EXPECT_EQ(flush, nullptr) << "host memory needs no flush";
  EXPECT_EQ(newest().dereg_mr(pair.sender, out), NET_SUCCESS);
  EXPECT_EQ(newest().dereg_mr(pair.receiver, in), NET_SUCCESS);
}

// NCCL posts at most 32 receives, and 32 sends for each part of a receive.
TEST(ExportedPlugin, TakesAsManyRequestsAsNcclMayPost) {
  const Pair pair;
  std::array<char, 256> from{}, to{};
  void* const out = register_bytes(pair.sender, from);
  void* const in = register_bytes(pair.receiver, to);
  std::array<void*, 256> sends{};
  for (std::size_t i = 0; i < sends.size(); ++i) {
    from[i] = static_cast<char>(i);
    ASSERT_EQ(newest().isend(pair.sender, &from[i], 1, 0, out, nullptr, &sends[i]), NET_SUCCESS) << t_logged;
    ASSERT_NE(sends[i], nullptr) << i;
  }
  for (std::size_t i = 0; i < sends.size(); ++i) {
    void* data = &to[i];
    std::size_t bytes = 1;
    int tag = 0;
    void *memory = in, *receive = nullptr;
    ASSERT_EQ(newest().irecv(pair.receiver, 1, &data, &bytes, &tag, &memory, nullptr, &receive), NET_SUCCESS);
    finish(sends[i], receive);
  }
  EXPECT_EQ(from, to);
  newest().dereg_mr(pair.sender, out);
  newest().dereg_mr(pair.receiver, in);
}

TEST(ExportedPlugin, SaysWhatIsWrong) {
  const Pair pair;
  std::array<char, 8> bytes{};
  void* memory = nullptr;
  EXPECT_EQ(newest().reg_mr(pair.sender, bytes.data(), bytes.size(), NET_PTR_CUDA, &memory), NET_INVALID_USAGE);
  EXPECT_NE(t_logged.find("only host memory"), std::string::npos) << t_logged;
  void* request = nullptr;
  EXPECT_EQ(newest().isend(pair.sender, bytes.data(), bytes.size(), 0, nullptr, nullptr, &request), NET_INVALID_USAGE);
  EXPECT_NE(t_logged.find("registered memory"), std::string::npos) << t_logged;
  // Version 8 passes lengths as int.
  void* const registered = register_bytes(pair.sender, bytes);
  const auto& old = table<net_table_v8>("ncclNetPlugin_v8");
  EXPECT_EQ(old.isend(pair.sender, bytes.data(), -1, 0, registered, &request), NET_INVALID_USAGE);
  EXPECT_EQ(newest().isend(pair.sender, bytes.data(), bytes.size() + 1, 0, registered, nullptr, &request),
            NET_INVALID_USAGE);
  EXPECT_EQ(newest().dereg_mr(pair.sender, registered), NET_SUCCESS);
  EXPECT_EQ(newest().irecv(pair.receiver, 9, nullptr, nullptr, nullptr, nullptr, nullptr, &request), NET_INVALID_USAGE);
  EXPECT_NE(t_logged.find("9 parts"), std::string::npos) << t_logged;
  std::array<std::byte, NET_HANDLE_BYTES> handle{};
  void* sender = nullptr;
  EXPECT_EQ(newest().connect(nullptr, 0, handle.data(), &sender, nullptr), NET_INVALID_USAGE);
  EXPECT_NE(t_logged.find("no handle of the tcp network"), std::string::npos) << t_logged;
  EXPECT_EQ(newest().listen(nullptr, 1000, handle.data(), &sender), NET_INVALID_USAGE);
}

TEST(ExportedPlugin, ReportsAPeerThatIsGone) {
  Pair pair;
  std::array<char, 8> to{};
  void* const in = register_bytes(pair.receiver, to);
  void* data = to.data();
  std::size_t bytes = to.size();
  int tag = 0;
  void *memory = in, *receive = nullptr;
  ASSERT_EQ(newest().irecv(pair.receiver, 1, &data, &bytes, &tag, &memory, nullptr, &receive), NET_SUCCESS);
  newest().close_send(std::exchange(pair.sender, nullptr));
  net_result result = NET_SUCCESS;
  const std::int64_t deadline = base::deadline_after(60'000'000'000);
  for (int done = 0; result == NET_SUCCESS && base::now_ns() < deadline;) {
    result = newest().test(receive, &done, nullptr);
    ASSERT_EQ(done, 0);
  }
  EXPECT_EQ(result, NET_REMOTE_ERROR);
  EXPECT_NE(t_logged.find("the peer at "), std::string::npos) << t_logged;
  // A listener that is gone, too.
  std::array<std::byte, NET_HANDLE_BYTES> handle{};
  void *listener = nullptr, *sender = nullptr;
  ASSERT_EQ(newest().listen(nullptr, 0, handle.data(), &listener), NET_SUCCESS);
  newest().close_listen(listener);
  result = NET_SUCCESS;
  while (result == NET_SUCCESS && !sender && base::now_ns() < deadline)
    result = newest().connect(nullptr, 0, handle.data(), &sender, nullptr);
  EXPECT_EQ(result, NET_REMOTE_ERROR) << t_logged;
  newest().dereg_mr(pair.receiver, in);
}

}  // namespace
}  // namespace slip::test::test_net_exported
