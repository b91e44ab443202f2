// Opens the cpu device through the installed package and runs one copy: headers, library and its
// dependencies are all there.
#include <cstdio>
#include <slip/device.hpp>
#include <slip/stream.hpp>

int main() {
  const slip::Device device = slip::Device::open("cpu");
  slip::Buffer from = device.alloc(64, slip::MemoryKind::kPinned);
  slip::Buffer to = device.alloc(64, slip::MemoryKind::kPinned);
  from.host_write<int>()[3] = 42;
  const slip::Stream stream = device.stream();
  stream.copy(to, from);
  stream.sync();
  const int answer = to.host_read<int>()[3];
  std::printf("consumer: %d\n", answer);
  return answer == 42 ? 0 : 1;
}
