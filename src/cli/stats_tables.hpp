// What `slip stats` says about a trace, as tables.
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

// A trace and what was found in it.
struct Studied {
  explicit Studied(const TraceData& trace);
  const TraceData& data;
  std::vector<TraceSpan> spans;
  Figures figures;
  Analysis analysis;
  Picos begin = 0;                // first start
  std::uint64_t unsubmitted = 0;  // ops that ran and whose submission is not in the trace
  std::uint64_t not_run = 0;
  std::uint64_t streams = 0;
  std::vector<std::uint32_t> name_of;   // by span: its op's name, as an index
  std::vector<std::string_view> names;  // by that index
};

// The critical path in numbers: times of its ops and of what lay before each add up to the total.
struct PathTime {
  Picos ops = 0;
  std::array<Picos, kCauses> waits{};  // by what the op behind the gap was waiting for
};
PathTime path_time(const Studied& studied);

// Shortened where it is printed; the whole name is part of --json.
Cell op_name(std::string_view name);

Table device_table(const Studied& studied);
Table engine_table(const Studied& studied);
Table path_wait_table(const Studied& studied);
Table stretch_table(const Studied& studied, std::size_t top);  // of the path, on one engine each; the longest
Table max_table(const Studied& studied, std::size_t top);      // ops of the path
Table name_table(const Studied& studied, std::size_t top);     // ops by name
Table slack_table(const Studied& studied);
Table wait_table(const Studied& studied, std::size_t top);  // what ops waited for, by the idle time that it made
Table op_table(const Studied& studied);                     // every op

}  // namespace slip::cli
