// Primitives: what collectives are made of. An algorithm writes a program of them for each rank; one loop runs it, and
// because it is data it can be checked and timed without running it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace slip {

enum class BufferSpace : std::uint8_t {
  kInput,       // what the call gives, of this rank alone
  kOutput,      // what the call makes, of this rank alone
  kStaging,     // of `rank`; all ranks of a host reach it
  kPeerInput,   // what another rank gives, where it lies
  kPeerOutput,  // and what it gets
  kScratch,     // of this rank alone
  kAddress,     // of this rank alone: the offset is the address
};

struct BufferLocation {
  BufferSpace space = BufferSpace::kInput;
  std::uint16_t rank = 0;    // kStaging, kPeerInput, kPeerOutput
  std::uint64_t offset = 0;  // bytes
};

inline constexpr std::uint64_t kAllPeers = ~std::uint64_t{0};

struct Primitive {
  enum class Kind : std::uint8_t {
    kCopy,    // `bytes` from one place to another
    kReduce,  // of several sources, in their order, into each of several locations
    kRoom,    // until all others have come to the call `value` calls before this one, and so have ended what was before
    kPost,    // this rank has come to the call, and what it put into its box is there
    kMeet,    // until `peer` have come, and ask for the same
    kSignal,  // this rank has reached phase `value` of the call
    kWait,    // until `peer` have
    kEnter,   // kSignal, from where on this rank touches what is others' until its next kSignal: not after a failure
    // Messages between two ranks, `peer` is the other one. They come in the order in which they were sent.
    kSend,      // begins: `bytes` of a place go there
    kReceive,   // begins: `bytes` come from there into a place
    kSent,      // until all sends there are done, but for the last `value`
    kReceived,  // until all receives from there are done, but for the last `value`
  };
  Kind kind = Kind::kCopy;
  bool whole = false;         // kReduce: the sources are all ranks, so an average is divided here
  bool begins = false;        // kSend, kReceive: a message of the user's begins here, of `value` bytes in all
  std::uint16_t targets = 0;  // in Program::locations, from `first` on; then the sources
  std::uint16_t sources = 0;
  std::uint32_t first = 0;
  std::uint64_t bytes = 0;
  std::uint64_t value = 0;
  std::uint64_t peer = kAllPeers;  // of the other ranks, or one alone
};

// A piece of a call as one rank runs it, one primitive after the other.
struct Program {
  std::vector<Primitive> steps;
  std::vector<BufferLocation> locations;

  void clear() {
    steps.clear();
    locations.clear();
  }
  void copy(BufferLocation to, BufferLocation from, std::uint64_t bytes) {
    if (bytes == 0) return;
    add({.kind = Primitive::Kind::kCopy, .targets = 1, .sources = 1, .bytes = bytes}, {to})[0] = from;
  }
  // The caller fills in the sources. `whole`: they are of all ranks. Not with 0 bytes.
  std::span<BufferLocation> reduce(std::initializer_list<BufferLocation> to, int sources, std::uint64_t bytes,
                                   bool whole = true) {
    return add({.kind = Primitive::Kind::kReduce,
                .whole = whole,
                .targets = static_cast<std::uint16_t>(to.size()),
                .sources = static_cast<std::uint16_t>(sources),
                .bytes = bytes},
               to);
  }
  // The same into several locations: the caller fills in these first, then the sources.
  std::span<BufferLocation> reduce_to(int targets, int nranks, std::uint64_t bytes) {
    Primitive step{.kind = Primitive::Kind::kReduce,
                   .whole = true,
                   .targets = static_cast<std::uint16_t>(targets),
                   .sources = static_cast<std::uint16_t>(nranks),
                   .first = static_cast<std::uint32_t>(locations.size()),
                   .bytes = bytes};
    locations.resize(locations.size() + step.targets + step.sources);
    steps.push_back(step);
    return {locations.data() + step.first, static_cast<std::size_t>(step.targets) + step.sources};
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
  // The step with its targets; returns the locations of its sources.
  std::span<BufferLocation> add(Primitive step, std::initializer_list<BufferLocation> to) {
    step.first = static_cast<std::uint32_t>(locations.size());
    locations.insert(locations.end(), to);
    locations.resize(locations.size() + step.sources);
    steps.push_back(step);
    return {locations.data() + step.first + step.targets, step.sources};
  }
};

}  // namespace slip
