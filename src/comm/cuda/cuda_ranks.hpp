// CudaRanks: one rank of a communicator whose ranks are on GPUs of one host. A call becomes one kernel, which reads and
// writes the buffers of all ranks directly.
//
// There are two modes. kTogether: the kernels of all ranks can run at the same time, because ranks are threads of one
// process, or processes under MPS, or each has its own GPU. Each rank launches a kernel; the kernels synchronise by
// flags in device memory. kLeader: processes share a GPU without MPS, so their kernels are time-sliced, and a kernel
// that waits for another process would wait for milliseconds. Rank 0 alone launches a kernel, which moves the data of
// all ranks. The other ranks only enqueue stream memory operations, which need no time slice.
//
// All counters and flags are in memory that kernels and memory operations themselves advance or reset. So a call that
// was captured in a CUDA graph can be replayed.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/api/gpu_calls.hpp"
#include "comm/cuda/cuda_driver.hpp"
#include "comm/cuda/cuda_kernels.hpp"
#include "comm/cuda/cuda_peers.hpp"
#include "comm/cuda/cuda_streams.hpp"
#include "comm/cuda/cuda_watch.hpp"

namespace slip::comm {

// A rank's control memory, and a stream of its own through which the host writes there while kernels run.
struct ControlMemory {
  RankControl* control = nullptr;
  cudaStream_t stream = nullptr;
  int gpu = 0;
  std::size_t bytes = 0;
  bool retired = false;  // enqueued work may still write to the memory, so no other communicator may use it
};

// The GPU of a rank; ranks send it to each other.
struct GpuIdentity {
  char uuid[16] = {};
  int multiprocessors = 0;
  int mps = 0;
};

// How the others reach a rank's control memory.
struct ControlHandle {
  cudaIpcMemHandle_t handle{};
  std::uint64_t address = 0;  // in its own process
  std::uint64_t keeper = 0;   // address of a std::shared_ptr<ControlMemory>, for ranks of the same process
};

// Sends and receives of processes that share a GPU without MPS. Their kernels, and their copies inside
// the GPU, are time-sliced; each change of the process takes 0.15 ms (measured on an H200). Stream memory operations
// need no time slice.
//
// Of two ranks, the lower one is the worker: its kernel copies the messages of both directions. The other rank offers
// its buffer and waits, by memory operations alone. So only one of the two processes runs kernels.
class SlicedMessages {
 public:
  struct Setup {
    int rank = 0, gpu = 0;
    const SharedPages* shared = nullptr;
    std::vector<RankControl*> controls;  // of all ranks, as addresses of this process
  };
  explicit SlicedMessages(Setup setup);

  // Whether a kernel of this rank copies a message to (`sends`) or from the other rank.
  bool copies(int other, bool sends) const {
    return other > setup_.rank || (other == setup_.rank && !sends);  // a message to itself: the receive copies
  }

  // Enqueues at most one message in each direction with each rank: first all offers, then the copies, then the waits
  // for the workers. So no two ranks wait for each other. `launch_kernel` copies.
  using LaunchKernel = std::function<void(std::span<const DeviceMessage>)>;
  void put_round(std::span<const DeviceMessage> round, cudaStream_t stream, const LaunchKernel& launch_kernel);

 private:
  const MessageBox& box(const DeviceMessage& message) const;

  const Setup setup_;
  std::vector<std::uint32_t> copied_;  // messages with each rank so far
};

// The program of a call in the form that kernels read. The steps are those of DirectProgramBuilder, so GPUs use the
// same plans as ranks on the CPU. The kernel itself synchronises with the peers.
struct DeviceProgram {
  std::uint32_t steps = 0;
  std::vector<std::byte> bytes;  // the steps, then the locations
};

class CudaRanks final : public GpuRank {
 public:
  static std::unique_ptr<GpuCalls> meet(transport::Bootstrap& bootstrap, const Device& device, Here here);
  ~CudaRanks() override;

