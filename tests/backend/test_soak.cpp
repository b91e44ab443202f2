// Memory over many ops: what a run needs does not grow with its length.
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "backend/support.hpp"

namespace slip::test_soak {
namespace {

std::size_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long total = 0;
  unsigned long resident = 0;
  const bool read = file && std::fscanf(file, "%lu %lu", &total, &resident) == 2;
  if (file) std::fclose(file);
  return read ? resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) : 0;
}

// One of everything that a program does over and over.
void some_work(const Device& device, const std::vector<Stream>& streams, Buffer& memory, Buffer& pinned, int ops) {
  std::vector<char> pageable(512, 'x');
  for (int i = 0; i < ops; ++i) {
    const Stream& stream = streams[static_cast<std::size_t>(i) % streams.size()];
    const Stream& other = streams[static_cast<std::size_t>(i + 1) % streams.size()];
    switch (i % 16) {
      case 0: other.wait(stream.record()); break;
      case 1: stream.host([] {}); break;
      case 2: stream.copy(memory, pinned); break;
      case 3: stream.free(stream.alloc(4096)); break;
      case 4: static_cast<void>(stream.record_timed()); break;
      case 5: device.legacy_stream().launch(test::nothing()); break;
      case 6: device.stream().launch(test::nothing()); break;
      case 7: {
        const Buffer wrapped = device.wrap(pageable.data(), pageable.size());
        stream.copy(memory.slice(0, 512), wrapped);
        break;
      }
      default: stream.launch(test::nothing());
    }
    if (i % 1024 == 0) stream.sync();
  }
  device.sync();
}

TEST(Soak, MemoryDoesNotGrowWithTheNumberOfOps) {
  for (const CpuPolicy policy : {CpuPolicy::kConcurrent, CpuPolicy::kSingle}) {
    const Device device = Device::open("cpu", {.policy = policy, .queue_depth = 256});
    Buffer memory = device.alloc(4096);
    Buffer pinned = device.alloc(4096, MemoryKind::kPinned);
    std::vector<Stream> streams;
    for (int i = 0; i < 6; ++i) streams.push_back(device.stream());
    some_work(device, streams, memory, pinned, test::rounds(100'000));
    const std::size_t before = resident_bytes();
    some_work(device, streams, memory, pinned, test::rounds(200'000));
    const std::size_t after = resident_bytes();
    ASSERT_GT(before, 0U);
    // Under a sanitizer freed memory is kept for a while on purpose.
    const std::size_t slack = test::kSanitized ? std::size_t{256} << 20 : std::size_t{4} << 20;
    EXPECT_LT(after, before + slack) << "policy " << int(policy);
    EXPECT_EQ(device.memory().used, memory.bytes());
  }
}

}  // namespace
}  // namespace slip::test_soak
