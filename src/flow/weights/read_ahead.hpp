// ReadAhead: reads weight groups from files in the order of their loads. While one load is read, it begins to read the
// next loads if their places are free, so that the disk always has work. The loader uses it.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "flow/weights/weight_groups.hpp"
#include "slip/device.hpp"
#include "store/reader.hpp"

namespace slip::flow {

// A part of a weight group that is contiguous in a file.
struct FilePart {
  const store::File* file = nullptr;
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;
  std::uint64_t at = 0;          // in the group
  std::uint64_t room_bytes = 0;  // bytes from `at` on that no other part uses

  // Where a read of this part may write, if its planned place is `place`. A direct read writes whole pages, at the same
  // offset in a page as in the file. If the part has room for these pages, it is read there, unless `exact`; otherwise
  // the reader copies it to `place`.
  store::Destination destination(std::byte* place, bool exact) const;
  // Bytes between the planned place of the part and the place where it will be, in a group at `group`.
  std::uint64_t shift(std::byte* group, bool exact) const;
};

// A load: a group, and the destination of its read. Its 8 bytes and a pointer fit in a std::function without an
// allocation.
struct ReadTarget {
  std::uint32_t group = 0;
  std::uint32_t at = 0;  // in the memory of the loads, in multiples of kAlignment
};

class ReadAhead {
 public:
  struct Options {
    Name stream;                // name of the stream that counts the free places
    Range memory;               // loads are read into parts of it
    bool exact_places = false;  // every part is read to its planned place
  };
  // `parts`: by group. `parts` and `reader` must outlive this object. `reader` may be null if the host functions that
  // call read() never run.
  ReadAhead(const Device& device, const std::vector<std::vector<FilePart>>& parts, store::BlockReader* reader,
            Options options, Here here);

  // Announces the next load, whose place is free when `used` is complete (null: now). Issue the host function that
  // calls read() afterwards. REQUIRES: the group has parts. Allocates nothing.
  void issue(ReadTarget target, const Event* used);
  // Reads a load. Host functions call it, one at a time, in the order of issue().
  void read(ReadTarget target);

  ReadTarget target_of(std::uint32_t group, Range to) const {
    return {group, static_cast<std::uint32_t>((to.offset - options_.memory.offset) / kAlignment)};
  }
  std::byte* address_of(ReadTarget target) const;
  StreamRef stream() const { return stream_; }

 private:
  // A part of a load; loads are numbered from the first one on.
  struct LoadPart {
    std::uint64_t load = 0;
    std::size_t part = 0;
  };
  // The issued loads that may be read ahead, in a table of fixed size. The issuing thread writes a slot before it
  // issues the op that counts the load's place as free. A host function reads the slot after it has read that count.
  // If the issuing thread is far ahead, it may overwrite the slot meanwhile. Then take() returns nothing, and the load
  // is read when its own host function runs.
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

  std::optional<store::ReadRequest> next_request();
  void pass_part(std::uint32_t group);
  store::ReadRequest request(const FilePart& part, ReadTarget target) const {
    return {part.file, part.offset, part.bytes, part.destination(address_of(target) + part.at, options_.exact_places)};
  }

  const std::vector<std::vector<FilePart>>& parts_;
  store::BlockReader* const reader_;
  const Options options_;
  Stream stream_;             // a separate stream, so that counting free places waits for no load
  Buffer free_places_;        // pinned, a 32-bit counter: loads whose place is free
  std::uint64_t issued_ = 0;  // issued loads: the counter has this value when all their places are free
  IssuedLoads loads_;
  // Only the host functions use the members below.
  std::uint64_t begun_ = 0;  // number of loads whose host function has begun
  LoadPart next_;            // the first part that was not requested from the reader yet
};

}  // namespace slip::flow
