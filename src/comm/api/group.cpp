#include "slip/group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/terminal.hpp"
#include "comm/api/group.hpp"
#include "runtime/capture.hpp"
#include "runtime/core.hpp"
#include "runtime/exchange.hpp"
#include "slip/stream.hpp"

namespace slip::comm {
namespace {

// The sends and receives of a thread's open groups. Each thread has one batch. It keeps its memory and its last
// communicator from group to group, so a group allocates nothing and changes no reference count.
struct MessageBatch {
  struct Target {
    SendRecvIssuer* issuer = nullptr;
    std::weak_ptr<SendRecvIssuer> alive;  // expired once the communicator is destroyed: then `issuer` dangles
    bool is(const SendRecvIssuer& other) const { return issuer == &other && !alive.expired(); }
  };
  int depth = 0;                // nested open groups of this thread
  std::vector<Target> targets;  // each communicator once
  std::vector<PendingSendRecv> messages;
  std::vector<std::size_t> target_of;  // of each message: index in `targets`

  void add(SendRecvIssuer& issuer, const PendingSendRecv& message) {
    if (messages.empty() && !(targets.size() == 1 && targets.front().is(issuer))) targets.clear();
    std::size_t index = 0;
    while (index < targets.size() && !targets[index].is(issuer)) ++index;
    if (index == targets.size()) targets.push_back({&issuer, issuer.weak()});
    messages.push_back(message);
    target_of.push_back(index);
  }
  void drop_from(std::size_t count) {
    messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(count), messages.end());
    target_of.resize(count);
  }
};

MessageBatch& thread_batch() {
  thread_local MessageBatch batch;
  return batch;
}

// Empties the batch when the outermost group ends, with or without success.
struct EmptyAtEnd {
  MessageBatch& batch;
  ~EmptyAtEnd() { batch.drop_from(0); }
};

std::vector<StreamRef> streams_of(std::span<const PendingSendRecv> messages) {
  std::vector<StreamRef> streams;
  for (const PendingSendRecv& message : messages) {
    if (std::find(streams.begin(), streams.end(), message.stream) == streams.end()) streams.push_back(message.stream);
  }
  return streams;
}

// The messages become an op of the first stream. It waits for the other streams before, and they wait for it after.
void issue_together(SendRecvIssuer& issuer, std::span<const PendingSendRecv> messages) {
  const std::vector<StreamRef> streams = streams_of(messages);
  const StreamRef stream = streams.front();
  const auto others = std::span(streams).subspan(1);
  for (const StreamRef& other : others) stream.wait(other.record());
  issuer.issue_messages(messages, stream);
  if (others.empty()) return;
  const Event done = stream.record();
  for (const StreamRef& other : others) other.wait(done);
}

// Throws if the communicator was destroyed. Another thread must not destroy it at the same time, as with every call of
// a communicator.
SendRecvIssuer& issuer_at(const MessageBatch& batch, std::size_t index) {
  const MessageBatch::Target& one = batch.targets[index];
  if (!one.alive.expired()) [[likely]]
    return *one.issuer;
  const auto first = std::find(batch.target_of.begin(), batch.target_of.end(), index) - batch.target_of.begin();
  throw Error(ErrorCode::kInvalidHandle, "the communicator of this message was destroyed before the group ended",
              batch.messages[static_cast<std::size_t>(first)].here);
}

// Issues all messages of the batch. If check_messages() refuses one of them, none is issued.
void issue_all(const MessageBatch& batch) {
  const StreamRef stream = batch.messages.front().stream;
  const auto is_other = [&](const PendingSendRecv& message) { return !(message.stream == stream); };
  if (batch.targets.size() == 1 && std::none_of(batch.messages.begin(), batch.messages.end(), is_other))
    return issuer_at(batch, 0).issue_messages(batch.messages, stream);
  std::vector<std::pair<SendRecvIssuer*, std::vector<PendingSendRecv>>> batches;
  for (std::size_t issuer = 0; issuer < batch.targets.size(); ++issuer) {
    std::vector<PendingSendRecv> messages;
    for (std::size_t i = 0; i < batch.messages.size(); ++i) {
      if (batch.target_of[i] == issuer) messages.push_back(batch.messages[i]);
    }
    if (!messages.empty()) batches.emplace_back(&issuer_at(batch, issuer), std::move(messages));
  }
  for (const auto& [issuer, messages] : batches) issuer->check_messages(messages, messages.front().stream);
  for (const auto& [issuer, messages] : batches) issue_together(*issuer, messages);
}

// An op that always fails. It puts the error of a group into a stream if the group was destroyed before it ended,
// because a destructor cannot throw.
class FailedExchange final : public runtime::Exchange {
 public:
  FailedExchange(std::string text, Here here) : text_(std::move(text)), here_(here) {}
  bool advance(By) noexcept override { return true; }
  bool can_advance() noexcept override { return true; }
  std::int64_t began_ns() const noexcept override { return 0; }
  void finish(const runtime::Failure* cause) override {
    const std::shared_ptr<FailedExchange> last = std::move(self);
    if (!cause) throw Error(kUnendedCode, text_, here_);
  }

