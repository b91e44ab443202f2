// Data larger than device memory: 32 MiB of input on a device with 4 MiB. The pipeline measures its stages and plans
// chunks that fit. Before the run the plan is proven free of races, and its time is predicted in virtual time. The
// report compares the run with the prediction.
#include <cstdio>

#include "slip/pipeline.hpp"
#include "slip/slip.hpp"

namespace {

constexpr std::size_t kElements = std::size_t{8} << 20, kMemory = std::size_t{4} << 20;

const slip::Kernel kSquare{"square", [](const slip::Args& args) {
                             const auto x = args.in<float>(0);
                             const auto y = args.out<float>(0);
                             for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[i] * x[i];
                           }};

}  // namespace

int main() {
  const auto device = slip::Device::open("cpu", {.memory_limit = kMemory});
  auto input = device.alloc(kElements * sizeof(float), slip::MemoryKind::kPinned, "input");
  auto output = device.alloc(kElements * sizeof(float), slip::MemoryKind::kPinned, "output");
  for (float& y : output.host_write<float>()) y = 0;
  for (float value = 0; float& x : input.host_write<float>()) x = value++;

  slip::Pipeline squares(device, {.elements = kElements,
                                  .bytes_in = sizeof(float),
                                  .bytes_out = sizeof(float),
                                  .issue =
                                      [](const slip::PipelineChunk& chunk) {
                                        chunk.stream.launch(kSquare, {.reads = {chunk.input}, .writes = {chunk.output}},
                                                            {.bytes = 2 * chunk.input.bytes, .flops = chunk.elements});
                                      },
                                  .memory = kMemory});
  std::printf("plan: %s\n", squares.plan().text().c_str());

  const bool proven = slip::verify(squares.capture(input, output)).proven();
  std::printf("proven: %s; simulated %.1f us\n", proven ? "yes" : "no", static_cast<double>(squares.predict()) / 1e6);

  slip::Trace trace;
  squares.start(input, output);
  const slip::PipelineReport report = squares.finish(&trace);
  std::printf("run: %s\n", report.text().c_str());

  bool right = true;
  const auto results = output.host_read<float>();
  for (std::size_t i = 0; i < kElements; ++i)
    right = right && results[i] == static_cast<float>(i) * static_cast<float>(i);
  return proven && right && device.memory().peak <= kMemory ? 0 : 1;
}
