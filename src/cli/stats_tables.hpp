// The tables of `slip stats`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cli/table.hpp"
#include "slip/analysis.hpp"
#include "slip/figures.hpp"
#include "slip/trace.hpp"

namespace slip::cli {

// A trace with its figures and its analysis.
struct Studied {
  explicit Studied(const TraceData& trace);
  const TraceData& data;
  std::vector<TraceSpan> spans;
  Figures figures;
  Analysis analysis;
  Picos begin = 0;                // start of the first op
  std::uint64_t unsubmitted = 0;  // ops that ran but whose submission is not in the trace
  std::uint64_t not_run = 0;
  std::uint64_t streams = 0;
  std::vector<std::uint32_t> name_of;   // by span: index of its op's name in `names`
  std::vector<std::string_view> names;  // distinct names
};

// The critical path in numbers. Durations of its ops and the waits before them add up to the total.
struct PathTime {
  Picos ops = 0;
  std::array<Picos, kCauses> waits{};  // by the cause that delayed the op after the gap
};
PathTime path_time(const Studied& studied);

// Printed in a shortened form; --json has the whole name.
Cell op_name(std::string_view name);

Table device_table(const Studied& studied);
Table engine_table(const Studied& studied);
Table path_wait_table(const Studied& studied);
Table stretch_table(const Studied& studied, std::size_t top);  // longest stretches of the critical path on one engine
Table max_table(const Studied& studied, std::size_t top);      // longest ops of the critical path
Table name_table(const Studied& studied, std::size_t top);     // ops by name
Table slack_table(const Studied& studied);
Table wait_table(const Studied& studied, std::size_t top);  // what ops waited for, by the idle time it caused
Table op_table(const Studied& studied);                     // every op

}  // namespace slip::cli
