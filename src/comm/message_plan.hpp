// MessagePlan: a call by messages between two ranks each, as one rank does it: a collective by an algorithm, or the
// sends and receives that a user asked for, all at once.
#pragma once

#include <span>

#include "comm/algorithm.hpp"

namespace slip {

// A message of the user's, between this rank and another.
struct Parcel {
  bool out = true;
  int rank = 0;  // the other one
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  friend bool operator==(const Parcel&, const Parcel&) = default;
};

class MessagePlan {
 public:
  MessagePlan(const Recipe& recipe, const Task& task) : recipe_(&recipe), task_(task) {}
  explicit MessagePlan(std::span<const Parcel> parcels);

  std::uint64_t pieces() const { return recipe_ ? recipe_->pieces(task_) : parcel_pieces_; }
  void write(std::uint64_t piece, Program& program) const;
  std::span<const Parcel> parcels() const { return parcels_; }                     // none: it is a collective
  std::uint64_t scratch() const { return recipe_ ? recipe_->scratch(task_) : 0; }  // bytes

 private:
  void write_parcels(std::uint64_t piece, Program& program) const;

  const Recipe* recipe_ = nullptr;
  Task task_;
  std::span<const Parcel> parcels_;
  std::uint64_t parcel_pieces_ = 0;
};

}  // namespace slip
