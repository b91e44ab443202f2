// ProgramRunner: runs the primitives of one call: copies, reductions, posts, waits, sends and receives. CallRun owns
// it. It stops at a wait that takes long; the next run() continues there, perhaps in another thread.
//
// A call with several channels has one program for each channel. Each program runs as far as it can. If all of them
// wait, the call waits.
#pragma once

#include "base/sync.hpp"
#include "comm/host/call_context.hpp"
#include "comm/host/call_waiter.hpp"
#include "comm/host/peer_buffers.hpp"

namespace slip::comm {

class ProgramRunner : base::NoCopy {  // its parts refer to each other
 public:
  // The members that the hot path uses are stored in this object, so that the hot path follows no pointers to them.
  explicit ProgramRunner(CallContext& context) : context_(context), waiter_(context, call_), peers_(context, call_) {}

  ActiveCall& call() { return call_; }
  const ActiveCall& call() const { return call_; }
  CallWaiter& waiter() { return waiter_; }
  const CallWaiter& waiter() const { return waiter_; }
  PeerBuffers& peers() { return peers_; }

  // Call it after a new call was stored in call().
  void prepare(bool hidden);
  // Call it when all earlier calls of this rank have ended, before the first run().
  void start();
  // True: all primitives have run. False: the call waits. Throws the error of the call.
  bool run();

 private:
  void write_program();
  void write_messages();
  bool run_step(const Primitive& step);          // inline in the loop of run()
  bool run_channel_step(const Primitive& step);  // the same, not inline
  void copy(const Primitive& step);
  void read(void* to, const BufferLocation& from, std::uint64_t bytes);
  bool end_piece();
  void reduce(const Primitive& step) const;
  bool begin_message(const Primitive& step);
  std::byte* at(const BufferLocation& place) const;
  void start_channels();
  bool run_channels();
  bool run_channel(int channel);

  CallContext& context_;
  ActiveCall call_;
  CallWaiter waiter_;
  PeerBuffers peers_;
  const Program* program_ = nullptr;
  std::uint64_t piece_ = 0;
  std::size_t step_ = 0;
  std::uint64_t staging_shift_ = 0;  // in a small call, added to offsets in staging memory (see box_shift())
  int channel_ = 0;                  // the channel whose step runs
  std::uint64_t scratch_ = 0;        // offset of the scratch memory of this channel
  std::uint64_t began_ = 0;          // in ticks; 0: the call is not measured (CopyChoice)
  bool refused_ = false;             // the kernel did not let this rank read a peer's memory
};

}  // namespace slip::comm
