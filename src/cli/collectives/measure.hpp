// `slip bench all_reduce` and the other collectives: the requested work, the measurement of each size on a rank, and
// the HTML page of the results.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/call.hpp"
#include "slip/communicator.hpp"

namespace slip::cli {

// The collectives that can be measured. All but the last one, messages, can also be predicted.
inline constexpr std::array kCollectives = {
    comm::Collective::kAllReduce, comm::Collective::kReduce,        comm::Collective::kBroadcast,
    comm::Collective::kAllGather, comm::Collective::kReduceScatter, comm::Collective::kAllToAll,
    comm::Collective::kGather,    comm::Collective::kScatter,       comm::Collective::kMessage};

std::uint64_t size_of(const std::string& text, const char* option);  // "8", "64K", "256MiB"; else a UsageError

// nccl-tests' factor from algorithm bandwidth to bus bandwidth: the share of the data that must cross a link.
double bus_share(comm::Collective kind, int nranks);

// A block is the smaller of a rank's input and output. True: the reported size is that of nranks blocks (all_gather).
// False: it is that of one block (all_reduce).
bool counts_all_blocks(comm::Collective kind);

struct BenchWork {
  comm::Collective kind = comm::Collective::kAllReduce;
  DataType type = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0, iterations = 20, warmup = 5;
  std::uint64_t begin = 0, end = 0;  // bytes
  double factor = 2;                 // from one size to the next
  bool each = false;                 // wait for each call before the next
  bool registered = false;           // allocate buffers that the other ranks can access
  bool predict = false;              // also predict the time
  CommunicatorOptions options = {};
  std::string device = "cpu";
};

// Identifies a rank that is a thread of this process. Without a ThreadRank, this process is one rank, and the
// launcher's environment variables say which one.
struct ThreadRank {
  UniqueId id;
  int nranks = 1, rank = 0;
};

struct Measured {
  double us = 0;  // time of a call, on the slowest rank
  double algorithm_gbs = 0, bus_gbs = 0;
  std::uint64_t wrong = 0;  // wrong elements of all ranks
};

struct BenchRow {
  comm::Call call;
  int nranks = 0;
  std::uint64_t bytes = 0;
  Measured apart = {};  // out of place: input and output are separate buffers
  std::optional<Measured> in_place = {};
  std::optional<double> predicted_us = {};  // of rank 0, out of place

  std::string op() const;    // "none" if nothing is reduced
  std::string root() const;  // "-1" if there is no root
};

// Callbacks that print; rank 0 alone calls them. `head`: before the first size. `row`: after each size.
struct BenchOutput {
  std::function<void(int nranks, const std::string& device)> head;
  std::function<void(const BenchRow& row)> row;
};
// Measures all sizes and returns the same rows on all ranks.
std::vector<BenchRow> measure_sizes(const BenchWork& work, const BenchOutput& output, const ThreadRank* rank = nullptr);

// The page of --html: time and bus bandwidth by size on logarithmic scales, and the table. It is self-contained.
// `facts` is one line below the title. REQUIRES: rows are ordered by size.
std::string bench_page(const std::string& title, const std::string& facts, const std::vector<BenchRow>& rows);

}  // namespace slip::cli
