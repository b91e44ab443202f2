// Stamp: the time at which a stream reached a timed event, for devices whose clock the library reads itself.
#pragma once

#include <atomic>

#include "runtime/backend.hpp"

namespace slip {

class Stamp : public EventState {
 public:
  void set(Picos at) { at_.store(at, std::memory_order_release); }
  Picos at() const { return at_.load(std::memory_order_acquire); }
  bool renewable() const override { return true; }
  Picos since(const EventState& start) const override { return at() - static_cast<const Stamp&>(start).at(); }

 private:
  std::atomic<Picos> at_{0};
};

}  // namespace slip
