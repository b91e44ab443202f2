// Loader: brings the bytes of weight groups to the device. The runner and the streamer use it, and verify_weights,
// which proves the order of the ops that it issues.
//
// Groups in host memory are copied. Groups in files are read straight into the ring if device memory is host memory
// (cpu). Otherwise they are read into pinned slots, and one slot is copied to the device while the next ones are read.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "flow/weights/step.hpp"
#include "slip/runner.hpp"
#include "store/reader.hpp"

namespace slip::flow {

// Reads from disk for a device whose memory a file read cannot write. One stream reads into pinned slots, and the
// stream of loads copies each slot to the device. One slot is copied while the others are read.
class StagedReads {
 public:
  enum class SlotMemory : unsigned char {
    kOwn,     // each slot has bytes of its own
    kShared,  // all slots are the same bytes: for a simulation, which moves none
  };
  StagedReads(const Device& device, std::uint64_t max_bytes, SlotMemory slots, Here here);

  // `read(stream, slot)` issues the read of `to.bytes` bytes into `slot`; the copy to `to` follows in `loads`.
  template <class IssueRead>
  void issue(StreamRef loads, Range to, Name name, const IssueRead& read) {
    const std::size_t turn = next_++ % kSlots;
    Slot& slot = slots_[turn];
    const Range staged = memory_.slice(turn * slot_stride_, to.bytes);
    stream_.wait(slot.copied);
    read(StreamRef(stream_), staged);
    stream_.record(slot.read);
    loads.wait(slot.read);
    loads.copy(to, staged, name);
    loads.record(slot.copied);
  }
  StreamRef stream() const { return stream_; }
  Range memory() const { return memory_; }

 private:
  static constexpr std::size_t kSlots = 3;
  struct Slot {
    Event read, copied;
  };
  std::uint64_t slot_stride_;  // bytes; 0: shared
  Stream stream_;
  Buffer memory_;
  std::array<Slot, kSlots> slots_;
  std::size_t next_ = 0;
};

// The weight groups that a Loader loads. The groups and values must live as long as the loader.
struct LoadedGroups {
  const std::vector<WeightGroup>& groups;
  std::span<const GraphValue> values;  // parts of groups are bytes of these values
  std::vector<WeightSource> sources;   // by group
  std::vector<Range> pinned = {};      // by group: pinned memory of the program; empty: the source decides for all
};

class Loader final : public GroupLoader {
 public:
  enum class Purpose : unsigned char {
    kRun,    // weights are read and kept in host memory
    kProve,  // only the order of the ops counts: the loader reads no weight and keeps none
  };
  struct Options {
    bool direct_reads = false;  // device memory is host memory: reads go straight into the ring
    // Every part has its planned place: shift() is 0. A direct read may need another copy then.
    bool exact_places = false;
    Purpose purpose = Purpose::kRun;
  };

  // Groups are loaded into `ring`. In a proof a group's source may be empty: then it comes from pinned memory or, if
  // the plan leaves it on disk, from staged reads.
  Loader(const Device& device, LoadedGroups groups, Range ring, Options options, Here here);
  // For the groups of a plan, all from one source, which may be null in a proof.
  Loader(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightSource* source, Range ring,
         Options options, Here here);

  // Loads the resident groups and waits for them.
  void fill_resident(Range resident, Here here);
  // Allocates nothing.
  void issue(StreamRef stream, Range to, std::uint32_t group, const Event* used) override;
  // Direct reads put a part where the disk can write it without another copy.
  std::uint64_t shift(Range to, std::uint32_t group, std::size_t part) const override;
  void wait(const Event& event) override {
    if (read_ahead_) read_ahead_->stream.wait(event);
  }
  // The loader's own streams, beside the one that issue() gets.
  std::vector<StreamRef> streams() const;

