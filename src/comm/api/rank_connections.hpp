// RankConnections: how one rank of a communicator reaches the others: bootstrap, shared memory, links, and the inputs
// of the tuning model. Communicator::State derives from it.
//
// All ranks construct their RankConnections together. Afterwards the members are constant, except state that they guard
// themselves.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/api/gpu_calls.hpp"
#include "comm/api/options.hpp"
#include "comm/diagnose/call_history.hpp"
#include "comm/host/shared_host.hpp"
#include "comm/host/shared_memory.hpp"
#include "comm/link/links.hpp"
#include "comm/plan/message_program.hpp"
#include "comm/plan/tuning.hpp"
#include "comm/sim/sim_ranks.hpp"
#include "slip/communicator.hpp"
#include "transport/bootstrap/recovery.hpp"

namespace slip::comm {

struct RankConnections {
  // `inherited_topology_device`: in split() and shrink(), this rank's `topology_device` of the parent; otherwise -1.
  RankConnections(const transport::Membership& group, const Device& on, const CommunicatorOptions& opts, Here here,
                  std::shared_ptr<transport::AbortFlag> abort, int inherited_topology_device);

  std::int64_t timeout_ns() const { return std::chrono::nanoseconds(options.timeout).count(); }
  std::uint64_t world() const { return device.info().world; }
  // True: the call runs through the memory that all ranks share. All other calls run by messages.
  bool is_shared(const Call& call) const;
  // True: the program depends on the call alone, so an equal call may reuse it (KnownCalls).
  bool is_repeatable(const Call& call) const;
  // False: a simulation of times only; the buffers are not written.
  bool moves_bytes() const { return !sim || device.options().run_functions; }
  // The algorithm of a call that runs by messages.
  ScheduleChoice choice_of(const Call& call, bool explain) const {
    return choose(call, tuning, requested.algorithm, requested.deterministic, explain);
  }
  // The program of a call that runs by messages. `explained`: with SLIP_DEBUG=tune, the choices that were logged, so
  // that each is logged once.
  MessageProgramBuilder plan_of(const Call& call, bool in_place, std::set<std::string>& explained) const;

  const Device device;
  const CommunicatorOptions options;
  const RequestedOptions requested;
  transport::Bootstrap bootstrap;
  std::shared_ptr<transport::LedgerSlot> ledger_slot;
  // One thread at a time adds to its history: Communicator::State under its mutex, or, with gpu->runs_on_host(), the
  // StagedThread.
  std::shared_ptr<CallMonitor> monitor;
  std::optional<SharedHost> host;      // only if calls may use the memory that ranks of this host share
  std::optional<SharedMemory> memory;  // only if all ranks are on this host and share memory
  int topology_device = -1;            // this rank's device of the host's topology file; -1: there is no file
  std::vector<CommGraph> graphs;       // by channel
  TuningInputs tuning;
  double cores_each = 1;  // cores of this host for each of its ranks
  std::optional<Links> links;
  std::shared_ptr<SimRanks> sim;  // null: the ranks run in real time
  std::unique_ptr<GpuCalls> gpu;  // null: the ranks are not on GPUs

 private:
  void set_up(int inherited_topology_device, Here here);
};

}  // namespace slip::comm
