#include "transport/meeting.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/clock.hpp"
#include "slip/error.hpp"
#include "transport/frame.hpp"
#include "transport/root.hpp"

namespace slip {
namespace {

// The root tells at a rank's deadline who has not come; that takes a moment.
constexpr std::int64_t kTellingNs = 2'000'000'000;
constexpr std::int64_t kFirstPauseNs = 500'000;
constexpr std::int64_t kLongestPauseNs = 20'000'000;
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

class Attempt {
 public:
  Attempt(const UniqueId& id, const Newcomer& self, const InterfaceFilter& filter, const Patience& patience)
      : id_(id), self_(self), filter_(filter), patience_(patience) {}

  Meeting at(const SocketAddress& place) const {
    const Socket socket = Socket::connect(place, patience_);
    Meeting meeting;
    meeting.listener = Socket::listen(own_address_towards(socket.local(), filter_));
    FrameHeader header{.magic = id_.magic(), .kind = FrameKind::kHello, .rank = self_.rank, .nranks = self_.nranks};
    const HelloBody body = hello_of(meeting.listener.local(), patience_.deadline_ns - now_ns());
    header.bytes = sizeof(body);
    socket.send(bytes_of(header), patience_);
    socket.send(bytes_of(body), patience_);
    const Patience answer{patience_.deadline_ns + kTellingNs, patience_.abort};
    socket.recv(std::as_writable_bytes(std::span(&header, 1)), answer);
    if (header.magic != id_.magic() || header.bytes > (1 << 20))
      throw Error(Code::kIo, fmt::format("what answers at {} is no root of this job", place.text()), {});
    std::vector<std::byte> answered(header.bytes);
    socket.recv(answered, answer);
    read_answer(header, answered, meeting);
    return meeting;
  }

 private:
  void read_answer(const FrameHeader& header, const std::vector<std::byte>& answered, Meeting& meeting) const {
    if (header.kind == FrameKind::kRefused) {
      const std::string_view why(reinterpret_cast<const char*>(answered.data()), answered.size());
      throw Error(refusal_code(header.tag), fmt::format("{}: {}", self_.text(), why), {});
    }
    WelcomeBody welcome;
    if (header.kind != FrameKind::kWelcome || !read_body(answered, welcome))
      throw Error(Code::kIo, "the root gave an answer that is none", {});
    meeting.session = welcome.session;
    meeting.successor = SocketAddress(welcome.successor);
    meeting.rest_ns = welcome.rest_ns;
  }

  const UniqueId& id_;
  const Newcomer& self_;
  const InterfaceFilter& filter_;
  const Patience& patience_;
};

}  // namespace

std::string Newcomer::text() const { return fmt::format("rank {} of {}", rank, nranks); }

Meeting meet(const UniqueId& id, const Newcomer& self, const InterfaceFilter& filter, const Patience& patience) {
  const std::vector<SocketAddress> places = places_of(id);
  const bool mine = id.rank0_listens() && self.rank == 0;
  if (mine) start_root(Socket::listen(listening_place(places.front())), id.magic(), patience.deadline_ns);
  const Attempt attempt(id, self, filter, patience);
  std::string reason;
  for (std::int64_t pause = kFirstPauseNs;; pause = std::min(2 * pause, kLongestPauseNs)) {
    for (const SocketAddress& place : places) {
      try {
        return attempt.at(place);
      } catch (const Error& error) {
        // Before rank 0 is there, nobody listens, or a root that is just ending.
        if (error.code() != Code::kIo) throw;
        reason = error.what();
      }
    }
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
    if (waited == Waited::kTimeout)
      throw Error(Code::kTimeout,
                  fmt::format("{}: rank 0, which listens at {}, has not come before the deadline: {}", self.text(),
                              places.front().text(), reason),
                  {});
  }
}

}  // namespace slip
