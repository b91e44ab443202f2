#include "transport/bootstrap/root.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/terminal.hpp"
#include "base/thread.hpp"
#include "slip/error.hpp"
#include "transport/bootstrap/frame_socket.hpp"
#include "transport/bootstrap/secret.hpp"

namespace slip {
namespace {

// For a proof and a hello, once connected. Long, for on a bad network what is lost comes many seconds later; guests
// that say nothing are limited by their number.
constexpr std::int64_t kGreetingLimitNs = 60'000'000'000;
constexpr std::int64_t kAnswerLimitNs = 2'000'000'000;  // for an answer to be taken
constexpr std::int64_t kCrowdedPauseNs = 10'000'000;    // when the process has no descriptors left
constexpr std::int64_t kMaxPatienceNs = std::int64_t{30} * 86'400 * 1'000'000'000;
constexpr int kMaxRanks = 1 << 20;

class Root {
 public:
  Root(Socket listener, const Secret& secret, std::int64_t deadline_ns)
      : listener_(std::move(listener)), secret_(secret), deadline_ns_(deadline_ns) {}

  void run() {
    while (!over()) {
      wait();
      accept_all();
      for (Guest& guest : guests_) serve(guest);
      confirm_welcomes();
      expire();
      guests_.remove_if([this](const Guest& guest) { return finished(guest); });
    }
  }

 private:
  struct Guest {
    FrameSocket channel;
    std::int64_t deadline_ns;  // to say hello; then of its patience; then to take the answer
    std::int32_t rank = -1;
    HelloBody hello;
    bool seated = false, answered = false;
    bool is_silent() const { return !channel.is_proven(); }
    std::string text() const { return fmt::format("process {} of {}", hello.pid, hello.host); }
  };

  bool over() const {
    if (nranks_ > 0 && answers_ >= nranks_ && guests_.empty()) return true;
    if (deadline_ns_ == 0 || now_ns() < deadline_ns_) return false;
    return guests_.empty() || now_ns() >= deadline_ns_ + kAnswerLimitNs;
  }
  bool all_here() const { return nranks_ > 0 && here_ == nranks_; }

