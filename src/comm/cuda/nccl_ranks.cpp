#include "comm/cuda/nccl_ranks.hpp"

#include <algorithm>
#include <cstring>

#include "backend/cuda/check.hpp"
#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/hash.hpp"
#include "base/terminal.hpp"
#include "runtime/core.hpp"

namespace slip::comm {
namespace {

constexpr int kU8 = 1, kU32 = 3;         // of ncclDataType_t
constexpr int kSum = 0;                  // of ncclRedOp_t
constexpr int kHostFactor = 1;           // ncclScalarHostImmediate
constexpr int kFirstWithFloat8 = 22400;  // version

// The position of a value in one of NCCL's lists; -1: NCCL has no such value.
template <class Value>
int number_of(std::span<const Value> all, Value value) {
  const auto found = std::ranges::find(all, value);
  return found == all.end() ? -1 : static_cast<int>(found - all.begin());
}

// The result of a group: the first error of its calls, else that of ncclGroupEnd.
class GroupResult {
 public:
  void add(NcclResult result) {
    if (first_ == NcclResult::kSuccess && result != NcclResult::kInProgress) first_ = result;
  }
  NcclResult end(NcclResult ended) const { return first_ != NcclResult::kSuccess ? first_ : ended; }

 private:
  NcclResult first_ = NcclResult::kSuccess;
};

// A number for the host as NCCL identifies it: by NCCL_HOSTID, or by the host's name and boot id.
std::uint64_t host_of(const transport::Placement& place) {
  const std::string id = base::env_text("NCCL_HOSTID");
  return id.empty() ? base::hash_of(fmt::format("{} {}", place.host, place.boot)) : base::hash_of("id " + id);
}

std::uint64_t process_of(const transport::Placement& place) {
  return base::hash_of(fmt::format("{} {} {} {}", place.boot, place.pid_space, place.pid, place.started));
}

bool is_host_memory(const Range& range) { return range.block->kind != MemoryKind::kDevice; }

}  // namespace

std::unique_ptr<GpuCalls> NcclRanks::meet(transport::Bootstrap& bootstrap, const Device& device, bool deterministic,
                                          Here here) {
  const int gpu = gpu_of(device);
  const std::string& request = base::env().nccl;
  EngineOffer own;
  own.request = nccl_request_of(request);
  const transport::Placement& place = bootstrap.placements()[static_cast<std::size_t>(bootstrap.rank())];
  own.host = host_of(place);
  own.process = process_of(place);
  own.deterministic = deterministic ? 1 : 0;
  cudaDeviceProp properties{};
  backend::check(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties", gpu);
  std::memcpy(own.gpu, &properties.uuid, sizeof(own.gpu));
  NcclSearch found;
  if (own.request != NcclRequest::kNone) found = find_nccl(request);
  if (found.loaded) {
    own.version = found.loaded->version;
    own.polls = base::env().nccl_polled || best_call_mode(*found.loaded) == NcclCallMode::kPolled ? 1 : 0;
  } else {
    own.set_problem(base::single_line_text(found.problem));
  }
  const std::vector<EngineOffer> all = bootstrap.all_gather(own);
  const EngineChoice choice = choose_engine(all);
  if (base::debugs("nccl") && bootstrap.rank() == 0)
    base::log_line(fmt::format("communicator {:08x} of {} ranks: {} runs its calls: {}", bootstrap.id() & 0xffffffff,
                               bootstrap.nranks(), choice.uses_nccl ? found.loaded->text() : "Slipstream",
                               choice.reason));
  if (choice.is_error) throw Error(choice.code, choice.reason, here);
  if (!choice.uses_nccl) return nullptr;
  std::unique_ptr<NcclRanks> made(new NcclRanks(bootstrap, device));
  made->connection_.emplace(*found.loaded, choice.polls ? NcclCallMode::kPolled : NcclCallMode::kDirect);
  made->connect(here);
  return made;
}

void NcclRanks::connect(Here here) {
  const DeviceScope scope(gpu_);
  backend::check(cudaHostAlloc(reinterpret_cast<void**>(&page_), sizeof(NcclPage), cudaHostAllocPortable),
                 "cudaHostAlloc", gpu_);
  *page_ = {};
  backend::check(cudaMalloc(reinterpret_cast<void**>(&barrier_), sizeof(std::uint64_t)), "cudaMalloc", gpu_);
  backend::check(cudaMemset(barrier_, 0, sizeof(std::uint64_t)), "cudaMemset", gpu_);
  struct RootId {
    NcclUniqueId id;
    int result = 0;
  };
  RootId own;
  if (rank_ == 0) own.result = static_cast<int>(nccl().get_unique_id(&own.id));
  const RootId root = bootstrap_.all_gather(own).front();
  if (root.result != 0)
    base::fail(ErrorCode::kIo, here, "ncclGetUniqueId of rank 0: {}",
               nccl().get_error_string(static_cast<NcclResult>(root.result)));
  const std::int64_t deadline = bootstrap_.call_of({}).deadline_ns;
  connection_->join(root.id, nranks_, rank_, [&] {
    bootstrap_.failures().throw_if_broken();
    if (base::now_ns() > deadline)
      base::fail(ErrorCode::kTimeout, here,
                 "rank {} of {}: not all ranks joined NCCL's communicator before the deadline of init", rank_, nranks_);
  });
  bootstrap_.barrier();
  connection_->end_init();
}

NcclRanks::~NcclRanks() {
  stop();
  connection_.reset();
  try {
    const DeviceScope scope(gpu_);
    staging_.free();
    if (barrier_) static_cast<void>(cudaFree(barrier_));
    if (page_) static_cast<void>(cudaFreeHost(page_));
  } catch (const Error&) {  // the device is lost
  }
  static_cast<void>(cudaGetLastError());
}

void NcclRanks::start(GpuWatch watch) { watch_.start({&bootstrap_, &*connection_, page_, gpu_}, std::move(watch)); }

// --- staging memory ---

void NcclRanks::stage(std::byte*& data, std::uint64_t bytes, bool is_output) {
  if (data && bytes > 0) staged_.push_back({data, nullptr, bytes, is_output, &data});
}

void NcclRanks::allocate_staging() {
  constexpr std::uint64_t kAlignment = 256;
  std::uint64_t needed = 0;
  for (const Staged& one : staged_) needed += (one.bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (needed == 0) return;
  std::byte* next = staging_.at_least(needed, gpu_);
  for (Staged& one : staged_) {
    *one.place = one.own = next;
    next += (one.bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
}

// --- calls ---

void NcclRanks::require_call(const GpuCall& asked, Here here) const {
  const Call& call = asked.call;
  const bool is_float8 = call.type == DataType::kF8E4M3 || call.type == DataType::kF8E5M2;
  if (reduces(call.kind) && is_float8 && connection_->library().version < kFirstWithFloat8)
    base::fail(ErrorCode::kUnsupported, here, "{} of {}: NCCL {} has no such type", collective_name(call.kind),
               data_type_name(call.type), nccl_version_text(connection_->library().version));
  if (reduces(call.kind) && is_float8 && call.op == ReduceOp::kPreMulSum && nranks_ == 1)
    throw Error(ErrorCode::kUnsupported, "premulsum of an f8 type and a single rank: NCCL has no such reduction", here);
  require_aligned(asked, here);
}

std::uint64_t NcclRanks::start_call(const GpuCall& asked, Op& op, runtime::StreamState& stream, Submit& submit) {
  order_.require_stream_of_device(stream, op.here);
  require_call(asked, op.here);
  const DeviceScope scope(gpu_);
  const Call& call = asked.call;
  auto* input = const_cast<std::byte*>(asked.input);
  std::byte* output = asked.output;
  staged_.clear();
  const bool overwrites_input = call.kind == Collective::kAllToAll && input == output && nranks_ > 1;
  if (!op.reads.empty() && (overwrites_input || is_host_memory(op.reads[0]))) stage(input, op.reads[0].bytes, false);
  if (!op.writes.empty() && is_host_memory(op.writes[0])) stage(output, op.writes[0].bytes, true);
  allocate_staging();
  return enqueue({asked.ticket, Signature::of(call, asked.number), {}}, op, stream, submit,
                 [&](NcclComm* comm, cudaStream_t native) { return put_call(call, input, output, comm, native); });
}

std::uint64_t NcclRanks::start_messages(std::span<const UserMessage> messages, std::uint64_t ticket, Op& op,
                                        runtime::StreamState& stream, Submit& submit) {
  order_.require_stream_of_device(stream, op.here);
  const DeviceScope scope(gpu_);
  std::vector<UserMessage> own(messages.begin(), messages.end());
  NcclWatch::Noted noted{ticket, {}, {}};
  const Range *from = op.reads.begin(), *to = op.writes.begin();
  std::uint64_t bytes = 0;
  staged_.clear();
  for (UserMessage& message : own) {
    bytes += message.bytes;
    if (message.bytes == 0) continue;  // NCCL does not get it
    noted.peers.push_back(message.rank);
    const Range& range = *(message.out ? from : to)++;
    if (is_host_memory(range)) stage(message.data, message.bytes, !message.out);
  }
  allocate_staging();
  noted.signature = Signature::of_message(bytes, 0);
  std::sort(noted.peers.begin(), noted.peers.end());
  noted.peers.erase(std::unique(noted.peers.begin(), noted.peers.end()), noted.peers.end());
  return enqueue(noted, op, stream, submit,
                 [&](NcclComm* comm, cudaStream_t native) { return put_messages(own, comm, native); });
}

std::uint64_t NcclRanks::enqueue(const NcclWatch::Noted& call, Op& op, runtime::StreamState& stream, Submit& submit,
                                 const std::function<NcclResult(NcclComm*, cudaStream_t)>& body) {
  watch_.note(call);
  const std::uint64_t position = order_.enqueue(
      op, stream, submit, [&](cudaStream_t native) { put(call, native, body); },
      connection_->mode() == NcclCallMode::kPolled);
  watch_.note_position(stream, position, order_.last_use());
  return position;
}

void NcclRanks::put(const NcclWatch::Noted& call, cudaStream_t stream,
                    const std::function<NcclResult(NcclComm*, cudaStream_t)>& body) {
  const auto copy = [&](std::byte* to, const std::byte* from, std::uint64_t bytes) {
    backend::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync", gpu_);
  };
  for (const Staged& one : staged_) {
    if (!one.is_output) copy(one.own, one.user, one.bytes);
  }
  MemoryOperation begin[] = {write_32(&page_->state, NcclPage::begun(call.ticket))};
  put_memory_operations(stream, begin, gpu_);
  NcclWatch::PeerWait wait = NcclWatch::wait_from(base::now_ns());
  try {
    connection_->run([&](NcclComm* comm) { return body(comm, stream); }, [&] { watch_.check(wait, call); });
  } catch (const Error& error) {
    const Error named(error.code(), fmt::format("{}: {}", call.signature.text(), base::bare_text(error)), {});
    throw Error(watch_.fail(named));
  }
  MemoryOperation end[] = {write_32(&page_->state, NcclPage::ended(call.ticket))};
  put_memory_operations(stream, end, gpu_);
  for (const Staged& one : staged_) {
    if (one.is_output) copy(one.user, one.own, one.bytes);
  }
}

NcclResult NcclRanks::put_call(const Call& call, const std::byte* input, std::byte* output, NcclComm* comm,
                               cudaStream_t stream) {
  if (call.kind == Collective::kBarrier) return nccl().all_reduce(barrier_, barrier_, 1, kU32, kSum, comm, stream);
  if (call.elements == 0) return NcclResult::kSuccess;
  switch (call.kind) {
    case Collective::kBroadcast:
      return nccl().broadcast(rank_ == call.root ? input : output, output, call.elements, kU8, call.root, comm, stream);
    case Collective::kAllGather: return nccl().all_gather(input, output, call.elements, kU8, comm, stream);
    case Collective::kAllToAll:
    case Collective::kGather:
    case Collective::kScatter: return put_blocks(call, input, output, comm, stream);
    default: return put_reduction(call, input, output, comm, stream);
  }
}

NcclResult NcclRanks::put_reduction(const Call& call, const std::byte* input, std::byte* output, NcclComm* comm,
                                    cudaStream_t stream) {
  const int type = number_of<DataType>(kNcclTypes, call.type);
  const bool keeps_bits = call.op == ReduceOp::kAvg && nranks_ == 1;
  int op = keeps_bits ? kSum : number_of<ReduceOp>(kNcclOps, call.op);  // -1: kPreMulSum, made for each call
  if (call.op == ReduceOp::kPreMulSum) {
    ReduceScale factor = call.scale;
    const NcclResult made = nccl().red_op_create_pre_mul_sum(&op, factor.bytes.data(), type, kHostFactor, comm);
    if (made != NcclResult::kSuccess) return made;
  }
  NcclResult result = NcclResult::kSuccess;
  if (call.kind == Collective::kAllReduce) {
    result = nccl().all_reduce(input, output, call.elements, type, op, comm, stream);
  } else if (call.kind == Collective::kReduce) {
    result = nccl().reduce(input, output, call.elements, type, op, call.root, comm, stream);
  } else {
    result = nccl().reduce_scatter(input, output, call.elements, type, op, comm, stream);
  }
  // NCCL has copied the factor. If the call is still in progress, NCCL refuses to destroy the operator, and destroys it
  // with the communicator.
  if (call.op == ReduceOp::kPreMulSum) static_cast<void>(nccl().red_op_destroy(op, comm));
  return result;
}

// Sends a block from each rank to each other rank, to the root, or from the root. NCCL, too, implements such calls as
// sends and receives.
NcclResult NcclRanks::put_blocks(const Call& call, const std::byte* input, std::byte* output, NcclComm* comm,
                                 cudaStream_t stream) {
  const std::uint64_t block = call.block_bytes();
  const bool is_root = rank_ == call.root;
  GroupResult result;
  result.add(nccl().group_start());
  for (int step = 0; step < nranks_; ++step) {
    const int peer = (rank_ + step) % nranks_;
    const auto offset = static_cast<std::uint64_t>(peer) * block;
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    if (call.kind == Collective::kAllToAll) {
      from = input + offset;
      to = output + offset;
    } else if (call.kind == Collective::kGather) {
      if (peer == call.root) from = input;
      if (is_root) to = output + offset;
    } else {
      if (is_root) from = input + offset;
      if (peer == call.root) to = output;
    }
    if (from == to) continue;  // in place, or nothing to exchange with this rank
    if (from) result.add(nccl().send(from, block, kU8, peer, comm, stream));
    if (to) result.add(nccl().recv(to, block, kU8, peer, comm, stream));
  }
  return result.end(nccl().group_end());
}

NcclResult NcclRanks::put_messages(std::span<const UserMessage> messages, NcclComm* comm, cudaStream_t stream) {
  GroupResult result;
  result.add(nccl().group_start());
  for (const UserMessage& message : messages) {
    if (message.bytes == 0) continue;
    result.add(message.out ? nccl().send(message.data, message.bytes, kU8, message.rank, comm, stream)
                           : nccl().recv(message.data, message.bytes, kU8, message.rank, comm, stream));
  }
  return result.end(nccl().group_end());
}

}  // namespace slip::comm
