// Communicator: a group of ranks that exchange data. Each rank has one device. A collective is an op of one of its
// streams: the call returns once the op is enqueued. The op runs after the stream's earlier ops, and later ops wait
// for it.
//
//   auto comm = slip::Communicator::init(id, nranks, rank, device);      // on each rank, with the same id
//   comm.all_reduce(sums, gradients, slip::DataType::kF32, slip::ReduceOp::kSum, stream);
//   stream.sync();
//
// Order. All ranks must make the same calls in the same order. If two ranks make different calls, every rank gets an
// error whose text has both calls. A call that waits longer than `timeout` fails, and its error names the ranks that
// have not joined. The root of a small broadcast, for example, waits for no other rank. Such a rank gets the mismatch
// from its next call or from finalize().
//
// Errors. After an error every further call throws that error at once. Only shrink() still works: it makes a new
// communicator of the surviving ranks. The calls of a moved-from communicator throw kInvalidHandle.
//
// Capture. A call on a capturing stream becomes an op of the plan. Each launch of the plan is one call; the other ranks
// match it by a launch or a call of their own. A launch after the communicator was destroyed is an error.
//
// Devices. All ranks use devices of one kind. Several ranks may share a GPU. Ranks on sim devices are in one process
// and use devices of one call of Device::open_all. On sim a call takes the time that the simulated links need. The
// results have the same bits on all devices, unless SLIP_NCCL hands the calls of GPUs to NVIDIA's NCCL.
//
// Bits. The same call gives the same bits in every run. Within one host, and everywhere with `deterministic`, values
// are reduced in rank order. Then the bits do not depend on the size or the algorithm either.
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

namespace slip::comm {
class CallPredictor;
}  // namespace slip::comm

