// `slip bench all_reduce` and the other collectives: what the user asked for, how a rank measures one size, and the
// page.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/call.hpp"
#include "slip/communicator.hpp"

namespace slip::cli {

std::uint64_t size_of(const std::string& text, const char* option);  // "8", "64K", "256MiB"; else a UsageError

// How much of a rank's data must pass a link at least: so that rates compare with those of links.
double bus_share(Collective kind, int nranks);

// Whether the size that is told is that of all blocks, not of one.
bool counts_all_blocks(Collective kind);

struct BenchWork {
  Collective kind = Collective::kAllReduce;
  DataType type = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0, iterations = 20, warmup = 5;
  std::uint64_t begin = 0, end = 0;  // sizes
  double factor = 2;
  bool each = false;        // each call is waited for
  bool registered = false;  // buffers are in reach of the other ranks
  bool predict = false;     // also what it should take
  CommunicatorOptions options = {};
};

struct Measured {
  double us = 0;  // of the slowest rank
  double algorithm_gbs = 0, bus_gbs = 0;
  std::uint64_t wrong = 0;
};

struct BenchRow {
  Call call;
  int nranks = 0;
  std::uint64_t bytes = 0;
  Measured apart = {};
  std::optional<Measured> in_place = {};
  std::optional<double> predicted_us = {};  // of the first rank; out of place

  std::string op() const;    // "none" where nothing is reduced
  std::string root() const;  // "-1" where there is none
};

// As the command is called: "sendrecv" for messages.
const char* bench_name(Collective kind);

// One rank. Only the first tells.
struct BenchTold {
  std::function<void(int nranks, const std::string& device)> head;
  std::function<void(const BenchRow& row)> row;
};
// All rows; on all ranks the same.
std::vector<BenchRow> measure_sizes(const BenchWork& work, const BenchTold& told);

// `title`: of the page; `facts`: one line below it. Rows are in the order of their sizes.
std::string bench_page(const std::string& title, const std::string& facts, const std::vector<BenchRow>& rows);

}  // namespace slip::cli
