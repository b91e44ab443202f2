/* The C interface of NCCL 2.28.9, as Slipstream's libnccl.so.2 implements it. A program that was compiled with NVIDIA's
 * nccl.h runs with this library unchanged: names, values, layouts and calling conventions are the same.
 * docs/nccl.md says which functions work, and what differs.
 *
 * Every function also exists with the prefix "p" (pncclAllReduce). The name without it is a weak symbol, so that a
 * profiler can replace it and call the other one.
 *
 * Without CUDA headers the file compiles as well: cudaStream_t is then declared here, and must be NULL in all calls. */
#ifndef NCCL_H_
#define NCCL_H_

#if defined(__has_include)
#if __has_include(<cuda_runtime.h>) && !defined(SLIP_NCCL_WITHOUT_CUDA)
#define SLIP_NCCL_USES_CUDA_HEADERS 1
#endif
#endif
#if defined(SLIP_NCCL_USES_CUDA_HEADERS)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#if defined(__cplusplus)
#include <cuda_fp8.h>
#endif
#else
typedef struct CUstream_st* cudaStream_t;
#endif

#include <limits.h>
#include <stddef.h>

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 22809
/* The code of version X.Y.Z. Up to 2.8 the minor version had one digit. */
#define NCCL_VERSION(X, Y, Z) (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
#define NCCL_COMM_NULL NULL

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1, /* a CUDA call failed, or the GPU is lost */
  ncclSystemError = 2,        /* a call of the operating system failed, or memory is exhausted */
  ncclInternalError = 3,      /* a defect of the library */
  ncclInvalidArgument = 4,    /* a value that is wrong by itself: a pointer, a count, a rank, a handle */
  ncclInvalidUsage = 5,       /* a call that does not fit: ranks call different things, or it is not offered */
  ncclRemoteError = 6,        /* another rank was lost, aborted, or did not join in time */
  ncclInProgress = 7,         /* a non-blocking communicator has not finished: poll ncclCommGetAsyncError */
  ncclNumResults = 8
} ncclResult_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_UNDEF_FLOAT -1.0f

/* Flags of ncclCommWindowRegister, which this library does not offer. */
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01 /* ends the unfinished calls of the old communicator first */
#define NCCL_REVOKE_DEFAULT 0x00

/* Options of a communicator. A caller of an older version passes a smaller `size`: the fields beyond it have their
 * defaults. docs/nccl.md says which fields have an effect. */
typedef struct ncclConfig_v22800 {
  size_t size; /* the first three fields come from NCCL_CONFIG_INITIALIZER */
  unsigned int magic;
  unsigned int version;
  int blocking; /* 0: calls that wait for other ranks return ncclInProgress */
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName; /* "Socket" is the only network here */
  int splitShare;
  int trafficClass;
  const char* commName; /* shown in errors and traces */
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                                \
  {                                                                                                            \
    sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT,                                                                                 \
  }

/* What ncclGroupSimulateEnd returns. */
typedef struct ncclSimInfo_v22200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime; /* microseconds */
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER \
  { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NCCL_UNDEF_FLOAT }

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5, /* values from here on are made by ncclRedOpCreatePreMulSum */
  ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

/* Where the factor of ncclRedOpCreatePreMulSum is, and when it is read. */
typedef enum {
  ncclScalarDevice = 0,       /* in memory of the GPU, when the collective runs */
  ncclScalarHostImmediate = 1 /* in host memory, before the function returns */
} ncclScalarResidence_t;

/* Declares the function, and the same with the prefix "p". */
#define SLIP_NCCL_FUNCTION(result, name, ...) \
  result name(__VA_ARGS__);                   \
  result p##name(__VA_ARGS__)

/* --- memory that collectives access without staging copies --- */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclMemAlloc, void** ptr, size_t size);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclMemFree, void* ptr);

/* --- communicators --- */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclGetVersion, int* version);

