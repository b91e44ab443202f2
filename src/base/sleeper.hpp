// Sleeper: who sleeps until somebody tells it that there is something to look at.
#pragma once

namespace slip {

class Sleeper {
 public:
  virtual void wake_up() noexcept = 0;  // from any thread; at once, and without waiting for anybody

 protected:
  ~Sleeper() = default;
};

}  // namespace slip
