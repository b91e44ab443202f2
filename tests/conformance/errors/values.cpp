// Bad input: invalid sizes, ranges, flags and kernels. The error names the values, the call has no effect and the
// stream continues to work.
#include "slip/plan.hpp"
#include "support/errors.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::values {
namespace {

class BadValues : public DeviceTest {};

TEST_P(BadValues, CopiesOfDifferentSizes) {
  const Device device = open();
  const Stream stream = device.stream();
  const Buffer small = device.alloc(100), large = device.alloc(300), host = device.alloc(200, MemoryKind::kPinned);
  EXPECT_TRUE(fails([&] { stream.copy(large, small); }, ErrorCode::kInvalidValue, {"100", "300"}));
  EXPECT_TRUE(fails([&] { stream.copy(small, host); }, ErrorCode::kInvalidValue, {"200", "100"}));
  EXPECT_TRUE(fails([&] { device.copy(small, large); }, ErrorCode::kInvalidValue, {"300", "100"}));
  stream.copy(large.slice(0, 100), small);
  EXPECT_TRUE(finished(stream));
}

TEST_P(BadValues, OverlappingCopies) {
  const Device device = open();
  const Stream stream = device.stream();
  const Buffer buffer = device.alloc(100, MemoryKind::kDevice, "grid");
  const Buffer host = device.alloc(100, MemoryKind::kPageable, "page");
  const auto copy = [&](std::size_t to, std::size_t from, std::size_t bytes) {
    return [&, to, from, bytes] { stream.copy(buffer.slice(to, bytes), buffer.slice(from, bytes)); };
  };
  EXPECT_TRUE(fails(copy(10, 0, 20), ErrorCode::kInvalidValue, {"grid", "20 bytes", "from offset 0", "to offset 10"}));
  EXPECT_TRUE(fails(copy(0, 19, 20), ErrorCode::kInvalidValue, {"grid"}));
  EXPECT_TRUE(fails(copy(0, 0, 100), ErrorCode::kInvalidValue, {"grid"}));
  EXPECT_NO_THROW(copy(0, 20, 20)());
  EXPECT_TRUE(fails([&] { device.copy(host.slice(0, 50), host.slice(49, 50)); }, ErrorCode::kInvalidValue, {"page"}));
  EXPECT_TRUE(finished(stream));
}

TEST_P(BadValues, SlicesOverTheEnd) {
  const Device device = open();
  const Buffer buffer = device.alloc(100);
  EXPECT_TRUE(fails([&] { static_cast<void>(buffer.slice(90, 11)); }, ErrorCode::kInvalidValue, {"11", "90", "100"}));
  EXPECT_TRUE(fails([&] { static_cast<void>(buffer.slice(101, 0)); }, ErrorCode::kInvalidValue, {"101"}));
  EXPECT_TRUE(fails([&] { static_cast<void>(buffer.slice(1, ~std::size_t{0})); }, ErrorCode::kInvalidValue));
  EXPECT_NO_THROW(static_cast<void>(buffer.slice(100, 0)));
  const Stream stream = device.stream();
  Range wrong = buffer;
  wrong.offset = 60;  // a range made by hand
  EXPECT_TRUE(fails([&] { stream.fill(wrong, 1); }, ErrorCode::kInvalidValue, {"60", "160", "100"}));
  wrong.offset = ~std::size_t{0};
  EXPECT_TRUE(fails([&] { stream.fill(wrong, 1); }, ErrorCode::kInvalidValue));
}

TEST_P(BadValues, NothingToDoIsNoError) {
  const Device device = open();
  const Stream stream = device.stream();
  const Buffer a = device.alloc(64), b = device.alloc(64), host = device.alloc(64, MemoryKind::kPageable);
  stream.copy(a.slice(0, 0), b.slice(64, 0));
  stream.copy(a.slice(5, 0), host.slice(3, 0));
  stream.fill(a.slice(64, 0), 1);
  device.copy(host.slice(0, 0), a.slice(0, 0));
  EXPECT_TRUE(finished(stream));
}

TEST_P(BadValues, Allocations) {
  const Device device = open([](DeviceOptions& options) { options.memory_limit = 1 << 20; });
  const Stream stream = device.stream();
  EXPECT_TRUE(fails([&] { static_cast<void>(device.alloc(0)); }, ErrorCode::kInvalidValue, {"0 bytes"}));
  EXPECT_TRUE(fails([&] { static_cast<void>(stream.alloc(0)); }, ErrorCode::kInvalidValue, {"0 bytes"}));
  EXPECT_TRUE(fails([&] { static_cast<void>(device.wrap(nullptr, 8)); }, ErrorCode::kInvalidValue, {"8 bytes"}));
  int value = 0;
  EXPECT_TRUE(fails([&] { static_cast<void>(device.wrap(&value, 0)); }, ErrorCode::kInvalidValue, {"0 bytes"}));
  const Buffer half = device.alloc(512 << 10);
  EXPECT_TRUE(fails([&] { static_cast<void>(device.alloc(600000, MemoryKind::kDevice, "second half")); },
                    ErrorCode::kOutOfMemory, {"600000", "524288", "1048576", "second half"}));
  EXPECT_TRUE(fails([&] { static_cast<void>(stream.alloc(600000)); }, ErrorCode::kOutOfMemory,
                    {"600000", "524288", "1048576"}));
  for (const std::size_t bytes : {~std::size_t{0}, ~std::size_t{0} - 4096, std::size_t{1} << 62}) {
    EXPECT_TRUE(
        fails([&] { static_cast<void>(device.alloc(bytes)); }, ErrorCode::kOutOfMemory, {std::to_string(bytes)}));
    EXPECT_TRUE(
        fails([&] { static_cast<void>(stream.alloc(bytes)); }, ErrorCode::kOutOfMemory, {std::to_string(bytes)}));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose allocators end the program instead
    EXPECT_TRUE(fails([&] { static_cast<void>(device.alloc(bytes, MemoryKind::kPinned)); }, ErrorCode::kOutOfMemory));
#endif
  }
  EXPECT_EQ(device.memory().used, half.bytes()) << "nothing leaked";
  EXPECT_NO_THROW(static_cast<void>(device.alloc(512 << 10)));
}

TEST_P(BadValues, HostAccess) {
  const Device device = open();
  Buffer memory = device.alloc(64, MemoryKind::kDevice, "activations");
  EXPECT_TRUE(fails([&] { static_cast<void>(memory.host_read<int>()); }, ErrorCode::kInvalidValue, {"activations"}));
  EXPECT_TRUE(fails([&] { static_cast<void>(memory.host_write<int>()); }, ErrorCode::kInvalidValue, {"activations"}));
  const Stream stream = device.stream();
  const Buffer pageable = device.alloc(64, MemoryKind::kPageable, "notes");
  EXPECT_TRUE(fails([&] { stream.launch(store_kernel(), {.writes = {pageable}, .scalars = {1}}); },
                    ErrorCode::kInvalidValue, {"store", "notes"}));
  EXPECT_TRUE(fails([&] { stream.fill(pageable, 1); }, ErrorCode::kInvalidValue, {"pageable"}));
}

TEST_P(BadValues, Words) {
  const Device device = open();
  const Stream stream = device.stream();
  const Buffer pinned = device.alloc(64, MemoryKind::kPinned), pageable = device.alloc(64, MemoryKind::kPageable);
  EXPECT_TRUE(fails([&] { stream.wait_value(pinned, 1); }, ErrorCode::kInvalidValue, {"64 bytes"}));
  EXPECT_TRUE(fails([&] { stream.wait_value(pinned.slice(2, 4), 1); }, ErrorCode::kInvalidValue, {"at 2"}));
  EXPECT_TRUE(fails([&] { stream.write_value(pinned.slice(0, 8), 1); }, ErrorCode::kInvalidValue, {"8 bytes"}));
  EXPECT_TRUE(fails([&] { stream.write_value(pageable.slice(0, 4), 1); }, ErrorCode::kInvalidValue, {"write_value"}));
  EXPECT_TRUE(finished(stream));
}

TEST_P(BadValues, Kernels) {
  const Device device = open();
  const Stream stream = device.stream();
  const Buffer memory = device.alloc(64);
  static const Kernel kEmpty{"elsewhere"};
  EXPECT_TRUE(fails([&] { stream.launch(kEmpty); }, ErrorCode::kUnsupported, {"elsewhere"}));
  for (const double width : {0.0, -1.0, 1.5, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_TRUE(
        fails([&] { stream.launch(store_kernel(), {}, {.width = width}); }, ErrorCode::kInvalidValue, {"store"}));
  EXPECT_TRUE(fails([&] { stream.host({}); }, ErrorCode::kInvalidValue));
  EXPECT_TRUE(finished(stream));
  const auto forget = [&] {  // it asks for a scalar that is not there
    stream.launch(store_kernel(), {.writes = {memory}, .name = "forgetful"});
  };
  if (on_cuda()) {  // its function checks at the launch: nothing runs, and the stream continues to work
    try {
      forget();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("scalar(0)"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(finished(stream));
    return;
  }
  forget();
  EXPECT_TRUE(fails([&] { stream.sync(); }, ErrorCode::kLaunchFailed, {"forgetful", "scalar(0)"}));
}

TEST_P(BadValues, TooManyOperands) {
  const Device device = open([](DeviceOptions& options) { options.queue_depth = 16; });
  const Stream stream = device.stream();
  const Buffer memory = device.alloc(4096);
  const std::vector<Range> many(200, memory.slice(0, 4));
  try {  // a device may accept it; one that cannot must throw and continue to work
    stream.launch(store_kernel(), {.writes = many, .scalars = {1}});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidValue);
  }
  EXPECT_TRUE(finished(stream));
  stream.launch(store_kernel(), {.writes = {memory}, .scalars = {1}});
  EXPECT_TRUE(finished(stream));
}

TEST_P(BadValues, PlansByHand) {
  Plan plan;
  EXPECT_TRUE(fails([&] { static_cast<void>(plan.add({.kind = OpKind::kHost, .host = [] {}, .waits = {3}})); },
                    ErrorCode::kInvalidValue, {"3"}));
  EXPECT_TRUE(fails([&] { static_cast<void>(plan.add({.stream = 5000, .kind = OpKind::kHost, .host = [] {}})); },
                    ErrorCode::kInvalidValue, {"5000", "4096"}));
  EXPECT_TRUE(fails([&] { static_cast<void>(plan.add({.kind = OpKind::kFill, .name = "clear"})); },
                    ErrorCode::kInvalidValue, {"clear", "fill needs one range", "writes 0"}));
  EXPECT_EQ(plan.add({.kind = OpKind::kHost, .engine = Engine::kHost, .host = [] {}}), 0u);
  const Device device = open();
  const Stream stream = device.stream();
  stream.launch(plan);
  EXPECT_TRUE(finished(stream));
}

SLIP_OVER_DEVICES(BadValues);

}  // namespace
}  // namespace slip::test::values
