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
// Bits: the same call gives the same bits in every run. On one host, and everywhere with `deterministic`, values are
// reduced in the order of the ranks, so that the bits do not depend on the size or the algorithm either.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "slip/data_type.hpp"
#include "slip/device.hpp"
#include "slip/reduction.hpp"
#include "slip/unique_id.hpp"

namespace slip {

// While one is there, sends and receives of its thread are kept, and begin together when it ends: as one op of their
// stream for each communicator. If they are of several streams, all of these wait for each other before and after.
// Collectives are ops of their own all the same. A group within a group is part of it.
class Group {
 public:
  Group();
  ~Group();  // ends it; what goes wrong there is told by the next call of the communicator
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  void end();

 private:
  bool open_ = true;
};

// How ranks of several hosts, or of one if it is asked for, do a collective.
enum class Algorithm : unsigned char {
  kAuto,      // what a model with measured figures finds fastest; SLIP_DEBUG=tune shows it
  kDirect,    // each rank with each other at once, reduced in the order of the ranks
  kRing,      // round a ring, or along it
  kTree,      // up and down two trees
  kDoubling,  // in log2 rounds of everything: small all_reduce
};
const char* algorithm_name(Algorithm algorithm);

enum class Transport : unsigned char {
  kAuto,  // shared memory between ranks of one host, the network between hosts
  kNet,   // the network only
};

// The same on all ranks.
struct CommunicatorOptions {
  std::chrono::milliseconds timeout{600'000};      // how long a call waits for another rank
  std::chrono::milliseconds init_timeout{60'000};  // and how long init does
  Algorithm algorithm = Algorithm::kAuto;          // for the calls that it can do; or SLIP_ALGORITHM=NAME
  Transport transport = Transport::kAuto;          // or SLIP_TRANSPORT=net
  bool deterministic = false;                      // bits that depend on the input only
  std::string host;  // may differ: ranks with another one are taken to be on another host; or SLIP_HOST_ID
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

  // To or from one other rank, or this one. A send may wait until the other receives: what two ranks send to each other
  // belongs in a group.
  void send(Range from, int to, StreamRef stream, Here here = Here::at());
  void recv(Range to, int from, StreamRef stream, Here here = Here::at());
  // Blocks of any size: `from[i]` goes to rank i, and `to[i]` is what comes from it.
  void all_to_all_v(std::span<const Range> to, std::span<const Range> from, StreamRef stream, Here here = Here::at());

  // Ends the calls of this rank that are under way, and all later ones, with kAborted; the other ranks are told.
  void abort() noexcept;

 private:
  struct State;
  explicit Communicator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace slip
