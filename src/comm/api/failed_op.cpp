#include "comm/api/failed_op.hpp"

#include <memory>
#include <string>

#include "base/error_text.hpp"
#include "runtime/capture.hpp"
#include "runtime/core.hpp"
#include "runtime/exchange.hpp"
#include "slip/stream.hpp"

namespace slip {
namespace {

class FailedExchange final : public Exchange {
 public:
  explicit FailedExchange(const Error& error) : code_(error.code()), text_(bare_text(error)), here_(error.here()) {}
  bool advance(By) noexcept override { return true; }
  bool can_advance() noexcept override { return true; }
  std::int64_t began_ns() const noexcept override { return 0; }
  void finish(const Failure* cause) override {
    const std::shared_ptr<FailedExchange> last = std::move(self);
    if (!cause) throw Error(code_, text_, here_);
  }

  std::shared_ptr<FailedExchange> self;  // keeps it until it is finished

 private:
  // Not an Error: copies of one share their text, and it is thrown by another thread.
  const Code code_;
  const std::string text_;
  const Here here_;
};

}  // namespace

void enqueue_failure(const StreamRef& stream, const Error& error) {
  static const Name kName("group");
  try {
    StreamState& state = *stream.state(error.here());
    // acquire: the capture is built.
    if (Capture* const capture = state.capture.load(std::memory_order_acquire))
      return capture->invalidate("a group of messages was refused");
    const auto exchange = std::make_shared<FailedExchange>(error);
    exchange->self = exchange;
    try {
      issue(state, {.kind = OpKind::kExchange,
                    .engine = Engine::kCommunication,
                    .name = kName,
                    .here = error.here(),
                    .exchange = exchange.get()});
    } catch (const Error&) {  // not enqueued; or it is over, and issue() waited for it
      exchange->self = nullptr;
    }
  } catch (const Error&) {  // the stream is closed
  }
}

}  // namespace slip
