#include "transport/bootstrap/meeting.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/error_text.hpp"
#include "slip/error.hpp"
#include "transport/bootstrap/frame_socket.hpp"
#include "transport/bootstrap/root.hpp"
#include "transport/bootstrap/unique_id_parts.hpp"

namespace slip {
namespace {

// The root tells at a rank's deadline who has not come; that takes a moment.
constexpr std::int64_t kTellingNs = 2'000'000'000;
constexpr std::int64_t kFirstPauseNs = 500'000;
constexpr std::int64_t kMaxPauseNs = 20'000'000;
// An attempt to reach the root, the first one and the longest.
constexpr std::int64_t kFirstAttemptNs = 1'000'000'000, kMaxAttemptNs = 8'000'000'000;
constexpr std::string_view kUnix = "unix:";

std::vector<SocketAddress> places_of(const UniqueId& id) {
  const std::string host = id.host();
  if (host.starts_with(kUnix)) return {SocketAddress::unix_name(std::string_view(host).substr(kUnix.size()))};
  return resolve(host, id.port());
}

// Where rank 0 can listen so that it is found at `place`: there, or, if the address is another's that leads here,
// everywhere.
SocketAddress listening_place(const SocketAddress& place) {
  if (!place.is_tcp() || place.is_loopback()) return place;
  for (const Interface& one : list_interfaces()) {
    if (one.address.host() == place.host()) return place;
  }
  return SocketAddress::any(place.family(), place.port());
}

HelloBody hello_of(const SocketAddress& listening, std::int64_t patience_ns) {
  HelloBody body;
  body.address = listening.wire();
  body.pid = ::getpid();
  body.patience_ns = patience_ns;
  static_cast<void>(::gethostname(body.host, sizeof(body.host) - 1));
  return body;
}

Code refusal_code(std::uint64_t tag) {
  for (const Code code : {Code::kTimeout, Code::kRankLost}) {
    if (tag == static_cast<std::uint64_t>(code)) return code;
  }
  return Code::kInvalidValue;
}

Error late(const UniqueId& id, const Newcomer& self, const SocketAddress& place, const std::string& reason) {
  const char* const words = id.rank0_listens() ? "rank 0, which listens at {}, has not come before the deadline"
                                               : "the root at {} did not answer before the deadline";
  return {Code::kTimeout,
          fmt::format("{}: {}: {}", self.text(), fmt::format(fmt::runtime(words), place.text()), reason),
          {}};
}

class Attempt {
 public:
  Attempt(const UniqueId& id, const Newcomer& self, const InterfaceFilter& filter, const Patience& patience)
      : id_(id), self_(self), filter_(filter), patience_(patience) {}

  // Until the root has proven itself. `limit_ns`: of the attempt.
  FrameSocket reach(const SocketAddress& place, std::int64_t limit_ns) const {
    const std::int64_t end = now_ns() + limit_ns;
    const bool last = patience_.deadline_ns != 0 && patience_.deadline_ns <= end;
    return FrameSocket::reach(place, UniqueIdParts::of(id_).secret,
                              {last ? patience_.deadline_ns : end, patience_.abort});
  }

  Meeting meet(FrameSocket channel, const SocketAddress& place) const {
    Meeting meeting;
    meeting.root_loss = root_loss(place);
    meeting.listener = Socket::listen(own_address_towards(channel.socket().local(), filter_));
    const HelloBody body = hello_of(meeting.listener.local(), patience_.deadline_ns - now_ns());
    channel.trust();
    channel.queue({.kind = FrameKind::kHello, .rank = self_.rank, .nranks = self_.nranks}, bytes_of(body));
    read_answer(hear(channel, place), meeting);
    meeting.root.emplace(std::move(channel));
    return meeting;
  }

 private:
  // The root answers before it closes a connection: if it does not, its process has ended.
  Frame hear(FrameSocket& channel, const SocketAddress& place) const {
    try {
      return channel.wait_for_frame({patience_.deadline_ns + kTellingNs, patience_.abort});
    } catch (const Error& error) {
      if (error.code() == Code::kTimeout) throw late(id_, self_, place, bare_text(error));
      if (error.code() != Code::kIo) throw;
      throw Error(Code::kRankLost, root_loss(place), {});
    }
  }

