// The estimated time of a collective, for ncclGroupSimulateEnd.
#include "comm/sim/predict.hpp"
#include "nccl/comm.hpp"
#include "nccl/group.hpp"

namespace slip::nccl {
namespace {

comm::Collective collective_of(const CallRequest& call) {
  switch (call.kind) {
    case CallKind::kAllReduce: return comm::Collective::kAllReduce;
    case CallKind::kReduce: return comm::Collective::kReduce;
    case CallKind::kReduceScatter: return comm::Collective::kReduceScatter;
    case CallKind::kBroadcast: return comm::Collective::kBroadcast;
    case CallKind::kAllGather: return comm::Collective::kAllGather;
    case CallKind::kAllToAll: return comm::Collective::kAllToAll;
    case CallKind::kGather: return comm::Collective::kGather;
    case CallKind::kScatter: return comm::Collective::kScatter;
    case CallKind::kSend:
    case CallKind::kRecv: break;
  }
  invalid_usage("{} in a group that ends with ncclGroupSimulateEnd: only the times of collectives are estimated",
                call.function);
}

}  // namespace

double estimated_us(const CallRequest& call) {
  const comm::Call simulated{
      .kind = collective_of(call), .type = call.type, .op = call.how.op, .root = call.root, .elements = call.count};
  return comm::CallPredictor(call.comm->communicator()).us(simulated, false, 1);
}

}  // namespace slip::nccl
