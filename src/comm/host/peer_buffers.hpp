// PeerBuffers: lets the ranks of one host access each other's buffers directly during a call. ProgramRunner uses it to
// publish this rank's buffers and to find those of its peers.
//
// A rank is "inside" from enter() until it signals that it no longer accesses its peers' buffers; otherwise it is
// "outside". The user of a rank may reuse its buffers as soon as its call has failed. So a rank that fails waits until
// its peers are outside (leave()). That wait is short, because a rank inside waits for no other rank.
#pragma once

#include "comm/host/call_context.hpp"

namespace slip::comm {

class PeerBuffers {
 public:
  PeerBuffers(CallContext& context, const ActiveCall& call) : context_(context), call_(call) {}

  // `hidden`: see SharedMemory::find. `is_small`: the call can also go through boxes. Returns whether peers need this
  // rank's buffers, and can reach them.
  PeerAccess publish(bool hidden, bool is_small) {
    own_ = find_own(hidden, is_small);
    return own_.access;
  }
  const PublishedBuffers& own() const { return own_; }

  // Chooses the path of the call from what its ranks have published, and finds their buffers in this process.
  void choose_path(HostProgramBuilder& plan);
  // Signals the phase in which this rank accesses its peers' buffers. Throws if a rank has failed.
  void enter(std::uint64_t phase);
  // Throws if a rank failed while this rank read that rank's buffers: they may have been overwritten meanwhile.
  void require_unfailed() const;
  // After this rank failed: returns when no peer accesses its buffers any more. It does not wait for a peer that is
  // lost, and it waits no longer than a limit.
  void leave(HostProgramBuilder& plan) noexcept;

 private:
  PublishedBuffers find_own(bool hidden, bool is_small) const;
  bool is_in_this_call(int rank) const;
  bool all_have_published(const HostProgramBuilder& plan) const;
  std::byte* resolve(int rank, const SharedAddress& address, std::uint64_t blocks) const;
  void wait_until_outside(int rank, std::uint64_t inside, std::int64_t deadline_ns) const;

  CallContext& context_;
  const ActiveCall& call_;
  PublishedBuffers own_;
};

}  // namespace slip::comm
