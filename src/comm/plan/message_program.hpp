// MessageProgramBuilder: a call by messages between two ranks each, as one rank does it: a collective by an algorithm,
// or the sends and receives that a user asked for, all at once.
#pragma once

#include <span>
#include <vector>

#include "comm/plan/algorithm.hpp"
#include "slip/error.hpp"
#include "slip/range.hpp"

namespace slip {

// A message of the user's, between this rank and another.
struct UserMessage {
  bool out = true;
  int rank = 0;  // the other one
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  friend bool operator==(const UserMessage&, const UserMessage&) = default;
};

class MessageProgramBuilder {
 public:
  // By so many channels as there are graphs; the task's own channel does not count.
  MessageProgramBuilder(const Schedule& schedule, const Task& task, std::span<const CommGraph> graphs)
      : schedule_(&schedule), task_(task), graphs_(graphs) {}
  explicit MessageProgramBuilder(std::span<const UserMessage> messages);

  // Each channel is a program of its own; they go on side by side, and do not know of each other.
  int channels() const { return schedule_ ? static_cast<int>(graphs_.size()) : 1; }
  std::uint64_t pieces(int channel) const { return schedule_ ? schedule_->pieces(task_of(channel)) : message_pieces_; }
  void write(int channel, std::uint64_t piece, Program& program) const;
  std::span<const UserMessage> messages() const { return messages_; }  // none: it is a collective
  std::uint64_t scratch(int channel) const { return schedule_ ? schedule_->scratch(task_of(channel)) : 0; }  // bytes

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

// Messages of a group travel at the same time, so none may be received where another is sent from or received. Throws
// kInvalidValue. `sorted`: for the function's use; kept by the caller, so that nothing is allocated.
void require_apart(std::span<const Range> sent, std::span<const Range> received, std::vector<Range>& sorted, Here here);

}  // namespace slip
