// Loader: how the bytes of a unit come to the device. From host memory they are copied; what is left on disk is read,
// on the cpu right into the ring, elsewhere into pinned memory while the piece before it is copied.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "slip/runner.hpp"
#include "store/reader.hpp"

namespace slip {

class Loader {
 public:
  // Units are loaded into `ring`.
  Loader(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightSource& source, Range ring,
         Here here);
  ~Loader();

  // Brings the resident units to their place, and returns when they are there.
  void fill_resident(const Buffer& resident, Here here);
  // Issues what brings a unit to `to`, in this stream, which waits for `used` if that is not null. Loads come in the
  // plan's order, step after step. Allocates nothing.
  void issue(StreamRef stream, Range to, std::uint32_t unit, const Event* used);
  // A part that is read to `to` begins so many bytes behind its place, where the disk can write it.
  std::uint64_t shift(Range to, std::uint32_t unit, std::size_t part) const;

 private:
  enum class Way : unsigned char {
    kCopy,       // from pinned memory, one copy
    kCopyParts,  // from the program's memory, part by part
    kRead,       // from the file to the device's memory: the cpu
    kReadCopy,   // from the file to pinned memory, then a copy
  };
  struct FilePart {
    const File* file = nullptr;
    std::uint64_t offset = 0, bytes = 0, at = 0;  // in the file; in the unit
    std::uint64_t room = 0;                       // bytes from there on that are nobody else's
  };
  struct Unit {
    Way way = Way::kCopy;
    Name name, read_name;
    Range pinned;                 // kCopy
    std::vector<Range> memory;    // kCopyParts: by part
    std::vector<FilePart> parts;  // kRead, kReadCopy
  };
  struct Slot {
    Event read, copied;
  };
  static constexpr std::size_t kSlots = 3;  // of reads ahead of copies
  struct Place {
    std::uint32_t unit = 0;
    std::uint32_t at = 0;  // in the ring or the slots, in units of kAlignment
  };

  // A part of a load; loads are numbered from the first step on.
  struct LoadPart {
    std::uint64_t load = 0;
    std::size_t part = 0;
  };

  void read_in(StreamRef stream, Range to, std::uint32_t unit, Name name);
  void read_next_load(Place place);
  std::optional<ReadRequest> next_request();
  void pass(LoadPart part);
  std::byte* place_of(Place place) const;
  void fill(std::uint32_t unit, std::byte* into);
  static Landing landing_of(const FilePart& part, std::byte* place);
  void keep_in_pinned_memory(Here here);

  const Device device_;
  const Graph& graph_;
  const WeightsPlan& plan_;
  const WeightSource source_;
  std::vector<Unit> units_;
  std::vector<Buffer> host_;  // pinned memory, or the program's wrapped
  std::unique_ptr<BlockReader> reader_;
  const Range ring_;
  std::unique_ptr<Stream> reads_;  // kReadCopy
  Buffer slots_;
  std::size_t slot_bytes_ = 0;
  std::array<Slot, kSlots> slot_events_;
  std::size_t next_slot_ = 0;

  // kRead: while a load is read, those behind it are begun if their place in the ring is free. That is told by a stream
  // that waits for no load.
  Buffer free_;  // a word: how many loads have their place
  std::unique_ptr<Stream> places_;
  std::uint32_t issued_ = 0;  // loads, as in that word
  std::uint64_t begun_ = 0;   // loads; this and what follows belongs to the load that runs
  LoadPart ahead_;            // the next that the reader has not been asked for
};

}  // namespace slip
