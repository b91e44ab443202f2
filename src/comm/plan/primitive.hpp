// Primitives: the steps that collectives consist of. An algorithm writes a program of primitives for each rank, and
// ProgramRunner runs it. Because a program is data, ProgramPlayer can also play it on sim devices: there it is checked
// for races and deadlocks, and timed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace slip::comm {

enum class BufferSpace : std::uint8_t {
  kInput,       // the input of this rank
  kOutput,      // the output of this rank
  kStaging,     // the staging memory of `rank`, which all ranks of the host reach
  kPeerInput,   // the input of `rank`, accessed in place
  kPeerOutput,  // the output of `rank`, accessed in place
  kScratch,     // scratch memory of this rank
  kAddress,     // the offset is an address of this process
};

// The location of a byte in one of the buffers that a program works on.
struct BufferLocation {
  BufferSpace space = BufferSpace::kInput;
  std::uint16_t rank = 0;    // kStaging, kPeerInput, kPeerOutput
  std::uint64_t offset = 0;  // bytes
  friend BufferLocation operator+(BufferLocation location, std::uint64_t bytes) {
    return {location.space, location.rank, location.offset + bytes};
  }
};

inline BufferLocation input_at(std::uint64_t offset) { return {BufferSpace::kInput, 0, offset}; }
inline BufferLocation output_at(std::uint64_t offset) { return {BufferSpace::kOutput, 0, offset}; }
inline BufferLocation scratch_at(std::uint64_t offset) { return {BufferSpace::kScratch, 0, offset}; }

inline constexpr std::uint64_t kAllPeers = ~std::uint64_t{0};

struct Primitive {
  enum class Kind : std::uint8_t {
    kCopy,    // copies `bytes` from one location to another
    kReduce,  // reduces several sources, in their order, into each of several targets
    // Ranks of one host.
    kRoom,    // waits until all peers have joined the call `value` calls before this one: they have ended those before
    kPost,    // publishes that this rank has joined the call and that its staged data is complete
    kMeet,    // waits until `peer` has posted this call, and checks that the signatures are equal
    kSignal,  // publishes that this rank has reached phase `value` of the call
    kWait,    // waits until `peer` has reached phase `value`
    kEnter,   // kSignal; then this rank accesses peers' buffers until its next kSignal. Throws if a rank has failed
    // Messages between this rank and `peer`. They arrive in the order in which they were sent.
    kSend,      // begins to send `bytes` from a location
    kReceive,   // begins to receive `bytes` into a location
    kSent,      // waits until all sends to `peer` are done, except the last `value`
    kReceived,  // waits until all receives from `peer` are done, except the last `value`
  };
  Kind kind = Kind::kCopy;
  bool whole = false;         // kReduce: the result covers all ranks, so an average is divided here
  bool begins = false;        // kSend, kReceive: the first part of a user's message, which has `value` bytes in all
  std::uint16_t targets = 0;  // the number of targets: in Program::locations from `first` on, followed by the sources
  std::uint16_t sources = 0;
  std::uint32_t first = 0;
  std::uint64_t bytes = 0;
  std::uint64_t value = 0;
  std::uint64_t peer = kAllPeers;  // one rank, or all other ranks
};

// The primitives that one rank runs for a call or a piece of it, one after the other.
struct Program {
  std::vector<Primitive> steps;
  std::vector<BufferLocation> locations;

  void clear() {
    steps.clear();
    locations.clear();
  }
  void copy(BufferLocation to, BufferLocation from, std::uint64_t bytes) {
    if (bytes == 0) return;
    const std::span<BufferLocation> places =
        add({.kind = Primitive::Kind::kCopy, .targets = 1, .sources = 1, .bytes = bytes});
    places[0] = to;
    places[1] = from;
  }
  // Returns the locations of the targets, followed by those of the sources; the caller fills them in. `whole`: see
  // Primitive. REQUIRES: bytes > 0.
  std::span<BufferLocation> reduce(int targets, int sources, std::uint64_t bytes, bool whole = true) {
    return add({.kind = Primitive::Kind::kReduce,
                .whole = whole,
                .targets = static_cast<std::uint16_t>(targets),
                .sources = static_cast<std::uint16_t>(sources),
                .bytes = bytes});
  }
  void reduce(BufferLocation to, BufferLocation a, BufferLocation b, std::uint64_t bytes, bool whole) {
    const std::span<BufferLocation> places = reduce(1, 2, bytes, whole);
    places[0] = to;
    places[1] = a;
    places[2] = b;
  }
  void send(int rank, BufferLocation from, std::uint64_t bytes) { message(Primitive::Kind::kSend, rank, from, bytes); }
  void receive(int rank, BufferLocation to, std::uint64_t bytes) {
    message(Primitive::Kind::kReceive, rank, to, bytes);
  }
  void sent(int rank, std::uint64_t left = 0) {
    steps.push_back({.kind = Primitive::Kind::kSent, .value = left, .peer = static_cast<std::uint64_t>(rank)});
  }
  void received(int rank, std::uint64_t left = 0) {
    steps.push_back({.kind = Primitive::Kind::kReceived, .value = left, .peer = static_cast<std::uint64_t>(rank)});
  }
  void room(std::uint64_t calls_before) { steps.push_back({.kind = Primitive::Kind::kRoom, .value = calls_before}); }
  void post() { steps.push_back({.kind = Primitive::Kind::kPost}); }
  void meet(std::uint64_t peer = kAllPeers) { steps.push_back({.kind = Primitive::Kind::kMeet, .peer = peer}); }
  void signal(std::uint64_t phase) { steps.push_back({.kind = Primitive::Kind::kSignal, .value = phase}); }
  void enter(std::uint64_t phase) { steps.push_back({.kind = Primitive::Kind::kEnter, .value = phase}); }
  void wait(std::uint64_t phase, std::uint64_t peer = kAllPeers) {
    steps.push_back({.kind = Primitive::Kind::kWait, .value = phase, .peer = peer});
  }

 private:
  void message(Primitive::Kind kind, int rank, BufferLocation place, std::uint64_t bytes) {
    steps.push_back({.kind = kind,
                     .first = static_cast<std::uint32_t>(locations.size()),
                     .bytes = bytes,
                     .peer = static_cast<std::uint64_t>(rank)});
    locations.push_back(place);
  }
  // Adds the step, and empty entries for its locations.
  std::span<BufferLocation> add(Primitive step) {
    step.first = static_cast<std::uint32_t>(locations.size());
    locations.resize(locations.size() + step.targets + step.sources);
    steps.push_back(step);
    return std::span(locations).subspan(step.first);
  }
};

}  // namespace slip::comm