  void start(GpuWatch watch) override;
  void stop() noexcept override { watch_.stop(); }
  void limit_blocks(int max) override;
  std::uint64_t start_call(const GpuCall& call, Op& op, runtime::StreamState& stream, Submit& submit) override;
  std::uint64_t start_messages(std::span<const UserMessage> messages, std::uint64_t ticket, Op& op,
                               runtime::StreamState& stream, Submit& submit) override;
  void drain() noexcept override { watch_.drain(); }

 private:
  CudaRanks(transport::Bootstrap& bootstrap, const Device& device) : GpuRank(bootstrap, device) {}
  void connect(Here here);
  void choose_mode(const std::vector<GpuIdentity>& all);
  void map_controls(const std::vector<ControlHandle>& all, Here here);

  // A buffer of this rank as a call uses it: its own address, or that of staging memory if the other processes cannot
  // map it.
  struct Placed {
    std::uint64_t addresses[kMaxGpuRanks] = {};  // by reader
    std::uint64_t mapped_by = 0;                 // bit r: reader r has an address
    std::byte* staged = nullptr;                 // null: the buffer itself
  };
  // The ranks that access a buffer.
  struct Readers {
    std::uint64_t ranks;              // a bit mask
    bool may_wait_in_kernel = false;  // the call also works without readers whose kernels wait, see choose_mover()
  };
  std::uint64_t all_ranks() const { return (std::uint64_t{1} << nranks_) - 1; }
  void place(const std::byte* data, std::uint64_t bytes, bool must_stage, int which, Placed& placed, Readers readers,
             Here here);
  bool all_wait(std::uint64_t ranks) const;

  struct Launch {
    CallKernel kernel = nullptr;
    CallParameters parameters;
    int blocks = 1, max_blocks = 1;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::uint64_t input_bytes = 0, output_bytes = 0;
    std::byte *staged_input = nullptr, *staged_output = nullptr;
  };
  enum class Moves { kOwn, kAll };  // the data that a program moves: of this rank, or of all ranks
  struct ProgramKey {
    std::uint64_t elements, rest;  // of the signature, without its number
    Moves moves;
    auto operator<=>(const ProgramKey&) const = default;
  };
  const DeviceProgram& program_of(const Call& call, const ProgramKey& key);
  const std::byte* upload(const ProgramKey& key, const DeviceProgram& program);
  void prepare(const GpuCall& call, Here here);
  bool waits_long();
  void put_call(cudaStream_t stream);
  void put_by_leader(cudaStream_t stream);
  void put_as_follower(cudaStream_t stream);

  struct MessageLaunch {
    std::vector<DeviceMessage> messages;
    std::uint32_t rounds = 0;
  };
  void put_messages(const MessageLaunch& launch, cudaStream_t stream);
  void launch_message_kernel(std::span<const DeviceMessage> messages, std::uint32_t rounds, cudaStream_t stream);

  MeetingMode mode_ = MeetingMode::kTogether;
  SharedPages shared_;
  struct Controls {
    std::shared_ptr<ControlMemory> own;
    std::vector<std::shared_ptr<ControlMemory>> kept;  // of the ranks of this process
    std::vector<RankControl*> all;                     // of all ranks, as addresses of this process
    std::vector<void*> opened;                         // by IPC handle
  };
  Controls controls_;
  std::optional<PeerMemory> peers_;
  std::optional<SlicedMessages> sliced_;  // kLeader only
  CudaWatch watch_;

  // The following belong to the thread that enqueues a call; the communicator's mutex orders them.
  Launch launch_;
  struct Programs {
    std::map<ProgramKey, DeviceProgram> built;
    std::map<ProgramKey, const std::byte*> uploaded;
  };
  Programs programs_;
  struct LongWaits {
    std::uint32_t last = 0;  // RankPage::begun at the last look
    int expected = 0;        // calls that probably wait long as well
  };
  LongWaits long_waits_;
  StagingBuffers staging_[2];  // input, output
};

}  // namespace slip::comm
