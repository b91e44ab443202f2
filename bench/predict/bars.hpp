// The parts of the benchmark of predictions; main.cpp adds them to the harness.
#pragma once

#include <string>
#include <vector>

#include "comm/sim/fit_costs.hpp"
#include "support/harness.hpp"

namespace slip::bench {

// A table of published all_reduce times, and the machine that it was measured on.
struct PublishedTable {
  std::string name;
  comm::ModelInputs inputs;
  std::vector<comm::Measurement> rows;
};
// Those of tables.json, or of the folder SLIP_PREDICT_TABLES: a file tables.json and the topology files that it names.
std::vector<PublishedTable> published_tables();

void add_table_bars(Harness& harness);
void add_plan_bars(Harness& harness);
void add_scale_bars(Harness& harness);
void add_relay_bars(Harness& harness);

}  // namespace slip::bench
