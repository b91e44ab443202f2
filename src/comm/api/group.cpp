#include "slip/group.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error_text.hpp"
#include "base/terminal.hpp"
#include "comm/api/group.hpp"
#include "runtime/capture.hpp"
#include "runtime/core.hpp"
#include "runtime/exchange.hpp"
#include "slip/stream.hpp"

namespace slip {
namespace {

// The messages of a thread's group. Memory and the last communicator are kept from group to group, so that a group
// allocates nothing and counts no references.
struct Kept {
  struct Office {
    SendRecvIssuer* office = nullptr;
    std::weak_ptr<SendRecvIssuer> alive;  // empty once the communicator is destroyed: then `office` dangles
    bool is(const SendRecvIssuer& other) const { return office == &other && !alive.expired(); }
  };
  int depth = 0;
  std::vector<Office> offices;  // each communicator once
  std::vector<PendingSendRecv> letters;
  std::vector<std::size_t> office_of;  // of each letter: index in `offices`

  void add(SendRecvIssuer& office, const PendingSendRecv& letter) {
    if (letters.empty() && !(offices.size() == 1 && offices.front().is(office))) offices.clear();
    std::size_t index = 0;
    while (index < offices.size() && !offices[index].is(office)) ++index;
    if (index == offices.size()) offices.push_back({&office, office.weak()});
    letters.push_back(letter);
    office_of.push_back(index);
  }
  void drop_from(std::size_t count) {
    letters.erase(letters.begin() + static_cast<std::ptrdiff_t>(count), letters.end());
    office_of.resize(count);
  }
};

Kept& kept() {
  thread_local Kept of_thread;
  return of_thread;
}

// The group is over, with or without success.
struct Emptied {
  Kept& kept;
  ~Emptied() { kept.drop_from(0); }
};

std::vector<StreamRef> streams_of(std::span<const PendingSendRecv> letters) {
  std::vector<StreamRef> streams;
  for (const PendingSendRecv& letter : letters) {
    if (std::find(streams.begin(), streams.end(), letter.stream) == streams.end()) streams.push_back(letter.stream);
  }
  return streams;
}

// The first stream carries them all; the others wait for it, and it for them.
void issue_together(SendRecvIssuer& office, std::span<const PendingSendRecv> letters) {
  const std::vector<StreamRef> streams = streams_of(letters);
  const StreamRef stream = streams.front();
  const auto others = std::span(streams).subspan(1);
  for (const StreamRef& other : others) stream.wait(other.record());
  office.issue_messages(letters, stream);
  if (others.empty()) return;
  const Event done = stream.record();
  for (const StreamRef& other : others) other.wait(done);
}

// Another thread that destroys the communicator now would be a race with any other call, too.
SendRecvIssuer& office_at(const Kept& all, std::size_t index) {
  const Kept::Office& one = all.offices[index];
  if (!one.alive.expired()) [[likely]]
    return *one.office;
  const auto first = std::find(all.office_of.begin(), all.office_of.end(), index) - all.office_of.begin();
  throw Error(Code::kInvalidHandle, "the communicator of this message was destroyed before the group ended",
              all.letters[static_cast<std::size_t>(first)].here);
}

// Nothing is issued if any of them is refused.
void issue_all(const Kept& all) {
  const StreamRef stream = all.letters.front().stream;
  const auto is_other = [&](const PendingSendRecv& letter) { return !(letter.stream == stream); };
  if (all.offices.size() == 1 && std::none_of(all.letters.begin(), all.letters.end(), is_other))
    return office_at(all, 0).issue_messages(all.letters, stream);
  std::vector<std::pair<SendRecvIssuer*, std::vector<PendingSendRecv>>> batches;
  for (std::size_t office = 0; office < all.offices.size(); ++office) {
    std::vector<PendingSendRecv> letters;
    for (std::size_t i = 0; i < all.letters.size(); ++i) {
      if (all.office_of[i] == office) letters.push_back(all.letters[i]);
    }
    if (!letters.empty()) batches.emplace_back(&office_at(all, office), std::move(letters));
  }
  for (const auto& [office, letters] : batches) office->check_messages(letters, letters.front().stream);
  for (const auto& [office, letters] : batches) issue_together(*office, letters);
}

// An op that fails: how an error that no call could throw reaches a stream.
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

// Ops that the stream had before still run; then the stream fails with this error, and so do streams that wait for it.
// A capture becomes invalid. Does nothing if the stream has failed or was destroyed: its calls throw that already.
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

// The error of a group that ended in its destructor: whoever uses its communicators or streams next gets it.
void stick(const Kept& all, const Error& error) {
  const std::string text = bare_text(error);
  for (const Kept::Office& one : all.offices) {
    if (const std::shared_ptr<SendRecvIssuer> office = one.alive.lock()) office->fail(error.code(), "a group: " + text);
  }
  for (const StreamRef& stream : streams_of(all.letters)) enqueue_failure(stream, error);
}

}  // namespace

void submit_or_keep(SendRecvIssuer& office, const PendingSendRecv& letter) {
  Kept& now = kept();
  if (now.depth == 0) return office.issue_messages({&letter, 1}, letter.stream);
  now.add(office, letter);
}

Group::Group() : exceptions_(std::uncaught_exceptions()) {
  Kept& now = kept();
  before_ = now.letters.size();
  ++now.depth;
}

Group::~Group() {
  if (!open_) return;
  Kept& now = kept();
  --now.depth;
  if (std::uncaught_exceptions() > exceptions_) {  // cancelled
    now.drop_from(std::min(before_, now.letters.size()));
    return;
  }
  if (now.depth > 0 || now.letters.empty()) return;
  const Emptied emptied{now};
  try {
    try {
      issue_all(now);
    } catch (const Error& error) {
      log_line(error.what());
      stick(now, error);
    }
  } catch (const std::exception& error) {  // no memory even for the failure
    log_line(error.what());
  }
}

void Group::end() {
  Kept& now = kept();
  if (!std::exchange(open_, false) || --now.depth > 0 || now.letters.empty()) return;
  const Emptied emptied{now};
  issue_all(now);
}

}  // namespace slip
