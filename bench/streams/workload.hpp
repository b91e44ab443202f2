// The workloads of the stream benchmarks on Slipstream's side: empty kernels on streams of the cpu device, counted by
// thread.
#pragma once

#include <cstddef>
#include <string>

#include "slip/device.hpp"

namespace slip::bench {

// The queue depth of the gated chain, in ops, on both sides.
inline constexpr std::size_t kGateDepth = 4000;

// A kernel that does nothing but count that it ran, and on which thread.
extern const Kernel kEmpty;
void reset_count();
std::size_t total_count();   // kernels that have run since reset_count()
std::string threads_text();  // "host 2 %, 1 worker 98 %"

// Nanoseconds per op, hop or round, submitted and run. They throw std::runtime_error if an op did not run.
double chain_ns(const Device& device, std::size_t ops);
double gated_chain_ns(const Device& device, std::size_t ops, std::size_t depth);
double ping_pong_ns(const Device& device, std::size_t hops);
double fan_ns(const Device& device, std::size_t rounds);

}  // namespace slip::bench
