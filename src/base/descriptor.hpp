// OwnedDescriptor: a file descriptor that is closed with the object.
#pragma once

#include <unistd.h>

#include <utility>

namespace slip::base {

class OwnedDescriptor {
 public:
  OwnedDescriptor() = default;
  explicit OwnedDescriptor(int number) : number_(number) {}
  ~OwnedDescriptor() { reset(); }
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    reset(std::exchange(other.number_, -1));
    return *this;
  }
  int number() const noexcept { return number_; }  // -1: none
  void reset(int number = -1) noexcept {
    if (number_ >= 0) ::close(number_);
    number_ = number;
  }

 private:
  int number_ = -1;
};

}  // namespace slip::base