namespace slip {

// How ranks carry out a collective. A communicator within one host uses this choice only if one is requested.
enum class Algorithm : unsigned char {
  kAuto,      // the fastest one by a cost model with measured rates; SLIP_DEBUG=tune prints each choice
  kDirect,    // every rank exchanges with every other rank at once, and reduces in rank order
  kRing,      // along a ring
  kTree,      // up and down two binary trees
  kDoubling,  // log2(nranks) rounds with the whole data: for small all_reduce
  kRelay,     // all_to_all: one rank of a host forwards all blocks of its host for a remote rank as one message
};
const char* algorithm_name(Algorithm algorithm);

enum class Transport : unsigned char {
  kAuto,  // shared memory between ranks of one host, the network between hosts
  kNet,   // the network only
};

// All ranks must pass the same options, except those marked "per rank".
struct CommunicatorOptions {
  std::chrono::milliseconds timeout{600'000};      // how long a call waits for another rank
  std::chrono::milliseconds init_timeout{60'000};  // how long init, split, shrink and allocate wait
  // Each rank sends a heartbeat this often. A rank counts as lost when its neighbours hear nothing during `silence`.
  std::chrono::milliseconds heartbeat{1000}, silence{4000};
  Algorithm algorithm = Algorithm::kAuto;  // used for the calls it supports; or SLIP_ALGORITHM=NAME
  Transport transport = Transport::kAuto;  // or SLIP_TRANSPORT=net
  bool deterministic = false;              // the bits depend on the input only
  // Number of parallel rings and trees that share the data of one call (NCCL's channels), 1 to 32; 0: derived. On GPUs
  // max_channels is the maximum number of its thread blocks on a rank. Or SLIP_MIN_CHANNELS and SLIP_MAX_CHANNELS.
  int min_channels = 0, max_channels = 0;
  // Network only, per rank; the sender's value counts. Several sockets help if one connection cannot fill the wire.
  int sockets = 0;  // connections per peer, 1 to 16, that share large messages; 0: 1, or SLIP_SOCKETS=N
  // Messages of at least this many bytes are sent without a copy (MSG_ZEROCOPY); their pages are locked meanwhile.
  // 0: none, or SLIP_ZERO_COPY=BYTES. Between ranks of one host the kernel copies them nevertheless.
  std::size_t zero_copy_from = 0;
  bool direct = true;     // per rank; false: other ranks never access this rank's buffers, all data is staged
  std::string host = {};  // per rank; ranks with different values count as ranks of different hosts; or SLIP_HOST_ID
  // NCCL's topology XML of the rank's host, the same for all ranks of that host; or SLIP_TOPO_FILE. Rings, trees and
  // relays are planned from it. Without a file all ranks of the host count as equally near, unless they are bound to
  // NUMA nodes.
  std::string topology = {};
  int topo_device = -1;   // per rank: its device in that file; -1: its number on the host, or SLIP_TOPO_DEVICE=N
  std::string name = {};  // per rank; "tp" names its ops "tp.all_reduce" in errors, reports and on the timeline
};

class Communicator;
// What carries the calls of the communicator, for reports: "Slipstream", or "NCCL 2.28.9 (FILE)" if SLIP_NCCL handed
// the ranks on GPUs to NVIDIA's library.
std::string engine_of(const Communicator& communicator);

inline constexpr int kNoColor = -1;  // split(): this rank gets no communicator

class Communicator {
 public:
  // Each rank calls it once, in a thread or process of its own. Returns when all ranks have joined.
  static Communicator init(const UniqueId& id, int nranks, int rank, const Device& device,
                           const CommunicatorOptions& options = {}, Here here = Here::at());
  // Takes rank and size from the launcher: slip launch, mpirun, srun or torchrun. Without a launcher there is one rank.
  static Communicator init(const Device& device, const CommunicatorOptions& options = {}, Here here = Here::at());
  // All ranks in this process, one per device.
  static std::vector<Communicator> init_all(std::span<const Device> devices, const CommunicatorOptions& options = {},
                                            Here here = Here::at());

  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  // Waits for this rank's unfinished calls. Each of them ends at its timeout at the latest, and soon after a rank loss.
  ~Communicator();

  int rank() const;
  int nranks() const;

  // Memory that the other ranks of the host can access: a call with such buffers only needs no staging copies. All
  // ranks call it in the same order and return when all have their memory; if one rank gets none, all throw
  // kOutOfMemory. Each passes its own size, 0 for none. Ranks that are threads of one process do not need it. For ranks
  // on several hosts, and for ranks on GPUs, it is ordinary memory.
  SharedBuffer allocate(std::size_t bytes, Name name = {}, Here here = Here::at());

  // `to` and `from` are pinned or device memory, and either the same range or disjoint. n is the number of ranks.
  // `how` is a ReduceOp, or premul_sum(factor).
  void all_reduce(Range to, Range from, DataType type, ReduceSpec how, StreamRef stream, Here here = Here::at());
  void reduce(Range to, Range from, DataType type, ReduceSpec how, int root, StreamRef stream, Here here = Here::at());
  // all_reduce with premul_sum(factor).
  void all_reduce_scaled(Range to, Range from, DataType type, double factor, StreamRef stream, Here here = Here::at());
  // `from` has n times the bytes of `to`.
  void reduce_scatter(Range to, Range from, DataType type, ReduceSpec how, StreamRef stream, Here here = Here::at());
  // `from` is used on the root only. `to` has the same size on all ranks.
  void broadcast(Range to, Range from, int root, StreamRef stream, Here here = Here::at());
  // `to` has n times the bytes of `from`.
  void all_gather(Range to, Range from, StreamRef stream, Here here = Here::at());
  void gather(Range to, Range from, int root, StreamRef stream, Here here = Here::at());   // `to`: on the root only
  void scatter(Range to, Range from, int root, StreamRef stream, Here here = Here::at());  // `from`: on the root only
  // Both have n blocks: block i of `from` goes to rank i, and block i of `to` comes from rank i.
  void all_to_all(Range to, Range from, StreamRef stream, Here here = Here::at());
  void barrier(StreamRef stream, Here here = Here::at());

  // One message to or from rank `peer`, which may be this rank. A send may wait for the peer's receive, so two ranks
  // that send to each other need a Group. The messages of a group run concurrently: their receive buffers must not
  // overlap any other buffer of the group.
  void send(Range buffer, int peer, StreamRef stream, Here here = Here::at());
  void recv(Range buffer, int peer, StreamRef stream, Here here = Here::at());
  // Blocks of any size: `from[i]` goes to rank i, and `to[i]` comes from rank i.
  void all_to_all_v(std::span<const Range> to, std::span<const Range> from, StreamRef stream, Here here = Here::at());

  // All ranks call it. Ranks with the same colour form a new communicator, ordered by `key`, then by rank here. A rank
  // with a negative colour gets none. It does not wait for calls on streams and does not disturb them.
  std::optional<Communicator> split(int color, int key = 0, Here here = Here::at());

  // Without `excluded`: after a loss all surviving ranks call it. They agree on the lost ranks, also those lost
  // meanwhile, and get a communicator without them. With `excluded`: all other ranks call it with the same list; this
  // communicator stays usable. Ranks keep their order. A rank that the others consider lost gets an error.
  Communicator shrink(const std::vector<int>& excluded = {}, Here here = Here::at());

  // Waits until this rank's calls are done and all ranks have called it. Then it compares the calls of all ranks. If
  // they differ, or a message was sent and never received, every rank gets an error that names it. Afterwards the
  // communicator can only be destroyed, and the other ranks do not count that as a loss.
  void finalize(Here here = Here::at());

  // The communicator's error, if it has one. Any thread may call it at any time; it never blocks.
  std::optional<Error> error() const;

  // Ends this rank's unfinished calls, and all later ones, with kAborted, and notifies the other ranks. Any thread may
  // call it; it returns at once.
  void abort() noexcept;

  // Like abort(), with an error of the program's own: all ranks get it, unless an earlier error exists. For a program
  // that finds that the ranks cannot continue together.
  void fail(ErrorCode code, const std::string& text) noexcept;

 private:
  friend class comm::CallPredictor;
  friend std::string engine_of(const Communicator& communicator);
  friend class Gradients;  // shares the state, so that the Communicator may be moved while gradients are reduced
  struct State;
  explicit Communicator(std::shared_ptr<State> state);
  State& state(Here here = Here::at()) const;  // throws if this communicator was moved from
  std::shared_ptr<State> state_;               // plans hold a weak reference, to detect that it was destroyed
};

}  // namespace slip