 private:
  enum class LoadPath : unsigned char {
    kCopy,          // from pinned memory, one copy
    kCopyParts,     // from the program's memory, part by part
    kReadIntoRing,  // from the file to device memory, which is host memory
    kReadThenCopy,  // from the file to a pinned slot, then a copy
  };
  struct FilePart {
    const store::File* file = nullptr;
    std::uint64_t offset = 0;  // in the file
    std::uint64_t bytes = 0;
    std::uint64_t at = 0;          // in the group
    std::uint64_t room_bytes = 0;  // from `at` on, that no other part uses
  };
  struct Group {
    LoadPath path = LoadPath::kCopy;
    Name name, read_name;
    Range pinned;                 // kCopy
    std::vector<Range> memory;    // kCopyParts: by part
    std::vector<FilePart> parts;  // kReadIntoRing, kReadThenCopy
  };
  // A group, and the destination of its read, in 8 bytes: so the host function that captures it fits in two pointers.
  struct ReadTarget {
    std::uint32_t group = 0;
    std::uint32_t at = 0;  // in the ring or in the slots (whole_of), in multiples of kAlignment
  };
  // A part of a load; loads are numbered from the first one on.
  struct LoadPart {
    std::uint64_t load = 0;
    std::size_t part = 0;
  };
  // The issued loads that may be read ahead, in a table of fixed size. The issuing thread writes a slot before it
  // issues the op that counts the load's place as free. A host function reads the slot after it has read that count.
  // The issuing thread may be far ahead and overwrite the slot meanwhile; then take() returns nothing, and the load is
  // read when its own host function runs.
  class IssuedLoads {
   public:
    void put(std::uint64_t load, ReadTarget target);
    std::optional<ReadTarget> take(std::uint64_t load) const;

   private:
    static constexpr std::size_t kSlots = 1024;
    struct Slot {
      std::atomic<std::uint64_t> number = 0;  // 1 + number of the load; 0 while it is written
      std::atomic<std::uint64_t> target = 0;
    };
    std::array<Slot, kSlots> slots_;
  };
  // kReadIntoRing: while one load is read, the reader begins the next ones if their place in the ring is free. A
  // separate stream, which waits for no load, counts the free places in pinned memory.
  struct ReadAhead {
    Stream stream;
    Buffer free_places;        // a 32-bit counter: loads whose place in the ring is free
    std::uint64_t issued = 0;  // issued loads: the counter has this value when all their places are free
    IssuedLoads loads = {};
    // Only the host functions that read use the members below, and they run one at a time.
    std::uint64_t begun = 0;  // number of loads whose host function has begun
    LoadPart next;            // the first part that was not requested from the reader yet

    ReadAhead(const Device& device, Here here);
  };

  Group make_group(std::uint32_t index, Here here) const;
  void keep_in_pinned_memory(Here here);
  void wrap_program_memory(std::uint32_t index, Here here);
  void fill(std::uint32_t group, std::byte* into);
  void issue_read(StreamRef stream, Range to, std::uint32_t group, Name name);
  void read_next_load(ReadTarget target);
  std::optional<store::ReadRequest> next_request();
  void pass_part(std::uint32_t group);
  // The memory that reads of this group go to.
  Range whole_of(std::uint32_t group) const {
    return groups_[group].path == LoadPath::kReadIntoRing ? ring_ : staged_->memory();
  }
  ReadTarget target_of(Range to, std::uint32_t group) const {
    return {group, static_cast<std::uint32_t>((to.offset - whole_of(group).offset) / kAlignment)};
  }
  std::byte* address_of(ReadTarget target) const;
  store::Landing landing_of(const FilePart& part, std::byte* place) const;
  const GraphValue& value_of(const WeightGroup::Part& part) const { return all_.values[part.bytes.value.index]; }

  const Device device_;
  const LoadedGroups all_;
  const Range ring_;
  const Options options_;
  std::vector<Group> groups_;
  std::vector<Buffer> host_;  // pinned memory, or the program's wrapped
  std::unique_ptr<store::BlockReader> reader_;
  std::unique_ptr<StagedReads> staged_;    // if a group has the path kReadThenCopy
  std::unique_ptr<ReadAhead> read_ahead_;  // if loads have the path kReadIntoRing
};

// True if device memory is memory of this process, so that a file read can write to it.
bool is_host_memory(const Device& device);

}  // namespace slip::flow
