// ProgramPlayer: issues the programs of all ranks as ops on streams of sim devices. It defines which ops a primitive
// becomes there. ProgramSimulation (proofs and predictions) and SimWires (ranks in virtual time) use it; each gives it
// an OpSink, which owns the streams and the memory.
//
// A track is one stream of each rank; each channel uses its own track. Each ordered pair of ranks has a wire: a few
// streams that carry its messages. Ranks and wires synchronise by flags, 32-bit counters that only grow:
//   kSend, kReceive   the rank's stream writes how many messages it has begun on the wire;
//                     the wire waits for both ranks, copies the bytes, and writes how many messages are done;
//   kSent, kReceived  the rank's stream waits until enough messages are done.
// As on a real link, a rank waits before it begins a message if LinkEnd::kDepth messages are under way. Posts and
// phases of host programs are flags of the rank.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "comm/plan/primitive.hpp"
#include "slip/kernel.hpp"
#include "slip/op.hpp"
#include "slip/range.hpp"

namespace slip::comm {

// How a wire carries messages. Proofs use kRendezvous and kBuffered: a program that is correct on both is correct on
// every real link. Predictions use kEager for GPUs and kPipelined for communicators. If a rank has too many wires for
// that, they use kPipelined or kRendezvous, which need fewer streams. SimWires uses kPipelined.
//
// kRendezvous: a message moves when both ranks have begun it, and both then see it done. Programs that deadlock on any
// link deadlock on this one.
//
// kBuffered: a message leaves when it is sent, whether it is received or not. The wire reads the sender's bytes until
// it reports the send as done, even after they have arrived: a link may have to send them again. Accesses that race on
// any link race on this one.
//
// kPipelined: as kRendezvous, but a few messages are under way at once, so that not each message adds the latency.
//
// kEager: as kPipelined, but a message moves when it is sent, if a slot at the receiver is free: the receiver must have
// begun the message kSlots before it. So a message does not wait for the receiver's program, as on GPUs. The bytes go
// to memory of the wire at the receiver, whose buffer may not be ready yet; programs are not proven on this wire.
enum class WireKind : std::uint8_t { kRendezvous, kBuffered, kPipelined, kEager };

// Receives the ops of a ProgramPlayer and enqueues them on streams.
class OpSink {
 public:
  using StreamId = std::size_t;
  virtual StreamId open_wire_stream(int from, int to, int track) = 0;
  virtual Range add_flags(std::size_t count) = 0;  // their values are 0; they live as long as the sink
  // The bytes that a kBuffered wire holds, or the slots of a kEager one in the memory of this rank.
  virtual Range add_buffer(int rank, int track, std::uint64_t bytes) = 0;
  virtual void write_flag(StreamId stream, const Range& flag, std::uint64_t value) = 0;
  virtual void wait_flag(StreamId stream, const Range& flag, std::uint64_t value) = 0;  // until it is `value` or more
  virtual void copy(StreamId stream, const Range& to, const Range& from) = 0;           // may have no bytes
  virtual void launch(StreamId stream, const Kernel& kernel, const Operands& operands, const Cost& cost) = 0;

 protected:
  ~OpSink() = default;
};

// The buffers that the user of one rank passes to a call.
struct RankBuffers {
  Range input, output;
  bool in_place = false;
};

// The program of one rank and channel of a call, and the memory that it names.
struct ProgramPart {
  const Program* program = nullptr;
  int rank = 0, track = 0;
  std::span<const RankBuffers> buffers = {};  // by rank
  Range scratch = {}, addressed = {};         // `addressed`: BufferSpace::kAddress is an offset into it
  std::span<const Range> staging = {};        // by rank; host programs
  std::uint64_t number = 0, phase = 0;        // host programs: the call's number, and the phases of all calls before it
};

class ProgramPlayer {
 public:
  using StreamId = OpSink::StreamId;
  ProgramPlayer(OpSink& sink, int nranks, WireKind kind) : sink_(sink), nranks_(nranks), kind_(kind) {}