/* One process makes the id and passes its bytes to all ranks. An id serves one communicator. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclGetUniqueId, ncclUniqueId* uniqueId);

/* Every rank calls one of these, in a thread or process of its own, or all of them in one group. They return when all
 * ranks have joined. The rank's GPU is the current one. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommInitRank, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommInitRankConfig, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                   ncclConfig_t* config);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommInitRankScalable, ncclComm_t* newcomm, int nranks, int myrank, int nId,
                   ncclUniqueId* commIds, ncclConfig_t* config);
/* All ranks in this process: rank i on GPU devlist[i], or on GPU i without a list. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommInitAll, ncclComm_t* comm, int ndev, const int* devlist);

/* Waits until all ranks have finished their calls and have called it. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommFinalize, ncclComm_t comm);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommDestroy, ncclComm_t comm);
/* Ends unfinished calls with an error and frees the communicator. Any thread may call it. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommAbort, ncclComm_t comm);
/* Ends unfinished calls with an error. The communicator can then be shrunk, destroyed or aborted. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommRevoke, ncclComm_t comm, int revokeFlags);

/* Ranks with the same color form a new communicator, in the order of key. NCCL_SPLIT_NOCOLOR: the rank gets none. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                   ncclConfig_t* config);
/* A new communicator without the excluded ranks. All other ranks call it. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommShrink, ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                   ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags);

SLIP_NCCL_FUNCTION(const char*, ncclGetErrorString, ncclResult_t result);
/* The text of the last error: of the communicator, else of this thread, else of the process. This thread may call the
 * function seven more times before the text becomes invalid. */
SLIP_NCCL_FUNCTION(const char*, ncclGetLastError, ncclComm_t comm);
/* Reads NCCL_DEBUG again. */
SLIP_NCCL_FUNCTION(void, ncclResetDebugInit, void);

SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t* asyncError);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommCount, const ncclComm_t comm, int* count);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommCuDevice, const ncclComm_t comm, int* device);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommUserRank, const ncclComm_t comm, int* rank);

SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommRegister, const ncclComm_t comm, void* buff, size_t size, void** handle);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommDeregister, const ncclComm_t comm, void* handle);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                   int winFlags);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t win);

/* --- collectives. Counts are in elements. n is the number of ranks. --- */

/* A sum in which this rank's values are multiplied by *scalar, a value of the data type, first. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                   ncclScalarResidence_t residence, ncclComm_t comm);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm);

/* recvbuff is used on the root only. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclReduce, const void* sendbuff, void* recvbuff, size_t count,
                   ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
/* A broadcast in place. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclBcast, void* buff, size_t count, ncclDataType_t datatype, int root,
                   ncclComm_t comm, cudaStream_t stream);
/* sendbuff is used on the root only. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclBroadcast, const void* sendbuff, void* recvbuff, size_t count,
                   ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclAllReduce, const void* sendbuff, void* recvbuff, size_t count,
                   ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
/* sendbuff has n * recvcount elements. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclReduceScatter, const void* sendbuff, void* recvbuff, size_t recvcount,
                   ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
/* recvbuff has n * sendcount elements. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclAllGather, const void* sendbuff, void* recvbuff, size_t sendcount,
                   ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
/* Both buffers have n blocks of count elements. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclAlltoAll, const void* sendbuff, void* recvbuff, size_t count,
                   ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
/* recvbuff has n blocks, on the root only. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclGather, const void* sendbuff, void* recvbuff, size_t count,
                   ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
/* sendbuff has n blocks, on the root only. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclScatter, const void* sendbuff, void* recvbuff, size_t count,
                   ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

/* Messages that two ranks send to each other belong in one group. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclSend, const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                   ncclComm_t comm, cudaStream_t stream);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclRecv, void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                   ncclComm_t comm, cudaStream_t stream);

/* --- groups: the calls of this thread between start and end are submitted together, at the end --- */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclGroupStart, void);
SLIP_NCCL_FUNCTION(ncclResult_t, ncclGroupEnd, void);
/* Ends the group without submitting it, and estimates the time of its collectives. */
SLIP_NCCL_FUNCTION(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t* simInfo);

#undef SLIP_NCCL_FUNCTION

#ifdef __cplusplus
}
#endif

#endif