  std::string root_loss(const SocketAddress& place) const {
    return fmt::format(
        "{}: {} is gone: the root at {}, which it held, closed the connection during init; its process "
        "ended or was killed",
        self_.text(), id_.rank0_listens() ? "rank 0" : "the process that made the id", place.text());
  }

  void read_answer(const Frame& answer, Meeting& meeting) const {
    if (answer.header.kind == FrameKind::kRefused)
      throw Error(refusal_code(answer.header.tag), fmt::format("{}: {}", self_.text(), answer.text()), {});
    WelcomeBody welcome;
    if (answer.header.kind != FrameKind::kWelcome || !read_body(answer.body, welcome))
      throw Error(Code::kIo, "the root gave an answer that is none", {});
    meeting.session = derive(UniqueIdParts::of(id_).secret, "slip session", welcome.session);
    meeting.successor = SocketAddress(welcome.successor);
    meeting.rest_ns = welcome.rest_ns;
  }

  const UniqueId& id_;
  const Newcomer& self_;
  const InterfaceFilter& filter_;
  const Patience& patience_;
};

}  // namespace

void Meeting::require_all_answered(const Patience& patience) {
  const std::int64_t end = now_ns() + kTellingNs;
  const std::int64_t deadline = patience.deadline_ns == 0 ? end : std::min(end, patience.deadline_ns);
  try {
    while (root->wait_for_frame({deadline, patience.abort}).header.kind != FrameKind::kAllAnswered) {}
  } catch (const Error& error) {
    if (error.code() == Code::kAborted) throw;
    if (error.code() == Code::kIo) throw Error(Code::kRankLost, root_loss, {});
    // kTimeout: the root lives, so the rank that does not answer is the lost one.
  }
}

std::string Newcomer::text() const { return fmt::format("rank {} of {}", rank, nranks); }

Meeting meet(const UniqueId& id, const Newcomer& self, const InterfaceFilter& filter, const Patience& patience) {
  const std::vector<SocketAddress> places = places_of(id);
  const bool mine = id.rank0_listens() && self.rank == 0;
  if (mine)
    start_root(Socket::listen(listening_place(places.front())), UniqueIdParts::of(id).secret, patience.deadline_ns);
  const Attempt attempt(id, self, filter, patience);
  std::string reason;
  std::int64_t limit = kFirstAttemptNs;
  for (std::int64_t pause = kFirstPauseNs;; pause = std::min(2 * pause, kMaxPauseNs)) {
    bool no_answer = false;
    for (const SocketAddress& place : places) {
      std::optional<FrameSocket> channel;
      try {
        channel.emplace(attempt.reach(place, limit));
      } catch (const Error& error) {
        // Before rank 0 is there, nobody listens, or a root that is just ending. What a bad network loses is tried
        // again.
        if (error.code() != Code::kIo && error.code() != Code::kTimeout) throw;
        reason = bare_text(error);
        no_answer = error.code() == Code::kTimeout;
        if (no_answer && now_ns() >= patience.deadline_ns) throw late(id, self, place, reason);
        continue;
      }
      return attempt.meet(std::move(*channel), place);
    }
    limit = std::min(2 * limit, kMaxAttemptNs);
    if (no_answer) continue;
    if (!id.rank0_listens() || mine)
      throw Error(
          Code::kIo,
          fmt::format("{}: the root at {} does not answer: {}; the process that made the id must live until all "
                      "ranks have come, and an id serves once",
                      self.text(), places.front().text(), reason),
          {});
    const Waited waited = wait_a_moment(pause, patience);
    if (waited == Waited::kAborted)
      throw Error(Code::kAborted, self.text() + ": aborted while it looked for the root", {});
    if (waited == Waited::kTimeout) throw late(id, self, places.front(), reason);
  }
}

}  // namespace slip
