#include "comm/cuda/cuda_ranks.hpp"

#include <algorithm>
#include <cstring>

#include "backend/cuda/check.hpp"
#include "base/clock.hpp"
#include "base/fail.hpp"
#include "comm/plan/host_program.hpp"
#include "runtime/core.hpp"

namespace slip::comm {
namespace {

// How long other processes may take to map memory that a call uses for the first time.
constexpr std::int64_t kMapNs = 30'000'000'000;
// A process whose kernel waits may be unable to map memory until that kernel ends. After this time the call goes on
// without its mapping, see choose_mover().
constexpr std::int64_t kMapSoonNs = 20'000'000;
// After a call that waited long for its peers, this many calls wait in a small kernel first, which adds about 3 us to a
// call. A single long wait is enough: when two were required, a step of DDP took up to 105 ms instead of 95 ms.
constexpr int kCallsAfterLongWait = 16;
// A call with at most this many blocks waits in its own kernel: it leaves enough of the GPU to other kernels.
constexpr int kMaxWaitingBlocks = 8;
// A block moves at least this many bytes. With smaller shares, more blocks make the call slower: on an H200, 4 MiB of
// two ranks take 7.2 us with 66 blocks of 32 KiB each, and 7.9 us with 132 blocks.
constexpr std::uint64_t kBytesOfBlock = 32 << 10;

std::shared_ptr<ControlMemory> take_control_memory(int gpu, std::size_t bytes) {
  const auto fits = [&](const ControlMemory& one) { return one.gpu == gpu && one.bytes == bytes; };
  const auto make = [&] {
    auto made = std::make_unique<ControlMemory>();
    made->gpu = gpu;
    made->bytes = bytes;
    backend::check(cudaMalloc(reinterpret_cast<void**>(&made->control), bytes), "cudaMalloc", gpu);
    backend::check(cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", gpu);
    return made;
  };
  std::shared_ptr<ControlMemory> result = ReusedMemory<ControlMemory>::take(fits, make);
  backend::check(cudaMemsetAsync(result->control, 0, bytes, result->stream), "cudaMemsetAsync", gpu);
  backend::check(cudaStreamSynchronize(result->stream), "cudaStreamSynchronize", gpu);
  return result;
}

DeviceLocation location_of(const BufferLocation& place, int rank) {
  const bool own = place.space == BufferSpace::kInput || place.space == BufferSpace::kOutput;
  const bool output = place.space == BufferSpace::kOutput || place.space == BufferSpace::kPeerOutput;
  const auto of = static_cast<std::uint64_t>(own ? rank : place.rank);
  return (output ? kOutputBit : 0) | of << kRankShift | place.offset;
}

// The steps of the ranks from `first` to `last`, without `last`.
DeviceProgram write_device_program(const Call& call, int first, int last, int nranks) {
  std::vector<DeviceStep> steps;
  std::vector<DeviceLocation> locations;
  for (int rank = first; rank < last && call.kind != Collective::kBarrier; ++rank) {
    Program program;
    DirectProgramBuilder(call, rank, nranks).write(program);
    for (const Primitive& step : program.steps) {
      if (step.kind != Primitive::Kind::kCopy && step.kind != Primitive::Kind::kReduce)
        continue;  // the kernel itself synchronises
      steps.push_back({.bytes = step.bytes,
                       .targets = step.targets,
                       .sources = step.sources,
                       .first = static_cast<std::uint16_t>(locations.size())});
      for (std::size_t i = 0; i < static_cast<std::size_t>(step.targets) + step.sources; ++i)
        locations.push_back(location_of(program.locations[step.first + i], rank));
    }
  }
  DeviceProgram result;
  result.steps = static_cast<std::uint32_t>(steps.size());
  const std::size_t before = steps.size() * sizeof(DeviceStep);
  result.bytes.resize(before + locations.size() * sizeof(DeviceLocation));
  if (!steps.empty()) {
    std::memcpy(result.bytes.data(), steps.data(), before);
    std::memcpy(result.bytes.data() + before, locations.data(), locations.size() * sizeof(DeviceLocation));
  }
  return result;
}

// The number of blocks of the kernel: enough to fill the memory bandwidth, few for small calls. All ranks of a call get
// the same number if they pass the same arguments. `max`: the blocks that fit on the GPU.
int blocks_of_call(const Call& call, int nranks, MeetingMode mode, int max) {
  const auto all = static_cast<std::uint64_t>(nranks);
  std::uint64_t bytes = call.block_bytes();  // that one rank reads from each of its sources
  if (call.kind == Collective::kAllReduce || call.kind == Collective::kReduce) bytes = (bytes + all - 1) / all;
  if (call.kind == Collective::kAllGather || call.kind == Collective::kAllToAll) bytes *= all;
  if (mode == MeetingMode::kLeader && call.kind != Collective::kGather) bytes *= all;
  const std::uint64_t wanted = std::max<std::uint64_t>((bytes + kBytesOfBlock - 1) / kBytesOfBlock, 1);
  return static_cast<int>(std::min<std::uint64_t>(wanted, static_cast<std::uint64_t>(max)));
}

}  // namespace

std::unique_ptr<GpuCalls> CudaRanks::meet(transport::Bootstrap& bootstrap, const Device& device, Here here) {
  if (bootstrap.nranks() > kMaxGpuRanks)
    base::fail(ErrorCode::kUnsupported, here, "a communicator of {} ranks on GPUs: at most {} are possible",
               bootstrap.nranks(), kMaxGpuRanks);
  std::unique_ptr<CudaRanks> made(new CudaRanks(bootstrap, device));
  made->connect(here);
  return made;
}

void CudaRanks::connect(Here here) {
  const DeviceScope scope(gpu_);
  backend::check(load_kernels(), "cudaFuncGetAttributes", gpu_, "a communicator", here);
  shared_.share(bootstrap_, gpu_);
  GpuIdentity own;
  cudaDeviceProp properties{};
  backend::check(cudaGetDeviceProperties(&properties, gpu_), "cudaGetDeviceProperties", gpu_);
  std::memcpy(own.uuid, &properties.uuid, sizeof(own.uuid));
  own.multiprocessors = properties.multiProcessorCount;
  backend::check(cudaDeviceGetAttribute(&own.mps, cudaDevAttrMpsEnabled, gpu_), "cudaDeviceGetAttribute", gpu_);
  choose_mode(bootstrap_.all_gather(own));
  controls_.own = take_control_memory(gpu_, ControlLayout::bytes(nranks_));
  ControlHandle handle;
  backend::check(cudaIpcGetMemHandle(&handle.handle, controls_.own->control), "cudaIpcGetMemHandle", gpu_);
  handle.address = reinterpret_cast<std::uint64_t>(controls_.own->control);
  handle.keeper = reinterpret_cast<std::uint64_t>(&controls_.own);
  map_controls(bootstrap_.all_gather(handle), here);
  bootstrap_.barrier();  // every rank of this process has copied the shared pointers of the others
}

void CudaRanks::choose_mode(const std::vector<GpuIdentity>& all) {
  const std::vector<transport::Placement>& places = bootstrap_.placements();
  int on_one_gpu = 1, multiprocessors = all.front().multiprocessors;
  for (std::size_t a = 0; a < all.size(); ++a) {
    int here = 0;
    multiprocessors = std::min(multiprocessors, all[a].multiprocessors);
    for (std::size_t b = 0; b < all.size(); ++b) {
      if (std::memcmp(all[a].uuid, all[b].uuid, sizeof(all[a].uuid)) != 0) continue;
      ++here;
      const bool concurrent = same_process(places[a], places[b]) || (all[a].mps != 0 && all[b].mps != 0);
      if (!concurrent) mode_ = MeetingMode::kLeader;
    }
    on_one_gpu = std::max(on_one_gpu, here);
  }
  // One block for each multiprocessor, shared by the ranks of a GPU. Two blocks would fit; the other half is left to
  // kernels of the program and of other communicators.
  launch_.max_blocks = mode_ == MeetingMode::kLeader ? multiprocessors : std::max(1, multiprocessors / on_one_gpu);
  launch_.max_blocks = std::min(launch_.max_blocks, kMaxBlocks);
}

// The leader's kernel does the work of all ranks.
void CudaRanks::limit_blocks(int max) {
  if (max > 0) launch_.max_blocks = std::min(launch_.max_blocks, mode_ == MeetingMode::kLeader ? max * nranks_ : max);
}

void CudaRanks::map_controls(const std::vector<ControlHandle>& all, Here here) {
  const std::vector<transport::Placement>& places = bootstrap_.placements();
  PeerMemory::Setup setup{rank_, nranks_, gpu_, {}};
  RankControl table;
  for (int rank = 0; rank < nranks_; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const bool same = same_process(places[index], places[static_cast<std::size_t>(rank_)]);
    setup.same_process.push_back(same);
    void* address = reinterpret_cast<void*>(all[index].address);
    if (same) {
      controls_.kept.push_back(*reinterpret_cast<const std::shared_ptr<ControlMemory>*>(all[index].keeper));
    } else {
      const cudaError_t status = cudaIpcOpenMemHandle(&address, all[index].handle, cudaIpcMemLazyEnablePeerAccess);
      if (status != cudaSuccess)
        base::fail(ErrorCode::kUnsupported, here, "rank {} cannot map device memory of rank {}: {}", rank_, rank,
                   cudaGetErrorString(status));
      controls_.opened.push_back(address);
    }
    controls_.all.push_back(static_cast<RankControl*>(address));
    table.peers[rank] = reinterpret_cast<std::uint64_t>(address);
  }
  backend::check(
      cudaMemcpyAsync(controls_.own->control, &table, sizeof(table), cudaMemcpyHostToDevice, controls_.own->stream),
      "cudaMemcpyAsync", gpu_);
  MemoryOperation none[] = {write_32(&controls_.own->control->stop, 0)};
  put_memory_operations(controls_.own->stream, none, gpu_);  // later ones need no setup of the stream
  backend::check(cudaStreamSynchronize(controls_.own->stream), "cudaStreamSynchronize", gpu_);
  peers_.emplace(std::move(setup), shared_.published());
  if (mode_ == MeetingMode::kLeader) sliced_.emplace(SlicedMessages::Setup{rank_, gpu_, &shared_, controls_.all});
}

CudaRanks::~CudaRanks() {
  stop();
  // A graph with captured calls may still exist. Its kernels write to the control memory, so no other communicator may
  // reuse that memory.
  if (controls_.own && order_.has_captured()) controls_.own->retired = true;
  try {
    const DeviceScope scope(gpu_);
    peers_.reset();
    for (void* address : controls_.opened) static_cast<void>(cudaIpcCloseMemHandle(address));
    for (StagingBuffers& buffers : staging_) buffers.free();
    for (const auto& [shape, program] : programs_.uploaded)
      static_cast<void>(cudaFree(const_cast<std::byte*>(program)));
  } catch (const Error&) {  // the device is lost
  }
  static_cast<void>(cudaGetLastError());
}

void CudaRanks::start(GpuWatch watch) {
  watch_.start({&bootstrap_, &shared_, &*peers_, controls_.own.get(), mode_}, std::move(watch));
}

std::uint64_t CudaRanks::start_call(const GpuCall& call, Op& op, runtime::StreamState& stream, Submit& submit) {
  order_.require_stream_of_device(stream, op.here);
  const DeviceScope scope(gpu_);
  prepare(call, op.here);
  const std::uint64_t position = order_.enqueue(op, stream, submit, [this](cudaStream_t native) { put_call(native); });
  watch_.note({call.ticket, Signature::of(call.call, call.number), true, order_.last_use()}, stream, position);
  return position;
}

// --- a collective ---

// Whether all these ranks have waited in a kernel for long: only then kernels write RankPage::begun. `ranks`: a bit
// mask.
bool CudaRanks::all_wait(std::uint64_t ranks) const {
  for (int rank = 0; rank < nranks_; ++rank) {
    const RankPage& page = shared_.pages()[rank];
    // acquire: no data depends on it; kernels write both counts, and a stale value only delays the answer.
    if ((ranks >> rank & 1) != 0 &&
        __atomic_load_n(&page.begun, __ATOMIC_ACQUIRE) == __atomic_load_n(&page.finished, __ATOMIC_ACQUIRE))
      return false;
  }
  return true;
}

// Finds the addresses of a buffer in all processes that access it.
void CudaRanks::place(const std::byte* data, std::uint64_t bytes, bool must_stage, int which, Placed& placed,
                      Readers readers, Here here) {
  placed.mapped_by = all_ranks();
  if (!data || bytes == 0) return;
  const std::int64_t begin = base::now_ns(), deadline = begin + kMapNs;
  for (base::Backoff backoff(base::kProgramWait);; backoff.pause()) {
    const PeerMemory::Found found = must_stage ? PeerMemory::Found{} : peers_->find(data);
    if (!found.bases) {  // no other process can map it, or the call needs a copy of it
      must_stage = false;
      placed.staged = staging_[which].at_least(bytes, gpu_);
      data = placed.staged;
      continue;
    }
    if (found.unmappable_by >= 0)
      base::fail(ErrorCode::kUnsupported, here, "rank {} could not map memory of rank {} (cudaIpcOpenMemHandle)",
                 found.unmappable_by, rank_);
    placed.mapped_by = 0;
    for (int rank = 0; rank < nranks_; ++rank) {
      if (found.is_pending && found.bases[rank] == 0) continue;
      placed.addresses[rank] = found.bases[rank] + found.offset;
      placed.mapped_by |= std::uint64_t{1} << rank;
    }
    const std::uint64_t missing = readers.ranks & ~placed.mapped_by;
    if (missing == 0) return;
    const std::int64_t now = base::now_ns();
    if (readers.may_wait_in_kernel && now - begin > kMapSoonNs && all_wait(missing)) return;
    if (const std::optional<Error> error = watch_.error()) throw Error(*error);
    if (now > deadline)
      base::fail(ErrorCode::kTimeout, here, "rank {} waited {} s until the other ranks mapped its memory", rank_,
                 kMapNs / 1'000'000'000);
  }
}

// A program is stored only when it is complete, because a call that fails here may be tried again.
const DeviceProgram& CudaRanks::program_of(const Call& call, const ProgramKey& key) {
  const auto found = programs_.built.find(key);
  if (found != programs_.built.end()) return found->second;
  const bool all = key.moves == Moves::kAll;
  return programs_.built.emplace(key, write_device_program(call, all ? 0 : rank_, all ? nranks_ : rank_ + 1, nranks_))
      .first->second;
}

const std::byte* CudaRanks::upload(const ProgramKey& key, const DeviceProgram& program) {
  if (const auto found = programs_.uploaded.find(key); found != programs_.uploaded.end()) return found->second;
  void* memory = nullptr;
  backend::check(cudaMalloc(&memory, program.bytes.size()), "cudaMalloc", gpu_);
  try {
    backend::check(cudaMemcpyAsync(memory, program.bytes.data(), program.bytes.size(), cudaMemcpyHostToDevice,
                                   controls_.own->stream),
                   "cudaMemcpyAsync", gpu_);
    backend::check(cudaStreamSynchronize(controls_.own->stream), "cudaStreamSynchronize", gpu_);
    return programs_.uploaded.emplace(key, static_cast<const std::byte*>(memory)).first->second;
  } catch (const std::exception&) {
    static_cast<void>(cudaFree(memory));
    static_cast<void>(cudaGetLastError());
    throw;
  }
}

void CudaRanks::prepare(const GpuCall& asked, Here here) {
  const Call& call = asked.call;
  Launch& launch = launch_;
  CallParameters& p = launch.parameters;
  const Blocks blocks = blocks_of(call, rank_, nranks_);
  launch.input_bytes = blocks.in * call.block_bytes();
  launch.output_bytes = blocks.out * call.block_bytes();
  require_aligned(asked, here);
  launch.input = launch.input_bytes > 0 ? asked.input : nullptr;
  launch.output = launch.output_bytes > 0 ? asked.output : nullptr;
  // Input and output overlap, and a peer would read bytes that this rank has overwritten.
  const bool overlaps = launch.input && launch.output && launch.input < launch.output + launch.output_bytes &&
                        launch.output < launch.input + launch.input_bytes;
  const bool copy_first = overlaps && !DirectProgramBuilder::may_overlap(call, rank_, launch.output, launch.input);
  const Readers readers{.ranks = all_ranks(), .may_wait_in_kernel = mode_ == MeetingMode::kTogether};
  Placed input, output;
  place(launch.input, launch.input_bytes, copy_first, 0, input, readers, here);
  place(launch.output, launch.output_bytes, false, 1, output, readers, here);
  launch.staged_input = input.staged;
  launch.staged_output = output.staged;
  const Signature shape = Signature::of(call, 0).without_number();
  p.control = controls_.own->control;
  p.pages = shared_.pages();
  p.mode = mode_;
  p.rank = rank_;
  p.nranks = nranks_;
  const bool keeps_bits = call.op == ReduceOp::kAvg && nranks_ == 1;  // a division by 1 would saturate an infinity
  p.op = static_cast<std::uint32_t>(keeps_bits ? ReduceOp::kSum : call.op);
  p.divisor = static_cast<std::uint64_t>(nranks_);
  p.own = {.elements = shape.elements, .rest = shape.rest, .mapped_by = input.mapped_by & output.mapped_by};
  std::memcpy(&p.own.scale, call.scale.bytes.data(), sizeof(p.own.scale));
  std::copy_n(input.addresses, nranks_, p.inputs);
  std::copy_n(output.addresses, nranks_, p.outputs);
  const bool is_mapped = p.own.mapped_by == all_ranks();
  const ProgramKey key{shape.elements, shape.rest,
                       mode_ == MeetingMode::kLeader || !is_mapped ? Moves::kAll : Moves::kOwn};
  const DeviceProgram& program = program_of(call, key);
  p.steps = program.steps;
  const bool fits = program.bytes.size() <= kInlineProgram;
  p.program = fits ? nullptr : upload(key, program);
  if (fits) std::copy(program.bytes.begin(), program.bytes.end(), p.inline_program);
  launch.kernel = reduces(call.kind) ? reduce_kernel_of(call.type) : copy_kernel();
  launch.blocks = blocks_of_call(call, nranks_, mode_, launch_.max_blocks);
}

// Whether this rank's next call will probably wait long for its peers. Kernels write `begun` only if they wait long, so
// a new value means that one of the last calls did.
bool CudaRanks::waits_long() {
  // acquire: no data belongs to the count; a stale one only changes when the small kernels begin.
  const std::uint32_t begun = __atomic_load_n(&shared_.pages()[rank_].begun, __ATOMIC_ACQUIRE);
  if (begun != long_waits_.last) long_waits_ = {begun, kCallsAfterLongWait};
  if (long_waits_.expected == 0) return false;
  --long_waits_.expected;
  return true;
}

void CudaRanks::put_call(cudaStream_t stream) {
  const Launch& launch = launch_;
  if (launch.staged_input)
    backend::check(cudaMemcpyAsync(launch.staged_input, launch.input, launch.input_bytes, cudaMemcpyDefault, stream),
                   "cudaMemcpyAsync", gpu_);
  if (mode_ == MeetingMode::kTogether) {
    if (waits_long() && launch.blocks > kMaxWaitingBlocks)
      backend::check(launch_arrival(launch.parameters, stream), "cudaLaunchKernel", gpu_);
    backend::check(comm::launch(launch.kernel, launch.parameters, launch.blocks, stream), "cudaLaunchKernel", gpu_);
  } else if (rank_ == 0) {
    put_by_leader(stream);
  } else {
    put_as_follower(stream);
  }
  if (launch.staged_output)
    backend::check(cudaMemcpyAsync(launch.output, launch.staged_output, launch.output_bytes, cudaMemcpyDefault, stream),
                   "cudaMemcpyAsync", gpu_);
}

void CudaRanks::put_by_leader(cudaStream_t stream) {
  RankPage* const pages = shared_.pages();
  std::vector<MemoryOperation> operations{write_32(&pages[rank_].arrived, 1)};
  for (int rank = 1; rank < nranks_; ++rank) operations.push_back(wait_for_32(&pages[rank].arrived, 1));
  for (int rank = 0; rank < nranks_; ++rank) operations.push_back(write_32(&pages[rank].arrived, 0));
  put_memory_operations(stream, operations, gpu_);
  backend::check(launch(launch_.kernel, launch_.parameters, launch_.blocks, stream), "cudaLaunchKernel", gpu_);
  operations.clear();
  for (int rank = 1; rank < nranks_; ++rank) operations.push_back(write_32(&pages[rank].done, 1));
  put_memory_operations(stream, operations, gpu_);
}

void CudaRanks::put_as_follower(cudaStream_t stream) {
  const CallParameters& p = launch_.parameters;
  const CallPost& post = controls_.all[0]->posts[rank_];  // of the leader, in device memory
  RankPage& page = shared_.pages()[rank_];
  MemoryOperation operations[] = {
      write_64(&post.input, p.inputs[0]),
      write_64(&post.output, p.outputs[0]),
      write_64(&post.elements, p.own.elements),
      write_64(&post.rest, p.own.rest),
      write_64(&post.scale, p.own.scale),
      write_32(&page.arrived, 1),
      wait_for_32(&page.done, 1),
      write_32(&page.done, 0),
  };
  put_memory_operations(stream, operations, gpu_);
}

}  // namespace slip::comm
