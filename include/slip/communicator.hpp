// Communicator: ranks that exchange data. Each rank has a device; a collective is an op of one of its streams: the call
// returns when it is enqueued, it runs after what the stream had before, and what comes later waits for it.
//
//   auto comm = slip::Communicator::init(id, nranks, rank, device);      // each rank, with the same id
//   comm.all_reduce(sums, gradients, slip::DataType::kF32, slip::ReduceOp::kSum, stream);
//   stream.sync();
//
// All ranks must make the same calls in the same order. A call that does not match is an error on every rank, with both
// sides in its text; one that waits too long says for whom. After an error the communicator is of no use any more.
//
// Bits: the same call gives the same bits in every run, for ranks are always reduced in the order of their numbers.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "slip/data_type.hpp"
#include "slip/device.hpp"
#include "slip/reduction.hpp"
#include "slip/shared_buffer.hpp"
#include "slip/unique_id.hpp"

namespace slip {

struct CommunicatorOptions {
  std::chrono::milliseconds timeout{600'000};      // how long a call waits for another rank
  std::chrono::milliseconds init_timeout{60'000};  // and how long init and allocate do
  bool direct = true;  // false: others never touch this rank's buffers, all passes through staging memory
};

class Communicator {
 public:
  // Returns when all ranks are here. Each rank calls it once, in a thread or process of its own.
  static Communicator init(const UniqueId& id, int nranks, int rank, const Device& device,
                           const CommunicatorOptions& options = {}, Here here = Here::at());
  // Which rank this process is says the launcher that started it: slip launch, mpirun, srun or torchrun. A process that
  // nobody launched is alone.
  static Communicator init(const Device& device, const CommunicatorOptions& options = {}, Here here = Here::at());
  // All ranks in this process, one for each device.
  static std::vector<Communicator> init_all(std::span<const Device> devices, const CommunicatorOptions& options = {},
                                            Here here = Here::at());

  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();  // waits for the calls of this rank that are under way

  int rank() const;
  int nranks() const;

  // Memory that the other ranks of the host reach: calls whose buffers all come from here stage nothing. All ranks call
  // it, in the same order, and return when all have it; each says how much it wants, 0 for none. Ranks that are threads
  // of one process reach all memory of each other and need none of this.
  SharedBuffer allocate(std::size_t bytes, Name name = {}, Here here = Here::at());

  // `to` and `from` are the same or do not overlap, of pinned or device memory. Sizes as below, n the number of ranks.
  void all_reduce(Range to, Range from, DataType type, ReduceOp op, StreamRef stream, Here here = Here::at());
  void reduce(Range to, Range from, DataType type, ReduceOp op, int root, StreamRef stream, Here here = Here::at());
  // kPreMulSum: this rank's values are multiplied by `factor` first.
  void all_reduce_scaled(Range to, Range from, DataType type, double factor, StreamRef stream, Here here = Here::at());
  // `from` has n times the bytes of `to`.
  void reduce_scatter(Range to, Range from, DataType type, ReduceOp op, StreamRef stream, Here here = Here::at());
  // `from` counts on the root only, `to` on the others, too.
  void broadcast(Range to, Range from, int root, StreamRef stream, Here here = Here::at());
  // `to` has n times the bytes of `from`.
  void all_gather(Range to, Range from, StreamRef stream, Here here = Here::at());
  void gather(Range to, Range from, int root, StreamRef stream, Here here = Here::at());   // `to` on the root only
  void scatter(Range to, Range from, int root, StreamRef stream, Here here = Here::at());  // `from` on the root only
  // Both have n blocks: block i goes to rank i, and what comes from rank i is block i.
  void all_to_all(Range to, Range from, StreamRef stream, Here here = Here::at());
  void barrier(StreamRef stream, Here here = Here::at());

  // Ends the calls of this rank that are under way, and all later ones, with kAborted; the other ranks are told.
  void abort() noexcept;

 private:
  struct State;
  explicit Communicator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace slip