  std::shared_ptr<FailedExchange> self;  // keeps the object until finish()

 private:
  // Not an Error, because copies of an Error share their text: another thread throws this error.
  const std::string text_;
  const Here here_;
};

// Makes a stream fail with this error after the ops that were enqueued earlier; streams that wait for it fail, too. If
// the stream captures a plan, the capture becomes invalid. Does nothing if the stream has failed or was destroyed: its
// calls already throw.
void enqueue_failure(const StreamRef& stream, const std::string& text, Here here) {
  static const Name kName("group");
  try {
    runtime::StreamState& state = *stream.state(here);
    // acquire: this thread sees the constructed capture.
    if (runtime::Capture* const capture = state.capture.load(std::memory_order_acquire))
      return capture->invalidate("a group of messages was destroyed without end()");
    if (state.native())  // the driver runs the ops, so the failure is not an op
      return fail_stream(state, {kUnendedCode, text, 0, here, 0});
    const auto exchange = std::make_shared<FailedExchange>(text, here);
    exchange->self = exchange;
    try {
      runtime::issue(state, {.kind = OpKind::kExchange,
                             .engine = Engine::kCommunication,
                             .name = kName,
                             .here = here,
                             .exchange = exchange.get()});
    } catch (const Error&) {  // the op was not enqueued, or has ended and issue() waited for it
      exchange->self = nullptr;
    }
  } catch (const Error&) {  // the stream is closed
  }
}

// The error of a group that was destroyed before it ended. `messages`: the number of its sends and receives. Without
// memory for the text, it is empty.
std::string unended_text(Here here, std::size_t messages) noexcept {
  try {
    const std::string place = here.line > 0 ? fmt::format("the group begun at {}:{}", here.file, here.line) : "a group";
    const std::string what = messages == 1 ? "message was" : fmt::format("{} messages were", messages);
    return fmt::format("{} was destroyed without end(), so its {} not sent", place, what);
  } catch (const std::exception&) {
    return {};
  }
}

// Each communicator and each stream of the messages keeps the error, and the next calls throw it.
void make_sticky(const MessageBatch& batch, std::size_t first, const std::string& text, Here here) {
  const auto targets = std::span(batch.target_of).subspan(first);
  for (std::size_t index = 0; index < batch.targets.size(); ++index) {
    if (std::find(targets.begin(), targets.end(), index) == targets.end()) continue;
    if (const std::shared_ptr<SendRecvIssuer> issuer = batch.targets[index].alive.lock()) issuer->fail_group(text);
  }
  for (const StreamRef& stream : streams_of(std::span(batch.messages).subspan(first)))
    enqueue_failure(stream, text, here);
}

}  // namespace

void submit_or_keep(SendRecvIssuer& issuer, const PendingSendRecv& message) {
  MessageBatch& batch = thread_batch();
  if (batch.depth == 0) return issuer.issue_messages({&message, 1}, message.stream);
  batch.add(issuer, message);
}

}  // namespace slip::comm

namespace slip {
using namespace comm;

Group::Group(Here here) : here_(here) {
  MessageBatch& batch = thread_batch();
  before_ = batch.messages.size();
  depth_ = ++batch.depth;
}

Group::~Group() {
  if (!open_) return;
  MessageBatch& batch = thread_batch();
  --batch.depth;
  const std::size_t first = std::min(before_, batch.messages.size());
  if (first == batch.messages.size()) return;
  const std::string text = unended_text(here_, batch.messages.size() - first);
  try {
    base::log_line(text);
    make_sticky(batch, first, text, here_);
  } catch (const std::exception& error) {  // out of memory while the failure was reported
    base::log_line(error.what());
  }
  batch.drop_from(first);
}

void Group::cancel() noexcept {
  if (!std::exchange(open_, false)) return;
  MessageBatch& batch = thread_batch();
  --batch.depth;
  batch.drop_from(std::min(before_, batch.messages.size()));
}

void Group::end() {
  if (!open_) return;
  MessageBatch& batch = thread_batch();
  if (batch.depth > depth_)
    throw Error(ErrorCode::kInvalidValue, "end() of a group, while a group that began within it has not ended", here_);
  open_ = false;
  if (--batch.depth > 0 || batch.messages.empty()) return;
  const EmptyAtEnd empty_at_end{batch};
  issue_all(batch);
}

}  // namespace slip
