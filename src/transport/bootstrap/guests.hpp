// Guests: connections that were accepted and have not proven yet that they are of this job. All listeners of a process
// share one limit, well below that of its descriptors, so that strangers that connect and say nothing never use up what
// the job needs. A listener above it closes its own guests, those first that have been silent longest.
#pragma once

#include <cstddef>
#include <utility>

namespace slip {

// Counts one guest of the process while it lives.
class GuestToken {
 public:
  GuestToken() = default;
  static GuestToken take();
  ~GuestToken() { give_back(); }
  GuestToken(GuestToken&& other) noexcept : held_(std::exchange(other.held_, false)) {}
  GuestToken& operator=(GuestToken&& other) noexcept {
    give_back();
    held_ = std::exchange(other.held_, false);
    return *this;
  }
  void give_back() noexcept;

 private:
  bool held_ = false;
};

// Whether a listener with so many guests of its own has to close one. Each may keep a few, whatever the others have.
bool has_too_many_guests(std::size_t own);

}  // namespace slip
