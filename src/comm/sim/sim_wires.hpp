// SimWires: the virtual time that calls between ranks on sim devices take. It plays the programs of all ranks (see
// ProgramPlayer) on the links of their devices. No byte moves here: CallRun moves the bytes.
//
// It opens all its streams with StreamSpec::wire. They live as long as the communicator.
//
// Only the thread that drives the sim world may call it; before that, the thread that creates it.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/sync.hpp"
#include "comm/plan/message_program.hpp"
#include "comm/plan/tuning.hpp"
#include "comm/sim/program_player.hpp"
#include "slip/device.hpp"

namespace slip::comm {

class SimWires final : private OpSink, base::NoCopy {
 public:
  // `devices`: by rank; all in one sim world.
  explicit SimWires(std::vector<Device> devices);
  ~SimWires();  // waits until nothing is under way

  int nranks() const { return static_cast<int>(devices_.size()); }

  // All ranks begin a collective now. `buffers`: by rank; only the device that holds each buffer matters.
  // REQUIRES: no collective is under way.
  void play(const Call& call, const ScheduleChoice& how, std::span<const CommGraph> graphs,
            std::span<const RankBuffers> buffers);
  bool played(int rank) const;  // whether the rank has done its part of the collective

  // Begins to move a message now; an empty range is a message without bytes. Returns its number on the wire, from 1.
  std::uint64_t carry(int from, int to, const Range& out, const Range& in) {
    return player_.carry(from, to, out.block ? out : scratch_of(from, 0), in.block ? in : scratch_of(to, 0));
  }
  // Whether the message and all before it on the wire have arrived.
  bool carried(int from, int to, std::uint64_t number) const { return player_.carried(from, to, number); }

  // Measures the link between ranks 0 and 1 in both directions at the same time. Takes virtual time.
  LinkRates measure();

 private:
  // Flags in host memory, which ops of the streams write and wait for.
  class Flags : base::NoCopy {
   public:
    explicit Flags(std::size_t count);
    ~Flags();
    Range range() const;
    std::uint32_t value() const;  // of the first

   private:
    std::unique_ptr<std::uint32_t[]> values_;
    runtime::Block* block_;
  };
  struct Track {  // of a rank and a channel
    StreamId stream = 0;
    std::unique_ptr<Flags> done;  // how many collectives its stream has done
    std::uint32_t played = 0;     // how many were issued
  };

  StreamId open_stream(int rank);
  StreamId open_wire_stream(int from, int, int) override { return open_stream(from); }
  Range add_flags(std::size_t count) override { return flags_.emplace_back(std::make_unique<Flags>(count))->range(); }
  Range add_buffer(int, int, std::uint64_t) override { return {}; }  // pipelined wires hold no bytes
  void write_flag(StreamId stream, const Range& flag, std::uint64_t value) override;
  void wait_flag(StreamId stream, const Range& flag, std::uint64_t value) override;
  void copy(StreamId stream, const Range& to, const Range& from) override;
  void launch(StreamId stream, const Kernel& kernel, const Operands& operands, const Cost& cost) override;

  void play(const Program& program, std::span<const RankBuffers> buffers, int rank, int channel);
  Range scratch_of(int rank, std::size_t bytes) const;

  std::vector<Device> devices_;
  std::vector<runtime::DeviceCore*> cores_;
  std::vector<runtime::Block*> scratch_;  // by rank: blocks without memory, which only name the device
  ProgramPlayer player_;
  std::map<std::pair<int, int>, Track> tracks_;  // by rank and channel
  std::vector<std::unique_ptr<Flags>> flags_;
  std::vector<runtime::StreamState*> streams_;  // by StreamId
  int channels_ = 0;                            // of the collective
};

}  // namespace slip::comm
