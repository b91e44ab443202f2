#include "program.hpp"

#include <stdexcept>

#include "slip/trace.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kBytes = 4096;
constexpr std::size_t kSyncEvery = 65'536;  // number of ops between two syncs, as a program waits for its results

}  // namespace

const Kernel kNothing{"nothing", [](const Args&) {}};

Program::Program(const Device& device)
    : device_(device), inputs_(device.alloc(kBytes * kStreams)), outputs_(device.alloc(kBytes * kStreams)) {
  for (std::size_t i = 0; i < kStreams; ++i) {
    streams_.push_back(device.stream(StreamFlags::kNonBlocking));
    staging_[i] = device.alloc(64, MemoryKind::kPinned, "staging");
    moving_[i] = device.alloc(64);
  }
}

void Program::step(std::size_t number) {
  const std::size_t which = number % kStreams, round = number / kStreams;
  const Stream& stream = streams_[which];
  if (round % kOpsPerBuffer == kOpsPerBuffer - 1) {
    stream.sync();
    moving_[which] = device_.alloc(64, MemoryKind::kDevice, "moving");
  }
  if (round % 4 == 3) {
    stream.copy(moving_[which].slice(0, 64), staging_[which].slice(0, 64));
  } else {
    const std::size_t at = which * kBytes + (round % 16) * 256;
    stream.launch(kNothing, {.reads = {inputs_.slice(at, 256)}, .writes = {outputs_.slice(at, 256)}});
  }
  if (round % 4 == which) streams_[(which + 1) % kStreams].wait(stream.record());
}

void Program::run(std::size_t ops) {
  for (std::size_t i = 0; i < ops; ++i) {
    step(done_++);
    if (done_ % kSyncEvery == 0) device_.sync();
  }
  device_.sync();
}

void write_program_trace(const std::string& path, std::size_t ops) {
  const Device device = Device::open("cpu");
  Trace trace;
  Program(device).run(ops);
  trace.stop();
  const TraceData data = trace.data();
  if (data.dropped > 0) throw std::runtime_error("the trace is too small for the program");
  write_trace(data, path);
}

}  // namespace slip::bench
