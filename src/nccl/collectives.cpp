// Collectives, sends, receives and their operators.
#include <cstring>
#include <limits>

#include "base/small_floats.hpp"
#include "comm/delegate/nccl_library.hpp"
#include "comm/sim/predict.hpp"
#include "nccl/api.hpp"
#include "nccl/comm.hpp"
#include "nccl/group.hpp"

namespace slip::nccl {
namespace {

// The caller may pass any number as an enum.
DataType type_of(ncclDataType_t type) {
  static_assert(comm::kNcclTypes.size() == ncclNumTypes);
  const auto value = static_cast<std::size_t>(type);
  if (value >= comm::kNcclTypes.size())
    invalid_argument("datatype is {}: it must be 0 to {}", static_cast<int>(type), ncclNumTypes - 1);
  return comm::kNcclTypes[value];
}

template <class T>
T read(const void* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Slipstream takes factors as double, which does not hold every 64-bit integer.
template <class T>
double exact(const void* bytes) {
  const T value = read<T>(bytes);
  const auto result = static_cast<double>(value);
  if (result >= static_cast<double>(std::numeric_limits<T>::max()) || static_cast<T>(result) != value)
    invalid_usage("the scalar {} of a PreMulSum has no exact double: this library supports only those that have",
                  value);
  return result;
}

// A value of the type. An e5m2 infinity would be rounded to the largest number.
double scalar_of(DataType type, const void* bytes) {
  switch (type) {
    case DataType::kI8: return read<std::int8_t>(bytes);
    case DataType::kU8: return read<std::uint8_t>(bytes);
    case DataType::kI32: return read<std::int32_t>(bytes);
    case DataType::kU32: return read<std::uint32_t>(bytes);
    case DataType::kI64: return exact<std::int64_t>(bytes);
    case DataType::kU64: return exact<std::uint64_t>(bytes);
    case DataType::kF16: return base::to_float(read<base::F16>(bytes));
    case DataType::kBF16: return base::to_float(read<base::Bf16>(bytes));
    case DataType::kF32: return read<float>(bytes);
    case DataType::kF64: return read<double>(bytes);
    case DataType::kF8E4M3: return base::to_float(read<base::F8E4M3>(bytes));
    default: break;
  }
  const float value = base::to_float(read<base::F8E5M2>(bytes));
  if (value > 57344 || value < -57344) invalid_usage("the scalar of a PreMulSum is an infinity of type float8e5m2");
  return value;
}

// NCCL's average multiplies each float by 1/n before it is added; an integer sum is divided at the end.
ReduceSpec built_in(ReduceOp op, ncclDataType_t type, int nranks) {
  const bool is_float = type >= ncclFloat16;  // the floats follow the integers
  return op == ReduceOp::kAvg && is_float ? premul_sum(1.0 / nranks) : ReduceSpec(op);
}

void set_op(CallRequest& call, ncclRedOp_t op, ncclDataType_t type) {
  static_assert(comm::kNcclOps.size() == ncclNumOps);
  if (const auto value = static_cast<std::size_t>(op); value < comm::kNcclOps.size()) {
    call.how = built_in(comm::kNcclOps[value], type, call.comm->nranks());
    return;
  }
  const std::optional<PreMulOp> found = call.comm->tables().ops.find(static_cast<int>(op));
  if (!found)
    invalid_argument("op is {}: it is neither built in (0 to {}) nor an operator of this communicator",
                     static_cast<int>(op), ncclNumOps - 1);
  if (found->type != type)
    invalid_argument("op {} was made for datatype {}; the call has datatype {}", static_cast<int>(op),
                     static_cast<int>(found->type), static_cast<int>(type));
  call.how = premul_sum(found->factor);
  call.device_factor = found->device_factor;
}

void require_count(std::size_t count, DataType type, int nranks) {
  const std::size_t max = std::numeric_limits<std::ptrdiff_t>::max();
  if (count > max / bytes_of(type) / static_cast<std::size_t>(nranks))
    invalid_argument("count is {}: {} bytes for each of {} ranks are more than the address space", count,
                     bytes_of(type), nranks);
}

struct Arguments {
  Collective kind;
  const char* function;
  const void* from;
  void* to;
  std::size_t count;
  ncclDataType_t type;
  ncclComm_t comm;
  cudaStream_t stream;
  int root = 0;
  const char* root_name = nullptr;  // null: the call has no root
  bool sends = false;               // see CallRequest
};

// The size of this rank's buffers, in blocks of `count` elements; 0: the call does not use the buffer.
comm::Blocks blocks_of(const CallRequest& call) {
  if (call.kind == Collective::kMessage) return call.sends ? comm::Blocks{1, 0} : comm::Blocks{0, 1};
  return comm::blocks_of({.kind = call.kind, .root = call.root}, call.comm->rank(), call.comm->nranks());
}

// In place: the buffers are the same, or the smaller one is this rank's block of the larger one. Other overlaps are
// refused here and not by the communicator: nothing of an open group was issued yet.
void require_apart(const CallRequest& call, const void* from, const void* to, std::size_t own) {
  const auto sent = reinterpret_cast<std::uintptr_t>(from), received = reinterpret_cast<std::uintptr_t>(to);
  if (sent + call.from.bytes <= received || received + call.to.bytes <= sent) return;
  if (sent + (call.from.bytes > call.to.bytes ? own : 0) == received + (call.to.bytes > call.from.bytes ? own : 0))
    return;
  invalid_argument("sendbuff {} with {} bytes and recvbuff {} with {} bytes overlap, and the call is not in place",
                   from, call.from.bytes, to, call.to.bytes);
}

void set_ranges(CallRequest& call, const void* from, const void* to) {
  const Comm& own = *call.comm;
  const std::size_t block = call.count * bytes_of(call.type);
  const comm::Blocks blocks = blocks_of(call);
  const auto range = [&](const void* pointer, std::uint64_t count, const char* name) {
    return count == 0 ? Range{} : own.device().range(pointer, block * count, name);
  };
  call.to = range(to, blocks.out, "recvbuff");
  call.from = range(from, blocks.in, "sendbuff");
  if (blocks.out > 0 && blocks.in > 0) require_apart(call, from, to, block * static_cast<std::size_t>(own.rank()));
}

CallRequest checked(const Arguments& given) {
  CallRequest call{.kind = given.kind,
                   .sends = given.sends,
                   .function = given.function,
                   .count = given.count,
                   .root = given.root,
                   .stream = given.stream,
                   .comm = Pin::of(given.comm)};
  call.comm->require_ready();
  if (call.comm->is_revoked()) invalid_usage("comm was revoked: split, shrink or destroy it");
  call.type = type_of(given.type);
  const int nranks = call.comm->nranks();
  require_count(given.count, call.type, nranks);
  if (given.root_name && (given.root < 0 || given.root >= nranks))
    invalid_argument("{} is {}: it must be 0 to {}", given.root_name, given.root, nranks - 1);
  if (given.stream && !uses_gpus())
    invalid_argument("stream {} without a GPU: it must be null", static_cast<const void*>(given.stream));
  if (given.count > 0) set_ranges(call, given.from, given.to);
  return call;
}

// As in NCCL, a call of 0 elements does nothing.
ncclResult_t run(const Arguments& given, std::optional<ncclRedOp_t> op = std::nullopt) {
  return run_api(given.function, given.comm, [&] {
    const KeepCurrentGpu keep;
    CallRequest call = checked(given);
    if (op) set_op(call, *op, given.type);
    return given.count == 0 ? ncclSuccess : submit(std::move(call));
  });
}

double read_factor(const CallRequest& call, const StreamRef& stream) {
  std::uint64_t value = 0;
  call.comm->tables().values.read(call.comm->device(), call.device_factor, bytes_of(call.type), stream, &value);
  return scalar_of(call.type, &value);
}

}  // namespace

void issue(const CallRequest& call) {
  Comm& comm = *call.comm;
  Communicator& communicator = comm.communicator();
  const StreamRef stream = comm.stream(call.stream);
  const int root = call.root;
  const Here here{call.function, 0};
  const ReduceSpec how = call.device_factor ? premul_sum(read_factor(call, stream)) : call.how;
  switch (call.kind) {
    case Collective::kAllReduce: return communicator.all_reduce(call.to, call.from, call.type, how, stream, here);
    case Collective::kReduce: return communicator.reduce(call.to, call.from, call.type, how, root, stream, here);
    case Collective::kReduceScatter:
      return communicator.reduce_scatter(call.to, call.from, call.type, how, stream, here);
    case Collective::kBroadcast: return communicator.broadcast(call.to, call.from, root, stream, here);
    case Collective::kAllGather: return communicator.all_gather(call.to, call.from, stream, here);
    case Collective::kAllToAll: return communicator.all_to_all(call.to, call.from, stream, here);
    case Collective::kGather: return communicator.gather(call.to, call.from, root, stream, here);
    case Collective::kScatter: return communicator.scatter(call.to, call.from, root, stream, here);
    case Collective::kMessage:
      if (call.sends) return communicator.send(call.from, root, stream, here);
      return communicator.recv(call.to, root, stream, here);
    case Collective::kBarrier: break;  // NCCL has none
  }
}

double estimated_us(const CallRequest& call) {
  if (call.kind == Collective::kMessage)
    invalid_usage("{} in a group that ends with ncclGroupSimulateEnd: only the times of collectives are estimated",
                  call.function);
  const comm::Call simulated{
      .kind = call.kind, .type = call.type, .op = call.how.op, .root = call.root, .elements = call.count};
  return comm::CallPredictor(call.comm->communicator()).us(simulated, false, 1);
}

}  // namespace slip::nccl

using namespace slip::nccl;

SLIP_NCCL_API(ncclResult_t, ncclAllReduce, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
              ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return run({Collective::kAllReduce, "ncclAllReduce", sendbuff, recvbuff, count, datatype, comm, stream}, op);
}

SLIP_NCCL_API(ncclResult_t, ncclReduce, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
              ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return run({Collective::kReduce, "ncclReduce", sendbuff, recvbuff, count, datatype, comm, stream, root, "root"}, op);
}

SLIP_NCCL_API(ncclResult_t, ncclReduceScatter, const void* sendbuff, void* recvbuff, size_t recvcount,
              ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return run({Collective::kReduceScatter, "ncclReduceScatter", sendbuff, recvbuff, recvcount, datatype, comm, stream},
             op);
}

SLIP_NCCL_API(ncclResult_t, ncclBroadcast, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
              int root, ncclComm_t comm, cudaStream_t stream) {
  return run(
      {Collective::kBroadcast, "ncclBroadcast", sendbuff, recvbuff, count, datatype, comm, stream, root, "root"});
}

SLIP_NCCL_API(ncclResult_t, ncclBcast, void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
              cudaStream_t stream) {
  return run({Collective::kBroadcast, "ncclBcast", buff, buff, count, datatype, comm, stream, root, "root"});
}

SLIP_NCCL_API(ncclResult_t, ncclAllGather, const void* sendbuff, void* recvbuff, size_t sendcount,
              ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return run({Collective::kAllGather, "ncclAllGather", sendbuff, recvbuff, sendcount, datatype, comm, stream});
}

SLIP_NCCL_API(ncclResult_t, ncclAlltoAll, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
              ncclComm_t comm, cudaStream_t stream) {
  return run({Collective::kAllToAll, "ncclAlltoAll", sendbuff, recvbuff, count, datatype, comm, stream});
}

SLIP_NCCL_API(ncclResult_t, ncclGather, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
              int root, ncclComm_t comm, cudaStream_t stream) {
  return run({Collective::kGather, "ncclGather", sendbuff, recvbuff, count, datatype, comm, stream, root, "root"});
}

SLIP_NCCL_API(ncclResult_t, ncclScatter, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
              int root, ncclComm_t comm, cudaStream_t stream) {
  return run({Collective::kScatter, "ncclScatter", sendbuff, recvbuff, count, datatype, comm, stream, root, "root"});
}

SLIP_NCCL_API(ncclResult_t, ncclSend, const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
              ncclComm_t comm, cudaStream_t stream) {
  return run({Collective::kMessage, "ncclSend", sendbuff, nullptr, count, datatype, comm, stream, peer, "peer", true});
}

SLIP_NCCL_API(ncclResult_t, ncclRecv, void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
              cudaStream_t stream) {
  return run({Collective::kMessage, "ncclRecv", nullptr, recvbuff, count, datatype, comm, stream, peer, "peer"});
}

SLIP_NCCL_API(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
              ncclScalarResidence_t residence, ncclComm_t comm) {
  return run_api("ncclRedOpCreatePreMulSum", comm, [&] {
    const Pin pin = Pin::of(comm);
    require_pointer(op, "op");
    require_pointer(scalar, "scalar");
    pin->require_ready();
    const slip::DataType type = type_of(datatype);
    PreMulOp made{.type = datatype};
    if (residence == ncclScalarHostImmediate) made.factor = scalar_of(type, scalar);
    else if (residence == ncclScalarDevice) made.device_factor = scalar;
    else invalid_argument("residence is {}: it must be 0 or 1", static_cast<int>(residence));
    *op = static_cast<ncclRedOp_t>(pin->tables().ops.add(made));
    return ncclSuccess;
  });
}

SLIP_NCCL_API(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm) {
  return run_api("ncclRedOpDestroy", comm, [&] {
    const Pin pin = Pin::of(comm);
    if (static_cast<int>(op) >= 0 && op < ncclNumOps)
      invalid_argument("op {} is built in: it cannot be destroyed", static_cast<int>(op));
    if (!pin->tables().ops.remove(static_cast<int>(op)))
      invalid_argument("op {} is no operator of this communicator", static_cast<int>(op));
    return ncclSuccess;
  });
}
