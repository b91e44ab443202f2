// MessageProgramBuilder: builds the program of one rank for a call by messages. The call is a collective that follows a
// Schedule, or a group of sends and receives, which all travel at the same time. ProgramRunner runs the program.
#pragma once

#include <span>
#include <vector>

#include "comm/plan/algorithm.hpp"
#include "slip/error.hpp"
#include "slip/range.hpp"

namespace slip::comm {

// A send or receive of the user, or a piece of one.
struct UserMessage {
  bool out = true;  // this rank sends it
  int rank = 0;     // the peer
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  // Of a piece: where it begins in the message, and the size of the message. Both ranks must divide the message into
  // the same pieces. `whole` is 0 if this is the message itself.
  std::uint64_t offset = 0, whole = 0;
  friend bool operator==(const UserMessage&, const UserMessage&) = default;
};

class MessageProgramBuilder {
 public:
  // A collective, with one channel for each graph; `task.channel` is ignored.
  MessageProgramBuilder(const Schedule& schedule, const Task& task, std::span<const CommGraph> graphs)
      : schedule_(&schedule), task_(task), graphs_(graphs) {}
  explicit MessageProgramBuilder(std::span<const UserMessage> messages);

  // Each channel has its own program. All channels run at the same time and do not synchronise with each other.
  int channels() const { return schedule_ ? static_cast<int>(graphs_.size()) : 1; }
  std::uint64_t pieces(int channel) const {
    return schedule_ ? schedule_->program->pieces(task_of(channel)) : message_pieces_;
  }
  void write(int channel, std::uint64_t piece, Program& program) const;
  std::span<const UserMessage> messages() const { return messages_; }  // empty for a collective
  std::uint64_t scratch(int channel) const {                           // bytes
    return schedule_ ? schedule_->program->scratch(task_of(channel)) : 0;
  }

 private:
  Task task_of(int channel) const;
  void write_messages(std::uint64_t piece, Program& program) const;

  const Schedule* schedule_ = nullptr;
  Task task_;
  std::span<const CommGraph> graphs_;
  std::span<const UserMessage> messages_;
  std::uint64_t message_pieces_ = 0;
};

bool overlap(const Range& a, const Range& b);

// Throws kInvalidValue if a received range overlaps a sent range or another received range: the messages of a group
// travel at the same time. `sorted`: work space that the caller keeps, so that the call allocates nothing.
void require_apart(std::span<const Range> sent, std::span<const Range> received, std::vector<Range>& sorted, Here here);

}  // namespace slip::comm
