// Communicator: ranks that exchange data. Each rank has a device; a collective is an op of one of its streams: the call
// returns when it is enqueued, it runs after what the stream had before, and what comes later waits for it.
//
//   auto comm = slip::Communicator::init(id, nranks, rank, device);      // each rank, with the same id
//   comm.all_reduce(sums, gradients, slip::DataType::kF32, slip::ReduceOp::kSum, stream);
//   stream.sync();
//
// All ranks must make the same calls in the same order. A call that does not match is an error on every rank, with both
// sides in its text; one that waits too long says for whom. A rank that waits for nobody, such as the root of a small
// broadcast, learns of a mismatch in the next call or in finalize(). After an error every call throws that error at
// once; what can still be done with the communicator is shrink(), which makes a new one of the ranks that are left. A
// communicator that was moved from has no ranks: its calls throw kInvalidHandle.
//
// A call in a stream that captures becomes an op of the plan, and each launch of the plan is a call, which the other
// ranks match with a launch or a call of theirs. A launch after the communicator has gone is an error.
//
// Devices are of the cpu, or all of one sim world (Device::open_all) and in one process: then a call takes the time
// that the links of the devices give, and the bits are those of the cpu.
//
// Bits: the same call gives the same bits in every run. On one host, and everywhere with `deterministic`, values are
// reduced in the order of the ranks, so that the bits do not depend on the size or the algorithm either.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slip/data_type.hpp"
#include "slip/device.hpp"
#include "slip/group.hpp"
#include "slip/reduction.hpp"
#include "slip/shared_buffer.hpp"
#include "slip/unique_id.hpp"

namespace slip {

// How ranks of several hosts, or of one if it is asked for, do a collective.
enum class Algorithm : unsigned char {
  kAuto,      // what a model with measured figures finds fastest; SLIP_DEBUG=tune shows it
  kDirect,    // each rank with each other at once, reduced in the order of the ranks
  kRing,      // round a ring, or along it
  kTree,      // up and down two trees
  kDoubling,  // in log2 rounds of everything: small all_reduce
  kRelay,     // all_to_all: what a host has for a rank of another goes there as one message, through one of its ranks
};
const char* algorithm_name(Algorithm algorithm);

enum class Transport : unsigned char {
  kAuto,  // shared memory between ranks of one host, the network between hosts
  kNet,   // the network only
};

// The same on all ranks.
struct CommunicatorOptions {
  std::chrono::milliseconds timeout{600'000};      // how long a call waits for another rank
  std::chrono::milliseconds init_timeout{60'000};  // and how long init, split, shrink and allocate do
  // Each rank shows that it lives so often, and is lost when its neighbours hear nothing for so long.
  std::chrono::milliseconds heartbeat{1000}, silence{4000};
  Algorithm algorithm = Algorithm::kAuto;  // for the calls that it can do; or SLIP_ALGORITHM=NAME
  Transport transport = Transport::kAuto;  // or SLIP_TRANSPORT=net
  bool deterministic = false;              // bits that depend on the input only
  // Rings and trees that share the data of a call (NCCL's CTAs), 1 to 32; 0: chosen by what the hosts have. Within
  // them the size of a call decides. Or SLIP_MIN_CHANNELS and SLIP_MAX_CHANNELS.
  int min_channels = 0, max_channels = 0;
  // Over the network; may differ: the sender decides. Several sockets help where one connection gets a part of the wire
  // only. Bytes sent without a copy are locked in memory meanwhile; within a host the kernel copies all the same.
  int sockets = 0;  // of a line to another rank, 1 to 16, that share large messages; 0: 1, or SLIP_SOCKETS=N
  std::size_t zero_copy_from = 0;  // bytes of the smallest message sent so; 0: none, or SLIP_ZERO_COPY=BYTES
  bool direct = true;              // may differ: false: others never touch this rank's buffers, all is staged
  std::string host;  // may differ: ranks with another one are taken to be on another host; or SLIP_HOST_ID
  // NCCL's XML of the rank's host, the same on all its ranks, or SLIP_TOPO_FILE: rings, trees and relays are searched
  // for there. Without one a host counts as one place, unless its ranks are bound to several NUMA nodes.
  std::string topology = {};
  int topo_device = -1;  // of that file: where this rank is; -1: its number on the host, or SLIP_TOPO_DEVICE=N
};

inline constexpr int kNoColor = -1;  // of split: this rank gets no communicator

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
  // Waits for the calls of this rank that are under way: each ends at its timeout at the latest, and soon when another
  // rank is lost.
  ~Communicator();

  int rank() const;
  int nranks() const;

  // Memory that the other ranks of the host reach: calls whose buffers all come from here stage nothing. All ranks call
  // it, in the same order, and return when all have it; each says how much it wants, 0 for none. Ranks that are threads
  // of one process reach all memory of each other and need none of this; for ranks of several hosts it is memory like
  // any.
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

  // To or from one other rank, or this one. A send may wait until the other receives: what two ranks send to each other
  // belongs in a group. The messages of a group travel at the same time, so what one receives no other one may touch.
  void send(Range from, int to, StreamRef stream, Here here = Here::at());
  void recv(Range to, int from, StreamRef stream, Here here = Here::at());
  // Blocks of any size: `from[i]` goes to rank i, and `to[i]` is what comes from it.
  void all_to_all_v(std::span<const Range> to, std::span<const Range> from, StreamRef stream, Here here = Here::at());

  // All ranks call it, in the same order as each other's: those with the same colour get a communicator together, in
  // the order of their keys and, where these are the same, of their ranks here. A colour below 0 gets none. It does not
  // wait for calls on streams and does not disturb them.
  std::optional<Communicator> split(int color, int key = 0, Here here = Here::at());

  // After a loss all ranks that are left call it and get a communicator without those that are lost; they agree on who
  // that is, and whoever is lost meanwhile is left out, too. Ranks keep their order. With `excluded` all but these call
  // it, and name the same; this one stays as it is. A rank that the others gave up gets an error.
  Communicator shrink(const std::vector<int>& excluded = {}, Here here = Here::at());

  // Waits until this rank's calls are done and all ranks have come here. Then it compares what they called and sent: if
  // ranks made different calls, or a message was sent and never received, every rank gets an error that names it.
  // Afterwards the communicator can only be destroyed, and no rank takes that for a loss.
  void finalize(Here here = Here::at());

  // What is wrong with the communicator, if anything is. From any thread, at any time; it waits for nothing.
  std::optional<Error> error() const;

  // Ends the calls of this rank that are under way, and all later ones, with kAborted; the other ranks are told. From
  // any thread; returns at once.
  void abort() noexcept;

  // The same with a reason: what this rank's program found wrong is what every rank gets, unless something else was
  // wrong before. For who notices that the ranks cannot go on together.
  void fail(Code code, const std::string& text) noexcept;

 private:
  friend class CallPredictor;
  friend class Gradients;  // keeps the state, so that a Communicator may move while its gradients are reduced
  struct State;
  explicit Communicator(std::shared_ptr<State> state);
  State& state(Here here = Here::at()) const;  // throws if this communicator was moved from
  std::shared_ptr<State> state_;               // plans with its calls know whether it is still there
};

}  // namespace slip
