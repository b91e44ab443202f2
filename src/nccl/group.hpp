// Groups: the calls of a thread between ncclGroupStart and the outermost ncclGroupEnd. Without an open group a call is
// submitted at once.
//
// A group may also contain jobs: calls that wait for other ranks (init, split, shrink, finalize). At the end of the
// group each job runs in a thread, so that one thread can make the communicators of several ranks.
#pragma once

#include <functional>

#include "comm/api/call.hpp"
#include "nccl/comm.hpp"
#include "slip/range.hpp"
#include "slip/reduction.hpp"

namespace slip::nccl {

using comm::Collective;

// A collective, send or receive whose arguments were checked.
struct CallRequest {
  Collective kind = Collective::kAllReduce;
  bool sends = false;  // kMessage: a send, not a receive
  const char* function = "";
  Range from = {}, to = {};  // empty: this rank has no such buffer
  std::size_t count = 0;
  DataType type = DataType::kF32;
  ReduceSpec how = ReduceOp::kSum;
  const void* device_factor = nullptr;  // PreMulSum: read in stream order, replaces the factor of `how`
  int root = 0;                         // or the peer of a send or receive
  cudaStream_t stream = nullptr;
  Pin comm = {};
};

void issue(const CallRequest& call);           // enqueues it (collectives.cpp)
double estimated_us(const CallRequest& call);  // ncclGroupSimulateEnd (collectives.cpp)

// Issues the call, or adds it to the open group of this thread. In host mode it waits for the result
// (Comm::finish_calls).
ncclResult_t submit(CallRequest&& call);

struct Job {
  const char* function = "";
  Pin target = {};            // the communicator that is made or finalized; empty: split makes none for this rank
  Pin parent = {};            // split, shrink
  ncclComm_t* out = nullptr;  // set if `target` is new: a job that fails closes it and writes NULL here
  bool blocking = true;
  std::function<void()> body = {};  // waits for other ranks; throws on failure
};
// Runs the job, starts it in a thread if it is not blocking, or adds it to the open group of this thread.
ncclResult_t submit(Job&& job);

// A call of the open group has failed: the end of the group submits nothing and returns the first such result.
void note_group_error(ncclResult_t result) noexcept;

}  // namespace slip::nccl
