// The program that the watchers watch: four streams with kernels of two ranges, copies, events between the streams and
// buffers that come and go. Free of races.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "slip/device.hpp"

namespace slip::bench {

// A kernel that does nothing; its name stands in traces.
extern const Kernel kNothing;

// Submits `ops` kernels and copies and waits for them. It can be called again and goes on where it was.
class Program {
 public:
  explicit Program(const Device& device);
  void run(std::size_t ops);

 private:
  static constexpr std::size_t kStreams = 4;
  static constexpr std::size_t kOpsPerBuffer = 256;  // then a stream takes a fresh one
  void step(std::size_t number);

  Device device_;
  std::vector<Stream> streams_;
  Buffer inputs_, outputs_, staging_[kStreams], moving_[kStreams];
  std::size_t done_ = 0;
};

// Runs the program with a trace and writes it.
void write_program_trace(const std::string& path, std::size_t ops);

}  // namespace slip::bench
