// The program that is traced and checked: four streams with kernels of two ranges, copies, events between the streams,
// and buffers that are allocated and freed. It has no races.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "slip/device.hpp"

namespace slip::bench {

// A kernel that does nothing; its name appears in traces.
extern const Kernel kNothing;

// Submits `ops` kernels and copies and waits for them. Another call continues the program.
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
