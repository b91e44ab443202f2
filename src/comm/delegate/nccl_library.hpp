// NcclLibrary: NVIDIA's libnccl.so.2, loaded at run time. Communicators on GPUs pass their calls to it if SLIP_NCCL
// asks for that. This header also declares the part of NCCL's binary interface that they use; it has been stable since
// NCCL 2.14.
//
// EngineChoice: whether the ranks of a communicator use NCCL, or Slipstream's own kernels. Each rank describes its GPU
// and the library that it found. All ranks exchange these offers and make the same choice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "slip/data_type.hpp"
#include "slip/error.hpp"
#include "slip/reduction.hpp"

struct CUstream_st;

namespace slip::comm {

struct NcclComm;  // opaque

struct NcclUniqueId {
  char bytes[128] = {};
};

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// In the order of ncclDataType_t, and of ncclRedOp_t.
inline constexpr std::array kNcclTypes = {DataType::kI8,  DataType::kU8,   DataType::kI32,    DataType::kU32,
                                          DataType::kI64, DataType::kU64,  DataType::kF16,    DataType::kF32,
                                          DataType::kF64, DataType::kBF16, DataType::kF8E4M3, DataType::kF8E5M2};
inline constexpr std::array kNcclOps = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin,
                                        ReduceOp::kAvg};

// ncclConfig_t of NCCL 2.14. Later versions have more fields and set those to their defaults.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

inline constexpr int kMinNcclVersion = 21400;

struct NcclFunctions {
  NcclResult (*get_version)(int*);
  const char* (*get_error_string)(NcclResult);
  const char* (*get_last_error)(NcclComm*);
  NcclResult (*get_unique_id)(NcclUniqueId*);
  NcclResult (*comm_init_rank_config)(NcclComm**, int nranks, NcclUniqueId, int rank, NcclConfig*);
  NcclResult (*comm_finalize)(NcclComm*);
  NcclResult (*comm_destroy)(NcclComm*);
  NcclResult (*comm_abort)(NcclComm*);
  NcclResult (*comm_get_async_error)(NcclComm*, NcclResult*);
  NcclResult (*all_reduce)(const void*, void*, std::size_t, int type, int op, NcclComm*, CUstream_st*);
  NcclResult (*reduce)(const void*, void*, std::size_t, int type, int op, int root, NcclComm*, CUstream_st*);
  NcclResult (*broadcast)(const void*, void*, std::size_t, int type, int root, NcclComm*, CUstream_st*);
  NcclResult (*all_gather)(const void*, void*, std::size_t, int type, NcclComm*, CUstream_st*);
  NcclResult (*reduce_scatter)(const void*, void*, std::size_t, int type, int op, NcclComm*, CUstream_st*);
  NcclResult (*send)(const void*, std::size_t, int type, int peer, NcclComm*, CUstream_st*);
  NcclResult (*recv)(void*, std::size_t, int type, int peer, NcclComm*, CUstream_st*);
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*red_op_create_pre_mul_sum)(int* op, void* factor, int type, int residence, NcclComm*);
  NcclResult (*red_op_destroy)(int op, NcclComm*);
  // Null in older versions.
  NcclResult (*comm_split)(NcclComm*, int color, int key, NcclComm**, NcclConfig*);  // since 2.18
  NcclResult (*comm_revoke)(NcclComm*, int flags);                                   // since 2.28
};

struct NcclLibrary {
  std::string path;
  int version = 0;  // 22809 is 2.28.9
  NcclFunctions functions = {};

  std::string text() const;  // "NCCL 2.28.9 (/usr/lib/libnccl.so.2)"
};
std::string nccl_version_text(int version);

// The library, or the reason why it cannot be used.
struct NcclSearch {
  const NcclLibrary* loaded = nullptr;
  std::string problem;
};

// `request`: the value of SLIP_NCCL: a file, or "auto". For "auto" these are tried: the library that the process has
// loaded, the one that the system finds, and the one that pip installs for PyTorch, if Slipstream's Python package is
// beside it. Slipstream's own libnccl.so.2 is refused. A loaded library stays loaded, because NCCL keeps threads. Any
// thread may call this function.
NcclSearch find_nccl(const std::string& request);

enum class NcclRequest : std::int32_t { kNone, kAuto, kPath };
// By the value of SLIP_NCCL: "" and "off" are kNone.
NcclRequest nccl_request_of(const std::string& value);

// Trivially copyable: ranks send it to each other as bytes.
struct EngineOffer {
  char gpu[16] = {};          // its UUID
  std::uint64_t host = 0;     // the host as NCCL sees it: a hash of NCCL_HOSTID, or of the real host
  std::uint64_t process = 0;  // different in each process
  NcclRequest request = NcclRequest::kNone;
  std::int32_t version = 0;  // of the library
  std::int32_t deterministic = 0;
  std::int32_t polls = 0;  // 1: this rank can use NcclCallMode::kPolled only
  char problem[300] = {};  // why this rank cannot use the library; "": it can

  void set_problem(const std::string& text);
};

struct EngineChoice {
  bool uses_nccl = false;
  // True: all ranks use NcclCallMode::kPolled, because one of them must. The modes need different communicators, which
  // all ranks create together.
  bool polls = false;
  std::string reason;
  bool is_error = false;            // init fails with this reason
  ErrorCode code = ErrorCode::kOk;  // of the error
};

// `offers`: by rank. A pure function, so all ranks choose the same.
EngineChoice choose_engine(std::span<const EngineOffer> offers);

}  // namespace slip::comm
