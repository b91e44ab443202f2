// MessagePlan: a call by messages between two ranks each, as one rank does it: a collective by an algorithm, or the
// sends and receives that a user asked for, all at once.
#pragma once

#include <span>

#include "comm/plan/algorithm.hpp"

namespace slip {

// A message of the user's, between this rank and another.
struct UserMessage {
  bool out = true;
  int rank = 0;  // the other one
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  friend bool operator==(const UserMessage&, const UserMessage&) = default;
};

class MessagePlan {
 public:
  // By so many channels as there are formations; the task's own channel does not count.
  MessagePlan(const Recipe& recipe, const Task& task, std::span<const Formation> formations)
      : recipe_(&recipe), task_(task), formations_(formations) {}
  explicit MessagePlan(std::span<const UserMessage> messages);

  // Each channel is a program of its own; they go on side by side, and do not know of each other.
  int channels() const { return recipe_ ? static_cast<int>(formations_.size()) : 1; }
  std::uint64_t pieces(int channel) const { return recipe_ ? recipe_->pieces(task_of(channel)) : message_pieces_; }
  void write(int channel, std::uint64_t piece, Program& program) const;
  std::span<const UserMessage> messages() const { return messages_; }  // none: it is a collective
  std::uint64_t scratch(int channel) const { return recipe_ ? recipe_->scratch(task_of(channel)) : 0; }  // bytes

 private:
  Task task_of(int channel) const;
  void write_messages(std::uint64_t piece, Program& program) const;

  const Recipe* recipe_ = nullptr;
  Task task_;
  std::span<const Formation> formations_;
  std::span<const UserMessage> messages_;
  std::uint64_t message_pieces_ = 0;
};

}  // namespace slip