  // The number of streams of a pipelined or eager wire, at most kSlots: as many messages may be under way at once.
  // Small messages need many, so that they do not wait for the latency of those before them. Large ones share the
  // link's rate, so the first of many would be late. REQUIRES: no message was issued yet.
  void set_wire_streams(std::uint64_t count) { wire_streams_ = count; }
  static constexpr std::uint64_t kWireStreams = 4;  // unless set_wire_streams() is called
  static constexpr std::uint64_t kSlots = 8;        // of an eager wire: messages that the receiver has room for

  // The time until a rank sees a flag that another rank of its host has written. Only predictions use it.
  void set_flag_latency(Picos time) { flag_latency_ = time; }

  // Issues the program on the rank's stream. Its messages move once deliver() has been called.
  void play(const ProgramPart& part, StreamId stream);
  // Issues all messages that were begun since the last call. Throws kMismatch if the messages sent on a wire differ
  // from those received.
  void deliver();

  // Moves one message now, without waiting for programs of its ranks. Returns its number on the wire, from 1. The wire
  // is that of track 0. REQUIRES: WireKind::kPipelined.
  std::uint64_t carry(int from, int to, const Range& out, const Range& in);
  bool carried(int from, int to, std::uint64_t number) const;  // this message and all before it have arrived

  // The first stream of the wire.
  StreamId wire_stream(int from, int to, int track) { return streams_of(wire(from, to, track)).front(); }

 private:
  struct Wire {
    int from = 0, to = 0, track = 0;
    Range flags;
    std::vector<StreamId> streams;  // opened when the first message is delivered
    Range slots = {};               // kEager: where messages arrive
    std::uint64_t delivered = 0;    // messages that were issued on the streams
    std::vector<Range> out, in;     // messages not issued yet: their bytes at the sender and at the receiver
    std::uint64_t begun(bool sends) const { return delivered + (sends ? out : in).size(); }
  };
  bool is_pipelined() const { return kind_ == WireKind::kPipelined || kind_ == WireKind::kEager; }
  enum WireFlag : std::uint64_t {
    kSendBegun,
    kReceiveBegun,
    kGone,  // kBuffered: the wire holds the bytes
    kSendDone,
    kReceiveDone,
    kStreamsDone,  // is_pipelined(): the first of kSlots flags, one for each stream of the wire
    kWireFlags = kStreamsDone + kSlots
  };

  Wire& wire(int from, int to, int track);
  Wire& wire_of(const Primitive& step, const ProgramPart& part, bool sends) {
    const auto peer = static_cast<int>(step.peer);
    return sends ? wire(part.rank, peer, part.track) : wire(peer, part.rank, part.track);
  }
  std::vector<StreamId>& streams_of(Wire& wire);
  void work(const ProgramPart& part, const Primitive& step, StreamId stream);
  void begin_message(const ProgramPart& part, const Primitive& step, StreamId stream);
  void await_messages(const Wire& wire, bool sends, std::uint64_t count, StreamId stream);
  void await_peers(const ProgramPart& part, const Primitive& step, StreamId stream, std::uint64_t index,
                   std::uint64_t value);
  void require_matching(const Wire& wire) const;
  void deliver(Wire& wire, bool await_ranks);
  void deliver_buffered(Wire& wire);
  Range rank_flag(int rank, std::uint64_t index);

  OpSink& sink_;
  const int nranks_;
  const WireKind kind_;
  Picos flag_latency_ = 0;
  std::uint64_t wire_streams_ = kWireStreams;
  std::map<std::tuple<int, int, int>, Wire> wires_;  // by track, sender and receiver
  Range rank_flags_;                                 // of host programs: kFlagsPerRank of each rank
  std::vector<Range> reads_, writes_;                // of the current step; kept to save allocations
};

}  // namespace slip::comm
