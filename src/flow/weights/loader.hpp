// Loader: brings the bytes of weight groups to the device. The runner and the streamer use it, and verify_weights,
// which proves the order of the ops that it issues.
//
// Groups in host memory are copied. Groups in files are read straight into the ring if device memory is host memory
// (cpu). Otherwise they are read into pinned slots, and one slot is copied to the device while the next ones are read.
// Compressed groups are copied to slots in device memory, and decoded from there into the ring. A compressed group that
// is resident, or in memory that the device accesses directly, is decoded from where it is.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "flow/weights/packed_groups.hpp"
#include "flow/weights/step.hpp"
#include "slip/runner.hpp"
#include "store/reader.hpp"

namespace slip::flow {

// Slots between two streams of a pipeline. A stream of its own fills a slot, and the stream of the caller empties it.
// While one slot is emptied the others are filled.
class LoadSlots {
 public:
  // `memory` has slots_bytes(slots, max_bytes), or `max_bytes` in a simulation that moves no bytes: all slots share it
  // then.
  LoadSlots(const Device& device, Name stream, Range memory, std::size_t slots, std::uint64_t max_bytes, Here here)
      : memory_(memory),
        stride_(memory.bytes >= slots_bytes(slots, max_bytes) ? aligned(max_bytes) : 0),
        stream_(device.stream(stream, StreamFlags::kNonBlocking, 0, here)),
        slots_(slots) {}

  // `fill(stream, slot)` issues what fills `bytes` bytes of a slot, and `empty(slot)` issues to `to` what reads them.
  template <class Fill, class Empty>
  void issue(StreamRef to, std::uint64_t bytes, const Fill& fill, const Empty& empty) {
    const std::size_t turn = next_++ % slots_.size();
    Slot& slot = slots_[turn];
    const Range range = memory_.slice(turn * stride_, bytes);
    stream_.wait(slot.emptied);
    fill(StreamRef(stream_), range);
    stream_.record(slot.filled);
    to.wait(slot.filled);
    empty(range);
    to.record(slot.emptied);
  }
  StreamRef stream() const { return stream_; }
  Range memory() const { return memory_; }

 private:
  struct Slot {
    Event filled, emptied;
  };
  const Range memory_;
  const std::uint64_t stride_;  // bytes; 0: shared
  Stream stream_;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
};

// Memory on the device. `slots` empty: compressed groups are decoded from pinned memory.
struct LoadMemory {
  Range ring, resident = {}, slots = {};
  static LoadMemory of(const WeightsMemory& memory) {
    return {WeightsMemory::range_of(memory.ring), WeightsMemory::range_of(memory.resident),
            WeightsMemory::range_of(memory.slots)};
  }
};

// The weight groups that a Loader loads. The groups and values must live as long as the loader.
struct LoadedGroups {
  const std::vector<WeightGroup>& groups;
  std::span<const GraphValue> values;  // parts of groups are bytes of these values
  std::vector<WeightSource> sources;   // by group
  std::vector<Range> pinned = {};      // by group: pinned memory of the program; empty: the source decides for all
  std::vector<PackedGroups::Group> packed = {};  // by group: those that are compressed; empty: none
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

  // Groups are loaded into the ring. In a proof a group's source may be empty: then it comes from pinned memory or, if
  // the plan leaves it on disk, from staged reads.
  Loader(const Device& device, LoadedGroups groups, const LoadMemory& memory, Options options, Here here);
  // For the groups of a plan, all from one source, which may be null in a proof.
  Loader(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightSource* source,
         const LoadMemory& memory, Options options, Here here);

  // Loads the resident groups and waits for them.
  void fill_resident(Here here);
  // Throws kParse if a device found a damaged block, with the weight and the block. Call it when loads are complete.
  void check_decoded(Here here) const;
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
    kDecode,        // compressed
  };
  struct FilePart {
    const store::File* file = nullptr;
    std::uint64_t offset = 0;  // in the file
    std::uint64_t bytes = 0;
    std::uint64_t at = 0;          // in the group
    std::uint64_t room_bytes = 0;  // from `at` on, that no other part uses
  };
  // One launch of the decompress kernel. Offsets are in the packed group and in the group.
  struct Decoding {
    std::uint64_t blocks = 0, blocks_bytes = 0, checks = 0, ends = 0, count = 0;
    std::uint64_t at = 0, bytes = 0;
    Range report;
    std::vector<Scalar> scalars;
  };
  struct Group {
    LoadPath path = LoadPath::kCopy;
    Name name, read_name;
    Range pinned;                     // kCopy
    std::vector<Range> memory;        // kCopyParts: by part
    std::vector<FilePart> parts;      // kReadIntoRing, kReadThenCopy
    std::vector<Decoding> decodings;  // kDecode: launches, one for each part
    Name copy_name;                   // kDecode
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
  void fill_stored(std::uint32_t group, std::byte* into);  // as it is copied: compressed if the plan says so
  void prepare_decoding(Here here);
  void issue_compressed(StreamRef stream, Range to, std::uint32_t group);
  void issue_decode(StreamRef stream, Range to, std::uint32_t group, Range packed);
  bool is_on_disk(std::uint32_t group) const;
  void issue_read(StreamRef stream, Range to, std::uint32_t group, Name name);
  void read_next_load(ReadTarget target);
  std::optional<store::ReadRequest> next_request();
  void pass_part(std::uint32_t group);
  // The memory that reads of this group go to.
  Range whole_of(std::uint32_t group) const {
    return groups_[group].path == LoadPath::kReadIntoRing ? memory_.ring : read_slots_->memory();
  }
  ReadTarget target_of(Range to, std::uint32_t group) const {
    return {group, static_cast<std::uint32_t>((to.offset - whole_of(group).offset) / kAlignment)};
  }
  std::byte* address_of(ReadTarget target) const;
  store::Landing landing_of(const FilePart& part, std::byte* place) const;
  const GraphValue& value_of(const WeightGroup::Part& part) const { return all_.values[part.bytes.value.index]; }

  const Device device_;
  const LoadedGroups all_;
  const LoadMemory memory_;
  const Options options_;
  std::vector<Group> groups_;
  std::vector<Buffer> host_;  // pinned memory, or the program's wrapped
  std::unique_ptr<store::BlockReader> reader_;
  Buffer read_memory_;                       // pinned, of read_slots_
  std::unique_ptr<LoadSlots> read_slots_;    // if groups are read from disk, and not into the ring
  std::unique_ptr<LoadSlots> device_slots_;  // if compressed groups are copied
  std::unique_ptr<ReadAhead> read_ahead_;    // if loads have the path kReadIntoRing
  Buffer reports_;                           // pinned: 8 bytes for each decoding
};

// True if device memory is memory of this process, so that a file read can write to it.
bool is_host_memory(const Device& device);

}  // namespace slip::flow
