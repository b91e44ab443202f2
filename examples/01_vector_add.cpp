// The README's program, with a result to check. One stream loads the weights while another stream fills x. Then a
// kernel adds both.
//
// Calls return at once. The ops of a stream run in the order of issue; only the event orders the two streams.
#include <cstdio>

#include "slip/slip.hpp"

// in(i) and out(i) are the ranges in the order of `reads` and `writes` in the launch. This function runs on cpu and sim
// devices.
const slip::Kernel add{"add", [](const slip::Args& args) {
                         for (std::size_t i = 0; i < args.out<float>(0).size(); ++i)
                           args.out<float>(0)[i] = args.in<float>(0)[i] + args.in<float>(1)[i];
                       }};

int main() {
  const std::size_t n = 1 << 20, bytes = n * sizeof(float);
  auto device = slip::Device::open("cpu");  // or "sim:h200"
  auto load = device.stream("loads", slip::StreamFlags::kNonBlocking), compute = device.stream("compute");
  auto weights = device.alloc(bytes, slip::MemoryKind::kPinned, "weights");  // pinned: copies do not block the host
  auto slot = device.alloc(bytes), x = device.alloc(bytes), y = device.alloc(bytes);
  for (float& weight : weights.host_write<float>()) weight = 1.5F;

  load.copy(slot, weights);  // asynchronous, ordered in its stream
  slip::Event loaded = load.record();
  compute.fill(x, 0);    // may run at the same time as the copy
  compute.wait(loaded);  // orders the stream, never blocks the host
  compute.launch(add, {.reads = {x, slot}, .writes = {y}}, {.bytes = 3 * bytes, .flops = n});
  compute.copy(weights, y);
  compute.sync();  // the host waits only here

  const float sum = weights.host_read<float>()[n - 1];
  std::printf("0 + 1.5 = %g\n", static_cast<double>(sum));
  return sum == 1.5F ? 0 : 1;
}
