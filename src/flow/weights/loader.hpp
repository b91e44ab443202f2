// Loader: brings the bytes of weight groups to the device. The runner and the streamer use it. verify_weights uses it
// too, to prove the order of the ops that it issues.
//
// Groups in host memory are copied. Groups in files are read straight into the ring if device memory is host memory
// (cpu). Otherwise they are read into pinned slots, and one slot is copied to the device while the next ones are read.
// Compressed groups are copied to slots in device memory, and decoded from there into the ring. A compressed group that
// is resident, or in memory that the device accesses directly, is decoded from where it is.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "flow/weights/packed_groups.hpp"
#include "flow/weights/read_ahead.hpp"
#include "flow/weights/step.hpp"
#include "slip/runner.hpp"
#include "store/reader.hpp"

namespace slip::flow {

// Slots of memory between two streams. The stream of this object fills a slot, and the stream of the caller reads it.
// While one slot is read, the others are filled.
class LoadSlots {
 public:
  // `memory` has slots_bytes(slots, max_bytes). In a simulation that moves no bytes it may have only `max_bytes`: then
  // all slots share it.
  LoadSlots(const Device& device, Name stream, Range memory, std::size_t slots, std::uint64_t max_bytes, Here here)
      : memory_(memory),
        stride_(memory.bytes >= slots_bytes(slots, max_bytes) ? aligned(max_bytes) : 0),
        stream_(device.stream(stream, StreamFlags::kNonBlocking, 0, here)),
        slots_(slots) {}

  // `fill(stream, slot, emptied)` issues the ops that fill `bytes` bytes of a slot; the stream already waits for the
  // event `emptied`. `empty(slot)` issues to `to` the ops that read them.
  template <class Fill, class Empty>
  void issue(StreamRef to, std::uint64_t bytes, const Fill& fill, const Empty& empty) {
    const std::size_t index = next_++ % slots_.size();
    Slot& slot = slots_[index];
    const Range range = memory_.slice(index * stride_, bytes);
    stream_.wait(slot.emptied);
    fill(StreamRef(stream_), range, std::as_const(slot.emptied));
    stream_.record(slot.filled);
    to.wait(slot.filled);
    empty(range);
    to.record(slot.emptied);
  }
  StreamRef stream() const { return stream_; }

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
  static LoadMemory of(const WeightsMemory& memory) { return {memory.ring, memory.resident, memory.slots}; }
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
    // Every part is at its planned place, so shift() is 0. A direct read may then need another copy.
    bool exact_places = false;
    Purpose purpose = Purpose::kRun;
  };

  // In a proof a group's source may be empty. Then the group is copied from pinned memory or, if the plan leaves it on
  // disk, read into slots.
  Loader(const Device& device, LoadedGroups groups, const LoadMemory& memory, Options options, Here here);
  // For the groups of a plan, all from one source, which may be null in a proof.
  Loader(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightSource* source,
         const LoadMemory& memory, Options options, Here here);

