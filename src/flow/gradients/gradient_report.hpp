// When things of a step happened, and what follows from that: when each gradient is needed, and how long work stood
// still for communication. Pure functions of times, whoever took them: a device's clock, or the simulator's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "slip/gradient_report.hpp"
#include "slip/op.hpp"

namespace slip {

// A step that was recorded, in picoseconds since its first gradient. Empty lists: nothing was recorded.
struct GradientTimes {
  static constexpr std::uint32_t kAll = ~std::uint32_t{0};
  struct Wait {
    std::uint32_t parameter = 0;  // kAll: for all of them, as clipping does
    std::uint32_t call = 0;       // that it waits for
    std::uint64_t stream = 0;
    Picos reached = 0, left = 0;
  };
  std::vector<Picos> arrivals;         // by parameter
  std::vector<std::uint64_t> sources;  // the streams that wrote them, by parameter
  std::vector<Picos> starts, ends;     // by call
  std::vector<Wait> waits;             // in the order issued
  Picos next_step = 0;                 // the next recorded step's first gradient; 0: not known
};

// When each parameter would be needed if nothing were late, by parameter, not before the end of the backward pass;
// those that nobody waited for come last.
//
// A stream stands still for communication from where it gets to its wait until the call has ended. What it takes until
// it then goes on is the device's affair, and counts as work: without any communication it would be there, too. While
// the backward pass goes on in another stream standing still costs nothing; a stream that has gradients to write yet is
// the backward pass.
struct StepAnalysis {
  struct Stall {
    Picos from = 0, time = 0;
  };
  struct Chain {
    std::uint64_t stream = 0;
    Picos last_gradient = 0;  // that it writes
    Picos left = 0, due = 0, stood = 0;
  };
  std::vector<Picos> needed;
  std::vector<Stall> stalls;  // by wait
  Picos backward_end = 0;
  Picos exposed = 0;                // of the stream that stood still longest,
  std::uint64_t whose = 0;          // this one
  std::vector<Chain> chains;        // of waits, one for each stream
  std::vector<std::uint8_t> known;  // parameters that somebody waited for
};
// Allocates nothing when `into` has served for as many.
void analyze_step(const GradientTimes& times, StepAnalysis& into);

// What a recorded step was, in words and numbers.

// The calls that reduce a parameter.
using CallsOf = std::function<std::span<const std::uint32_t>(std::uint32_t parameter)>;

// Without the names of gradients.
GradientReport report_of(const GradientTimes& times, const CallsOf& calls_of, const BucketPlan& plan,
                         const ReduceCost& cost);

}  // namespace slip
