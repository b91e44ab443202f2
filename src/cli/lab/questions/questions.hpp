// The questions of the lab `questions`, and the result of an experiment.
#pragma once

#include <span>
#include <string>

#include "cli/lab/bench.hpp"

namespace slip::cli {

struct Finding {
  std::string ran;
  std::string seen;  // with the figures of this run
  std::string answer;
  bool shown = false;  // true: the figures of this run confirm the answer
};

struct Question {
  const char* text;
  const char* rules;  // of docs/semantics.md
  Finding (*run)(const Bench& bench);
};

std::span<const Question> slot_questions();
std::span<const Question> several_device_questions();

// Launches a kernel that only takes time.
inline void busy(StreamRef stream, const char* name, const Work& work) {
  stream.launch(kBusy, {{}, {}, {work.pace}, name}, work.cost);
}

// "k1 -> k2 || k3" of all kernels of the run.
inline std::string kernel_order(const Run& run) { return order_of(run.kernels()); }

}  // namespace slip::cli