  // Loads the resident groups and waits for them.
  void fill_resident(Here here);
  // Throws kParse if a device found a damaged block; the error names the weight and the block. Call it when loads are
  // complete.
  void check_decoded(Here here) const;
  // Waits for an event or a stream, then calls check_decoded(). On the cpu device a damaged block also makes the stream
  // fail. The error of check_decoded() is thrown first, because it names the weight and the block.
  template <class Waited>
  void sync(const Waited& waited, Here here) const {
    try {
      waited.sync(here);
    } catch (const Error&) {
      check_decoded(here);
      throw;
    }
    check_decoded(here);
  }
  // Allocates nothing.
  void issue(StreamRef stream, Range to, std::uint32_t group, const Event* used) override;
  // Direct reads put a part where the disk can write it without another copy.
  std::uint64_t shift(Range to, std::uint32_t group, std::size_t part) const override;
  void wait(const Event& event) override {
    if (ring_reads_) ring_reads_->stream().wait(event);
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
  // One launch of the decompress kernel. Offsets are in the packed group and in the group.
  struct Decoding {
    std::uint64_t blocks = 0, blocks_bytes = 0, checksums = 0, ends = 0, count = 0;
    std::uint64_t at = 0, bytes = 0;
    Range kept_checksums = {}, kept_ends = {};  // if only blocks are read (reads_blocks)
    Range report = {};
    std::vector<Scalar> scalars;
  };
  struct Group {
    LoadPath path = LoadPath::kCopy;
    Name name, read_name;
    Range pinned;                     // kCopy
    std::vector<Range> memory;        // kCopyParts: by part
    std::vector<Decoding> decodings;  // kDecode: launches, one for each part
    Name copy_name;                   // kDecode
  };
  Group make_group(std::uint32_t index, Here here);  // and its parts_
  void keep_in_pinned_memory(Here here);
  void wrap_program_memory(std::uint32_t index, Here here);
  void fill(std::uint32_t group, std::byte* into);
  void read_parts(std::uint32_t group, std::byte* into);
  void fill_stored(std::uint32_t group, std::byte* into);  // in the form that is copied: compressed if the plan says so
  void prepare_decoding(Here here);
  void issue_compressed(StreamRef stream, Range to, std::uint32_t group);
  void issue_decode(StreamRef stream, Range to, std::uint32_t group, Range packed);
  bool is_on_disk(std::uint32_t group) const;
  const PackedGroup* packed_of(std::uint32_t group) const {  // null: the source does not have it compressed
    return all_.packed.empty() ? nullptr : all_.packed[group].get();
  }
  // Only the blocks of this compressed group are read from disk, each part with room for a direct read; the tables are
  // kept in memory. Otherwise a compressed group is read as a packed group, because it is copied in one piece.
  bool reads_blocks(std::uint32_t group) const {
    return options_.direct_reads && all_.groups[group].compressed_bytes > 0 && !all_.groups[group].resident &&
           is_on_disk(group) && packed_of(group);
  }
  std::uint64_t slot_bytes(std::uint32_t group) const;  // to read it
  void keep_tables(Here here);
  void issue_read(StreamRef stream, Range to, std::uint32_t group, Name name, const Event* used);
  void read(ReadTarget target);
  const GraphValue& value_of(const WeightGroup::Part& part) const { return all_.values[part.bytes.value.index]; }

  const Device device_;
  const LoadedGroups all_;
  const LoadMemory memory_;
  const Options options_;
  std::vector<Group> groups_;
  std::vector<std::vector<FilePart>> parts_;  // by group; of a compressed group: its blocks, in the packed group
  std::vector<Buffer> host_;                  // pinned memory, or the program's wrapped
  Buffer read_memory_;                        // pinned, of read_slots_
  // After the memory: their destructors wait for reads in flight, which write to it. slot_reader_: if groups are read
  // both ways.
  std::unique_ptr<store::BlockReader> reader_, slot_reader_;
  std::unique_ptr<LoadSlots> read_slots_;    // if groups are read from disk, and not into the ring
  std::unique_ptr<LoadSlots> device_slots_;  // if compressed groups are copied
  std::unique_ptr<ReadAhead> ring_reads_;    // if loads have the path kReadIntoRing
  std::unique_ptr<ReadAhead> slot_reads_;    // beside read_slots_
  struct DecodeMemory {
    Buffer reports;  // pinned: 8 bytes for each decoding
    Buffer tables;   // pinned: of the groups of which only blocks are read
  } decode_memory_;
};

// True if device memory is memory of this process, so that a file read can write to it.
bool is_host_memory(const Device& device);

// How files are read. `direct_reads`: straight into device memory. More threads would then take cores from the kernels
// of a cpu device.
store::ReaderOptions reader_options(bool direct_reads);

// For destructors: waits for each stream. A stream that failed is done at once, but the others may still run.
void wait_for_all(std::span<const StreamRef> streams) noexcept;

}  // namespace slip::flow
