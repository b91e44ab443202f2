// StagedCall: a call whose buffers are in device memory and whose ranks are on several hosts. Its data passes through
// slots of pinned host memory in parts. For each part the stream copies the input into a slot and posts the part. A
// thread of the communicator runs the part as a call on host memory. Then the stream copies the output to the device.
//
// A StagedCall has no addresses, because the thread works only on the slots. write_steps() makes the stream's steps
// from the StagedCall and the addresses. All ranks divide a call into the same parts. Part i uses slot i modulo
// kStagingSlots, so some parts are copied while another one is sent over the network.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "comm/api/call.hpp"
#include "comm/plan/message_program.hpp"

namespace slip::comm {

inline constexpr std::uint64_t kStagingSlots = 4;
inline constexpr std::uint64_t kStagingBytes = 4 << 20;  // of the input of a slot, and of its output

// The flags of a slot, in pinned memory. The reader of a flag resets it to 0, and no value depends on the number of the
// launch. So a call that was captured in a CUDA graph can be replayed.
struct alignas(64) StagingFlags {
  std::uint32_t posted;  // the stream sets it to the id of the call, the thread resets it
  std::uint32_t unused0[15];
  std::uint32_t done;  // the thread sets it to 1, the stream resets it
  std::uint32_t unused1[15];
};
static_assert(sizeof(StagingFlags) == 2 * 64);

struct StagingSlot {
  std::byte *input = nullptr, *output = nullptr;
};

// The pinned memory of one rank: the flags of all slots, then their inputs and outputs.
struct StagingMemory {
  static constexpr std::uint64_t kFlagBytes = 4096;
  static constexpr std::uint64_t kBytes = kFlagBytes + 2 * kStagingSlots * kStagingBytes;
  static_assert(kStagingSlots * sizeof(StagingFlags) <= kFlagBytes);

  std::byte* data = nullptr;
  bool retired = false;  // enqueued work may still write to the memory, so no later call may use it

  StagingFlags& flags(std::uint64_t slot) const { return reinterpret_cast<StagingFlags*>(data)[slot]; }
  StagingSlot slot(std::uint64_t slot) const {
    std::byte* const first = data + kFlagBytes + 2 * slot * kStagingBytes;
    return {first, first + kStagingBytes};
  }
};

// A collective. A part is a range of elements of each block, so a part never reads what another one writes, even if the
// call is in place.
class StagedCollective {
 public:
  StagedCollective(const Call& call, int rank, int nranks);

  const Call& call() const { return call_; }
  std::uint64_t parts() const { return parts_; }
  Call part(std::uint64_t index) const;  // the part as a call of its own
  // True: input and output of a part are one block each, so the part runs in place, in the input of its slot.
  bool in_place() const { return blocks_.in == 1 && blocks_.out == 1; }
  const Blocks& blocks() const { return blocks_; }
  std::uint64_t offset(std::uint64_t index) const;  // of the part in each block, in bytes
  bool operator==(const StagedCollective& other) const;

 private:
  Call call_;
  Blocks blocks_;
  std::uint64_t part_elements_ = 0, parts_ = 1;
};

// A group of sends and receives. A link is one direction to or from one rank. Messages of one link follow each other.
// Every part has the next bytes of every link, as far as they fit, so that no link waits for another one.
class StagedMessages {
 public:
  StagedMessages(std::span<const UserMessage> messages, int nranks);

  struct Piece {
    std::uint32_t message = 0;            // index of the message that it belongs to
    std::uint64_t offset = 0, bytes = 0;  // in the message
    std::uint64_t slot_offset = 0;        // in the input of the slot if it is sent, otherwise in the output
  };
  std::uint64_t parts() const { return first_.size() - 1; }
  std::span<const Piece> pieces(std::uint64_t part) const;
  const UserMessage& message(const Piece& piece) const { return messages_[piece.message]; }  // without its address
  std::uint64_t bytes() const;                                                               // of all messages
  bool operator==(const StagedMessages& other) const { return messages_ == other.messages_; }

 private:
  std::vector<UserMessage> messages_;
  std::vector<Piece> pieces_;       // by part
  std::vector<std::size_t> first_;  // index of each part's first piece; last: the number of pieces
};

using StagedCall = std::variant<StagedCollective, StagedMessages>;
std::uint64_t parts_of(const StagedCall& call);

// A copy between device memory and a slot: rows that are `pitch` bytes apart in device memory and adjacent in the slot.
struct StagedCopy {
  std::byte* device = nullptr;
  std::uint64_t slot_offset = 0;  // in the input or output of the slot
  std::uint64_t bytes = 0;        // of a row
  std::uint64_t rows = 1, pitch = 0;
};

struct StagedStep {
  enum class Kind : std::uint8_t {
    kToHost,    // copies to the input of the slot
    kPost,      // sets `posted`
    kAwait,     // waits for `done` and resets it
    kToDevice,  // copies from the output of the slot; in place: from its input
  };
  Kind kind = Kind::kPost;
  bool from_input = false;  // kToDevice: the part ran in place, so its result is in the input of the slot
  std::uint32_t slot = 0;
  StagedCopy copy;
};

// The steps of the stream, in order.
void write_steps(const StagedCollective& call, const std::byte* input, std::byte* output,
                 std::vector<StagedStep>& steps);
void write_steps(const StagedMessages& call, std::span<const UserMessage> messages, std::vector<StagedStep>& steps);

}  // namespace slip::comm
