// Work as data: ops are captured into a plan once. The plan is printed, launched, and launched again with other buffers
// and another scalar.
//
// While a stream captures, its ops do not run. A second stream takes part in the capture from the moment it waits for
// an event of the first (fork). Before the capture ends, the first stream must wait for the second (join).
#include <cstdio>

#include "slip/slip.hpp"

namespace {

constexpr std::size_t kElements = 1024, kBytes = kElements * sizeof(float);

const slip::Kernel kScale{"scale", [](const slip::Args& args) {
                            const auto in = args.in<float>(0);
                            const auto out = args.out<float>(0);
                            for (std::size_t i = 0; i < out.size(); ++i) out[i] = args.scalar<float>(0) * in[i];
                          }};
const slip::Kernel kAdd{"add", [](const slip::Args& args) {
                          const auto x = args.in<float>(0), y = args.in<float>(1);
                          const auto out = args.out<float>(0);
                          for (std::size_t i = 0; i < out.size(); ++i) out[i] = x[i] + y[i];
                        }};

slip::Buffer filled(const slip::Device& device, float value) {
  auto buffer = device.alloc(kBytes, slip::MemoryKind::kPinned);
  for (float& each : buffer.host_write<float>()) each = value;
  return buffer;
}

}  // namespace

int main() {
  const auto device = slip::Device::open("cpu");
  const auto main_stream = device.stream(slip::StreamFlags::kNonBlocking);
  const auto side = device.stream(slip::StreamFlags::kNonBlocking);
  const auto in = filled(device, 1), out = filled(device, 0), left = device.alloc(kBytes), right = device.alloc(kBytes);

  // out = 2 * in + 3 * in; the two products may run at the same time.
  main_stream.begin_capture();
  side.wait(main_stream.record());  // fork
  main_stream.launch(kScale, {.reads = {in}, .writes = {left}, .scalars = {2.0F}, .name = "twice"});
  side.launch(kScale, {.reads = {in}, .writes = {right}, .scalars = {3.0F}, .name = "thrice"});
  main_stream.wait(side.record());  // join
  main_stream.launch(kAdd, {.reads = {left, right}, .writes = {out}});
  slip::Plan plan = main_stream.end_capture();
  std::printf("%s", plan.describe().c_str());

  main_stream.launch(plan);
  main_stream.sync();
  const float first = out.host_read<float>()[0];

  // The same plan on other data, with another factor.
  const auto other_in = filled(device, 10), other_out = filled(device, 0);
  slip::Bindings bindings;
  bindings.buffer(in, other_in).buffer(out, other_out).scalar("thrice", 0, 4.0F);
  main_stream.launch(plan, bindings);
  main_stream.sync();
  const float second = other_out.host_read<float>()[0];

  std::printf("2*1 + 3*1 = %g, 2*10 + 4*10 = %g\n", static_cast<double>(first), static_cast<double>(second));
  return first == 5 && second == 60 && out.host_read<float>()[0] == 5 ? 0 : 1;
}
