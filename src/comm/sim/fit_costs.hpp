// Fits the factors of the cost model to measured times of one machine, such as the rows that all_reduce_perf of
// nccl-tests prints.
//
// The fit minimises the errors of the logarithms of the times, plus a small penalty for factors far from 1. So a
// factor that no row depends on stays 1. The search is deterministic. parse_measurements() reads the tables of measured
// times.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/sim/cost_model.hpp"
#include "slip/error.hpp"

namespace slip::comm {

struct Measurement {
  double bytes = 0, us = 0;
};

// Relative errors: 0.05 means that the predicted time is 5 % longer or shorter than the measured one.
struct FitErrors {
  double mean = 0, worst = 0, worst_bytes = 0;
};
FitErrors errors_of(const CollectiveModel& model, Collective kind, std::span<const Measurement> rows);

struct Fit {
  CostFactors factors;            // fitted to all rows
  FitErrors before, after;        // on all rows, with all factors 1, and with `factors`
  FitErrors left_out;             // cross-validation: of each half of the rows, with factors fitted to the other half
  std::size_t rows_left_out = 0;  // the number of all rows: each one is left out once
};
inline constexpr std::size_t kMinFitRows = 6;
// Rows of one size are replaced by one row with their mean time. Throws kInvalidValue for fewer than 2 ranks, for fewer
// than kMinFitRows sizes, or for rows without bytes or time.
Fit fit_costs(const ModelInputs& inputs, Collective kind, std::span<const Measurement> rows, Here here = Here::at());

// Reads a table: the text that all_reduce_perf prints, the JSON that it writes, or other JSON: an array of rows, an
// object with "rows", or an array of objects with "name" and "rows", of which `table` names one. A row is
// [bytes, microseconds], or an object with "bytes" and "time_us", as `slip topo --json` writes. Throws kParse with the
// name of the file and the line or row.
std::vector<Measurement> parse_measurements(std::string_view text, const std::string& file, std::string_view table,
                                            Here here = Here::at());

}  // namespace slip::comm
