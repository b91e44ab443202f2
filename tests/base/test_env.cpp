// The environment is read once per process, so each case runs in a child of its own.
#include <cstdlib>

#include "backend/child.hpp"
#include "base/env.hpp"

namespace slip::test_env {
namespace {

struct Setting {
  const char* name;
  const char* value;
};

template <class Body>
int with(std::initializer_list<Setting> settings, const Body& body) {
  return test::child_exit([&] {
    for (const char* name :
         {"SLIP_LAUNCH_BLOCKING", "SLIP_MAX_CONNECTIONS", "SLIP_POLICY", "SLIP_STRICT", "SLIP_CHECK", "SLIP_TRACE"})
      unsetenv(name);
    for (const Setting& setting : settings) setenv(setting.name, setting.value, 1);
    return body();
  });
}

// 0: env() throws kInvalidValue with the variable and its value in the text.
int refuses(const char* name, const char* value) {
  return with({{name, value}}, [&] {
    const std::string text = test::text_of([] { base::env(); });
    if (text.empty()) return 1;
    return test::contains(text, std::string(name) + "=" + value) ? 0 : 2;
  });
}

TEST(Env, DefaultsWhenNothingIsSet) {
  EXPECT_EQ(0, with({}, [] {
              const base::Env& read = base::env();
              return !read.launch_blocking && read.max_connections == 0 && read.policy.empty() && !read.strict &&
                             !read.check && read.trace.empty()
                         ? 0
                         : 1;
            }));
}

TEST(Env, ReadsEveryVariable) {
  EXPECT_EQ(0, with({{"SLIP_LAUNCH_BLOCKING", "1"},
                     {"SLIP_MAX_CONNECTIONS", "8"},
                     {"SLIP_POLICY", "random:7"},
                     {"SLIP_STRICT", "0"},
                     {"SLIP_CHECK", "1"},
                     {"SLIP_TRACE", "a b.json"}},
                    [] {
                      const base::Env& read = base::env();
                      return read.launch_blocking && read.max_connections == 8 && read.policy == "random:7" &&
                                     !read.strict && read.check && read.trace == "a b.json"
                                 ? 0
                                 : 1;
                    }));
}

TEST(Env, IsReadOnce) {
  EXPECT_EQ(0, with({{"SLIP_MAX_CONNECTIONS", "2"}}, [] {
              if (base::env().max_connections != 2) return 1;
              setenv("SLIP_MAX_CONNECTIONS", "9", 1);
              return base::env().max_connections == 2 ? 0 : 2;
            }));
}

TEST(Env, RefusesWhatIsNoFlag) {
  for (const char* value : {"2", "yes", "-1", " 1", "1 "}) EXPECT_EQ(0, refuses("SLIP_STRICT", value)) << value;
  EXPECT_EQ(0, refuses("SLIP_LAUNCH_BLOCKING", "true"));
}

TEST(Env, RefusesNumbersOutOfRange) {
  for (const char* value : {"0", "33", "-1", "8x", "0x8", "99999999999999999999", "1.5", "+4"})
    EXPECT_EQ(0, refuses("SLIP_MAX_CONNECTIONS", value)) << value;
  for (const char* value : {"1", "32"})
    EXPECT_EQ(
        0, with({{"SLIP_MAX_CONNECTIONS", value}}, [&] { return base::env().max_connections == atoi(value) ? 0 : 1; }));
}

TEST(Env, EmptyIsLikeUnset) {
  EXPECT_EQ(0, with({{"SLIP_MAX_CONNECTIONS", ""}, {"SLIP_STRICT", ""}},
                    [] { return base::env().max_connections == 0 && !base::env().strict ? 0 : 1; }));
}

TEST(Env, ADeviceFollowsThePolicy) {
  const auto opened = [](const char* value, CpuPolicy policy, std::uint64_t seed) {
    return with({{"SLIP_POLICY", value}}, [&] {
      const Device device = Device::open("cpu");
      return device.options().policy == policy && device.options().seed == seed ? 0 : 1;
    });
  };
  EXPECT_EQ(0, opened("single", CpuPolicy::kSingle, 1));
  EXPECT_EQ(0, opened("concurrent", CpuPolicy::kConcurrent, 1));
  EXPECT_EQ(0, opened("random", CpuPolicy::kRandom, 1));
  EXPECT_EQ(0, opened("random:42", CpuPolicy::kRandom, 42));
}

TEST(Env, ADeviceRefusesAnUnknownPolicy) {
  for (const char* value : {"rand", "random:", "random:x", "random:7x", "randomly", "SINGLE", "random7"}) {
    EXPECT_EQ(0, with({{"SLIP_POLICY", value}},
                      [&] {
                        const std::string text = test::text_of([] { Device::open("cpu"); });
                        return test::contains(text, std::string("SLIP_POLICY=") + value) ? 0 : 1;
                      }))
        << value;
  }
}

TEST(Env, TheOptionGoesBeforeTheVariableForConnections) {
  EXPECT_EQ(0, with({{"SLIP_MAX_CONNECTIONS", "2"}}, [] {
              const Device asked = Device::open("cpu", {.max_connections = 5});
              const Device plain = Device::open("cpu");
              return asked.info().queues == 5 && plain.info().queues == 2 ? 0 : 1;
            }));
}

}  // namespace
}  // namespace slip::test_env