  void wait() {
    std::vector<pollfd> watched;
    std::int64_t until = deadline_ns_ != 0 && now_ns() >= deadline_ns_ ? deadline_ns_ + kAnswerLimitNs : deadline_ns_;
    const auto no_later_than = [&until](std::int64_t time) { until = until == 0 ? time : std::min(until, time); };
    const bool listening = listener_.valid() && !crowded_;
    if (crowded_) no_later_than(now_ns() + kCrowdedPauseNs);
    if (listening) watched.push_back({listener_.descriptor(), POLLIN, 0});
    for (const Guest& guest : guests_) {
      const short events = guest.channel.wants_to_write() ? POLLIN | POLLOUT : POLLIN;
      watched.push_back({guest.channel.socket().descriptor(), events, 0});
      no_later_than(guest.deadline_ns);
    }
    const std::int64_t rest = until == 0 ? -1 : std::max<std::int64_t>(0, (until - now_ns() + 999'999) / 1'000'000);
    static_cast<void>(::poll(watched.data(), watched.size(), static_cast<int>(std::min<std::int64_t>(rest, 1 << 30))));
  }

  void accept_all() {
    crowded_ = false;
    while (listener_.valid()) {
      int error = 0;
      std::optional<Socket> socket = listener_.try_accept(error);
      crowded_ = error != 0;
      if (crowded_) drop_a_silent_one();  // no descriptors are left: its own helps
      if (!socket) return;
      if (!socket->same_user()) continue;
      guests_.push_back({FrameSocket(std::move(*socket), secret_, FrameSocket::Side::kAccepts),
                         now_ns() + kGreetingLimitNs, -1, HelloBody{}, false, false});
      const auto silent = std::ranges::count_if(guests_, &Guest::is_silent);
      if (has_too_many_guests(static_cast<std::size_t>(silent))) drop_a_silent_one();
    }
  }

  // Many who connect and say nothing must not keep the others out: the one that has been silent longest goes, and one
  // that said something only if there is no other.
  void drop_a_silent_one() {
    auto dropped = std::ranges::find_if(
        guests_, [](const Guest& guest) { return guest.is_silent() && !guest.channel.has_spoken(); });
    if (dropped == guests_.end()) dropped = std::ranges::find_if(guests_, &Guest::is_silent);
    if (dropped != guests_.end()) guests_.erase(dropped);
  }

  void serve(Guest& guest) {
    guest.channel.pump();
    guest.channel.flush();
    if (guest.answered) return;
    if (!guest.seated) {
      if (const std::optional<Frame> frame = guest.channel.next()) greet(guest, *frame);
    } else if (guest.channel.ended()) {
      guest.seated = false;
      --here_;
      lose(guest);
    }
  }

  // A rank keeps its connection until it is answered: if that closes, its process has ended.
  void lose(const Guest& guest) {
    if (failure_.empty())
      fail(fmt::format("rank {} of {} is gone: its connection to the root closed during init; process {} of {} ended "
                       "or was killed",
                       guest.rank, nranks_, guest.hello.pid, guest.hello.host),
           Code::kRankLost);
  }

  void greet(Guest& guest, const Frame& frame) {
    const FrameHeader& header = frame.header;
    if (header.kind != FrameKind::kHello || !read_body(frame.body, guest.hello)) {
      guest.deadline_ns = 0;  // no rank would say that
      return;
    }
    guest.hello.host[sizeof(guest.hello.host) - 1] = 0;
    guest.rank = header.rank;
    if (failure_.empty()) check(guest, header);
    if (!failure_.empty()) return answer_refusal(guest);
    if (guest.channel.ended()) return lose(guest);
    guest.seated = true;
    guest.deadline_ns = now_ns() + std::clamp<std::int64_t>(guest.hello.patience_ns, 0, kMaxPatienceNs);
    ++here_;
    if (all_here()) welcome_all();
  }

  // What this rank says beside what the others said.
  void check(const Guest& guest, const FrameHeader& header) {
    if (header.nranks < 1 || header.nranks > kMaxRanks) {
      fail(
          fmt::format("{} says that there are {} ranks: 1 to {} are possible", guest.text(), header.nranks, kMaxRanks));
    } else if (nranks_ > 0 && header.nranks != nranks_) {
      fail(fmt::format("rank {} ({}) says that there are {} ranks, rank {} that there are {}: all must say the same",
                       header.rank, guest.text(), header.nranks, first_rank_, nranks_));
    } else if (header.rank < 0 || header.rank >= header.nranks) {
      nranks_ = header.nranks;
      fail(fmt::format("{} says that it is rank {} of {}: ranks are 0 to {}", guest.text(), header.rank, header.nranks,
                       header.nranks - 1));
    } else {
      for (const Guest& other : guests_) {
        if (other.seated && other.rank == header.rank)
          fail(fmt::format("rank {} of {} is claimed twice: by {} and by {}", header.rank, header.nranks, other.text(),
                           guest.text()));
      }
    }
    if (nranks_ == 0) first_rank_ = header.rank;
    if (nranks_ == 0) nranks_ = std::max(1, header.nranks);
  }

  void fail(const std::string& why, Code code = Code::kInvalidValue) {
    failure_ = why;
    failure_code_ = code;
    for (Guest& guest : guests_) {
      if (guest.seated) answer_refusal(guest);
    }
  }

  void answered(Guest& guest, bool last = true) {
    guest.answered = true;
    guest.seated = false;
    guest.deadline_ns = now_ns() + kAnswerLimitNs;
    if (last && !guest.channel.unsent()) guest.channel.socket().finish_sending();
    ++answers_;
  }

  void answer_refusal(Guest& guest) {
    guest.channel.queue(
        {.kind = FrameKind::kRefused, .tag = static_cast<std::uint64_t>(failure_code_), .nranks = nranks_},
        bytes_of(std::string_view(failure_)));
    answered(guest);
  }

  void welcome_all() {
    listener_.close();  // before anybody can begin the next communicator at this place
    std::vector<Guest*> by_rank(static_cast<std::size_t>(nranks_), nullptr);
    for (Guest& guest : guests_) {
      if (guest.seated) by_rank[static_cast<std::size_t>(guest.rank)] = &guest;
    }
    WelcomeBody body;
    body.session = random_secret();
    body.rest_ns = rest_ns();
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      body.successor = by_rank[(rank + 1) % by_rank.size()]->hello.address;
      by_rank[rank]->channel.queue({.kind = FrameKind::kWelcome, .nranks = nranks_}, bytes_of(body));
      answered(*by_rank[rank], false);
    }
    welcomed_ = true;
  }

  // If the root's process ends while it sends the welcomes, some ranks have one and others give up. A rank that has one
  // and does not reach its successor tells by this frame whether the successor or the root is lost.
  void confirm_welcomes() {
    const auto unsent = [](const Guest& guest) { return guest.answered && guest.channel.unsent(); };
    if (!welcomed_ || confirmed_ || std::ranges::any_of(guests_, unsent)) return;
    confirmed_ = true;
    for (Guest& guest : guests_) {
      if (!guest.answered) continue;
      guest.channel.queue({.kind = FrameKind::kAllAnswered, .nranks = nranks_});
      if (!guest.channel.unsent()) guest.channel.socket().finish_sending();
    }
  }

  std::int64_t rest_ns() const {
    std::int64_t first = now_ns() + kMaxPatienceNs;
    for (const Guest& guest : guests_) {
      if (guest.seated) first = std::min(first, guest.deadline_ns);
    }
    return std::max<std::int64_t>(first - now_ns(), 1);
  }

  void expire() {
    const std::int64_t now = now_ns();
    if (!failure_.empty() || all_here() || answers_ > 0) return;
    std::string who;
    for (const Guest& guest : guests_) {
      if (guest.seated && now >= guest.deadline_ns) who = fmt::format("rank {}", guest.rank);
    }
    const bool lifetime_over = deadline_ns_ != 0 && now >= deadline_ns_;
    if (who.empty() && !lifetime_over) return;
    fail(fmt::format("{} of {} {} not come before the deadline of {}", rank_list(absent()), nranks_,
                     nranks_ - here_ == 1 ? "has" : "have", who.empty() ? "the root" : who),
         Code::kTimeout);
  }

  std::vector<int> absent() const {
    std::vector<bool> present(static_cast<std::size_t>(nranks_), false);
    for (const Guest& guest : guests_) {
      if (guest.seated) present[static_cast<std::size_t>(guest.rank)] = true;
    }
    std::vector<int> result;
    for (int rank = 0; rank < nranks_; ++rank) {
      if (!present[static_cast<std::size_t>(rank)]) result.push_back(rank);
    }
    return result;
  }

  bool finished(const Guest& guest) const {
    if (guest.seated) return false;
    if (guest.is_silent() && nranks_ > 0 && answers_ >= nranks_) return true;  // nobody is waited for any more
    return guest.channel.ended() || guest.channel.stranger() || now_ns() >= guest.deadline_ns;
  }

  Socket listener_;
  const Secret secret_;
  const std::int64_t deadline_ns_;
  std::list<Guest> guests_;
  int nranks_ = 0, first_rank_ = 0;  // 0 until somebody says it
  int here_ = 0, answers_ = 0;
  std::string failure_;
  Code failure_code_ = Code::kOk;
  bool crowded_ = false, welcomed_ = false, confirmed_ = false;
};

}  // namespace

void start_root(Socket listener, const Secret& secret, std::int64_t deadline_ns) {
  auto root = std::make_shared<Root>(std::move(listener), secret, deadline_ns);
  Thread thread;
  thread.start("slip-root", [root] {
    try {
      root->run();
    } catch (const std::exception& error) {
      log_line(fmt::format("the root of a bootstrap ended: {}", error.what()));
    }
  });
  thread.detach();
}

std::string rank_list(std::span<const int> ranks) {
  constexpr std::size_t kShown = 16;
  std::string result = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t shown = std::min(ranks.size(), kShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == ranks.size();
    result += fmt::format("{}{}", i == 0 ? "" : last ? " and " : ", ", ranks[i]);
  }
  if (shown < ranks.size()) result += fmt::format(" and {} more", ranks.size() - shown);
  return result;
}

}  // namespace slip
