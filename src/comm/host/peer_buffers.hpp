// PeerBuffers: lets the ranks of one host work directly in each other's buffers during a call. ProgramRunner publishes
// this rank's buffers, finds those of its peers, and enters and leaves them.
//
// A rank that fails may use its buffers again at once. So a rank inside its peers' buffers waits for no other, and a
// rank that fails waits until its peers are outside (leave()).
#pragma once

#include "comm/host/call_context.hpp"

namespace slip {

class PeerBuffers {
 public:
  PeerBuffers(CallContext& context, const ActiveCall& call) : context_(context), call_(call) {}

  // `hidden`: see SharedMemory::find. Returns whether peers need this rank's buffers, and can reach them.
  PeerAccess publish(bool hidden) {
    own_ = find_own(hidden);
    return own_.access;
  }
  const PublishedBuffers& own() const { return own_; }

  // Chooses the path of the call from what its ranks have published, and finds their buffers in this process.
  void choose_path(HostProgramBuilder& plan);
  // From this phase on this rank works in its peers' buffers. Throws if a rank has failed.
  void enter(std::uint64_t phase);
  // Throws if a rank failed while this one read its buffers, because that rank may have overwritten them.
  void require_unfailed() const;
  // After this rank failed: returns when no peer works in its buffers any more, or a peer is lost or too slow.
  void leave(HostProgramBuilder& plan) noexcept;

 private:
  PublishedBuffers find_own(bool hidden) const;
  bool is_in_this_call(int rank) const;
  bool all_have_published(const HostProgramBuilder& plan) const;
  std::byte* resolve(int rank, const SharedAddress& address, std::uint64_t blocks) const;
  void wait_until_outside(int rank, std::uint64_t inside, std::int64_t deadline_ns) const;

  CallContext& context_;
  const ActiveCall& call_;
  PublishedBuffers own_;
};

}  // namespace slip
