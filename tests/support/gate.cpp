#include "support/gate.hpp"

namespace slip::test {
namespace {
// HostCall::holds() gives a call that wrongly does not wait this long to return. A longer time would find more faults,
// and each test that passes takes it.
constexpr std::chrono::milliseconds kHoldTime{2};
}  // namespace

HostCall::HostCall(std::function<void()> function)
    : thread_([this, function = std::move(function)] {
        {
          const std::lock_guard lock(mutex_);
          begun_ = true;
        }
        changed_.notify_all();
        std::exception_ptr error;
        try {
          function();
        } catch (...) {
          error = std::current_exception();
        }
        const std::lock_guard lock(mutex_);
        returned_ = true;
        error_ = error;
        changed_.notify_all();
      }) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return begun_; });
}

HostCall::~HostCall() { thread_.join(); }

testing::AssertionResult HostCall::holds(const Device& device) {
  // Not on CUDA: while a copy of pageable memory blocks the host, the driver may hold its lock, so progressed() would
  // block, too.
  const bool asks = !device.info().name.starts_with("cuda");
  if (const testing::AssertionResult result = asks ? progressed(device) : testing::AssertionSuccess(); !result)
    return result;
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, kHoldTime, [this] { return returned_; }))
    return testing::AssertionFailure() << "the call returned while the gate was closed";
  return testing::AssertionSuccess();
}

testing::AssertionResult HostCall::ends() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kLimit, [this] { return returned_; }))
    return testing::AssertionFailure() << "the call did not return within " << kLimit.count() << " s";
  if (error_) std::rethrow_exception(error_);
  return testing::AssertionSuccess();
}

}  // namespace slip::test
