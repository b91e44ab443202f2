#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/terminal.hpp"
#include "base/thread.hpp"
#include "slip/error.hpp"
#include "transport/bootstrap/rendezvous.hpp"

namespace slip::transport {
namespace {

constexpr std::int64_t kAnswerLimitNs = 2'000'000'000;  // time limit for a rank to read its answer
constexpr std::int64_t kMaxTimeoutNs = std::int64_t{30} * 86'400 * 1'000'000'000;
constexpr int kMaxRanks = 1 << 20;

class Root {
 public:
  Root(Socket listener, const Secret& secret, std::int64_t deadline_ns)
      : listener_(std::move(listener)), secret_(secret), deadline_ns_(deadline_ns) {}

  void run() {
    while (!over()) {
      wait();
      accept_all();
      for (Client& client : clients_) serve(client);
      confirm_welcomes();
      expire();
      clients_.remove_if([this](const Client& client) { return finished(client); });
    }
  }

 private:
  struct Client {
    FrameSocket channel;
    std::int64_t deadline_ns;  // first for the hello, then for the rank's init, then for reading the answer
    std::int32_t rank = -1;
    HelloBody hello = {};
    bool registered = false, answered = false;
    bool is_unproven() const { return !channel.is_proven(); }
    bool has_spoken() const { return channel.has_spoken(); }
    std::string text() const { return fmt::format("process {} of {}", hello.pid, hello.host); }
  };

  bool over() const {
    if (nranks_ > 0 && answers_ >= nranks_ && clients_.empty()) return true;
    // The first rank sent an impossible number of ranks, so the number is unknown. The root stays for a while, to
    // refuse ranks that connect a little later.
    if (nranks_ == 0 && !failure_.empty() && clients_.empty() && base::now_ns() >= failed_at_ns_ + kAnswerLimitNs)
      return true;
    if (deadline_ns_ == 0 || base::now_ns() < deadline_ns_) return false;
    return clients_.empty() || base::now_ns() >= deadline_ns_ + kAnswerLimitNs;
  }
  bool all_here() const { return nranks_ > 0 && here_ == nranks_; }

  void wait() {
    std::vector<pollfd> watched;
    std::int64_t until =
        deadline_ns_ != 0 && base::now_ns() >= deadline_ns_ ? deadline_ns_ + kAnswerLimitNs : deadline_ns_;
    const auto no_later_than = [&until](std::int64_t time) { until = until == 0 ? time : std::min(until, time); };
    const bool listening = listener_.valid() && !out_of_descriptors_;
    if (nranks_ == 0 && !failure_.empty()) no_later_than(std::max(failed_at_ns_ + kAnswerLimitNs, base::now_ns() + 1));
    if (out_of_descriptors_) no_later_than(base::now_ns() + kNoDescriptorsPauseNs);
    if (listening) watched.push_back({listener_.descriptor(), POLLIN, 0});
    for (const Client& client : clients_) {
      const short events = client.channel.wants_to_write() ? POLLIN | POLLOUT : POLLIN;
      watched.push_back({client.channel.socket().descriptor(), events, 0});
      no_later_than(client.deadline_ns);
    }
    poll_until(watched, until);
  }

  void accept_all() {
    out_of_descriptors_ = transport::accept_all(listener_, clients_, [this](Socket socket) {
      return Client{FrameSocket(std::move(socket), secret_, FrameSocket::Side::kAccepts),
                    base::now_ns() + kGreetingLimitNs};
    });
  }

  void serve(Client& client) {
    client.channel.pump();
    client.channel.flush();
    if (client.answered) return;
    if (!client.registered) {
      if (const std::optional<Frame> frame = client.channel.next()) read_hello(client, *frame);
    } else if (client.channel.ended()) {
      client.registered = false;
      --here_;
      lose(client);
    }
  }

  // A rank keeps its connection until it is answered. If the connection closes earlier, the rank's process has ended.
  void lose(const Client& client) {
    if (failure_.empty())
      fail(fmt::format("rank {} of {} is gone: its connection to the root closed during init; process {} of {} ended "
                       "or was killed",
                       client.rank, nranks_, client.hello.pid, client.hello.host),
           ErrorCode::kRankLost);
  }

  void read_hello(Client& client, const Frame& frame) {
    const FrameHeader& header = frame.header;
    if (header.kind != FrameKind::kHello || !read_body(frame.body, client.hello)) {
      client.deadline_ns = 0;  // not a rank of this job: drop it
      return;
    }
    client.hello.host[sizeof(client.hello.host) - 1] = 0;
    client.rank = header.rank;
    if (failure_.empty()) check(client, header);
    else learn_count(header);
    if (!failure_.empty()) return answer_refusal(client);
    if (client.channel.ended()) return lose(client);
    client.registered = true;
    client.deadline_ns = base::now_ns() + std::clamp<std::int64_t>(client.hello.timeout_ns, 0, kMaxTimeoutNs);
    ++here_;
    if (all_here()) welcome_all();
  }

  // Checks the rank and the number of ranks that this rank sent, and compares them with those of the other ranks.
  void check(const Client& client, const FrameHeader& header) {
    if (header.nranks < 1 || header.nranks > kMaxRanks) {
      fail(fmt::format("{} says that there are {} ranks: 1 to {} are possible", client.text(), header.nranks,
                       kMaxRanks));
    } else if (nranks_ > 0 && header.nranks != nranks_) {
      fail(fmt::format("rank {} ({}) says that there are {} ranks, rank {} that there are {}: all must say the same",
                       header.rank, client.text(), header.nranks, first_rank_, nranks_));
    } else if (header.rank < 0 || header.rank >= header.nranks) {
      nranks_ = header.nranks;
      fail(fmt::format("{} says that it is rank {} of {}: ranks are 0 to {}", client.text(), header.rank, header.nranks,
                       header.nranks - 1));
    } else {
      for (const Client& other : clients_) {
        if (other.registered && other.rank == header.rank)
          fail(fmt::format("rank {} of {} is claimed twice: by {} and by {}", header.rank, header.nranks, other.text(),
                           client.text()));
      }
    }
    if (nranks_ == 0) first_rank_ = header.rank;
    learn_count(header);
  }

  // Ignores an impossible count: it does not tell how many ranks must be answered.
  void learn_count(const FrameHeader& header) {
    if (nranks_ == 0 && header.nranks >= 1 && header.nranks <= kMaxRanks) nranks_ = header.nranks;
  }

  void fail(const std::string& why, ErrorCode code = ErrorCode::kInvalidValue) {
    failure_ = why;
    failure_code_ = code;
    failed_at_ns_ = base::now_ns();
    for (Client& client : clients_) {
      if (client.registered) answer_refusal(client);
    }
  }

  void answered(Client& client, bool last = true) {
    client.answered = true;
    client.registered = false;
    client.deadline_ns = base::now_ns() + kAnswerLimitNs;
    if (last && !client.channel.unsent()) client.channel.socket().finish_sending();
    ++answers_;
  }

  void answer_refusal(Client& client) {
    client.channel.queue(
        {.kind = FrameKind::kRefused, .tag = static_cast<std::uint64_t>(failure_code_), .nranks = nranks_},
        bytes_of(std::string_view(failure_)));
    answered(client);
  }

  void welcome_all() {
    listener_.close();  // before any rank can begin the next communicator at this address
    std::vector<Client*> by_rank(static_cast<std::size_t>(nranks_), nullptr);
    for (Client& client : clients_) {
      if (client.registered) by_rank[static_cast<std::size_t>(client.rank)] = &client;
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

  // Sends kAllAnswered after all welcomes. If the root's process ends while it sends the welcomes, some ranks have one
  // and others give up. A rank that has a welcome and cannot reach its successor knows by this frame that the successor
  // is lost, not the root.
  void confirm_welcomes() {
    const auto unsent = [](const Client& client) { return client.answered && client.channel.unsent(); };
    if (!welcomed_ || confirmed_ || std::ranges::any_of(clients_, unsent)) return;
    confirmed_ = true;
    for (Client& client : clients_) {
      if (!client.answered) continue;
      client.channel.queue({.kind = FrameKind::kAllAnswered, .nranks = nranks_});
      if (!client.channel.unsent()) client.channel.socket().finish_sending();
    }
  }

  std::int64_t rest_ns() const {
    std::int64_t first = base::now_ns() + kMaxTimeoutNs;
    for (const Client& client : clients_) {
      if (client.registered) first = std::min(first, client.deadline_ns);
    }
    return std::max<std::int64_t>(first - base::now_ns(), 1);
  }

  void expire() {
    const std::int64_t now = base::now_ns();
    if (!failure_.empty() || all_here() || answers_ > 0) return;
    std::string late_rank;
    for (const Client& client : clients_) {
      if (client.registered && now >= client.deadline_ns) late_rank = fmt::format("rank {}", client.rank);
    }
    const bool lifetime_over = deadline_ns_ != 0 && now >= deadline_ns_;
    if (late_rank.empty() && !lifetime_over) return;
    fail(fmt::format("{} of {} {} not joined before the deadline of {}", rank_list(absent()), nranks_,
                     nranks_ - here_ == 1 ? "has" : "have", late_rank.empty() ? "the root" : late_rank),
         ErrorCode::kTimeout);
  }

  std::vector<int> absent() const {
    std::vector<bool> present(static_cast<std::size_t>(nranks_), false);
    for (const Client& client : clients_) {
      if (client.registered) present[static_cast<std::size_t>(client.rank)] = true;
    }
    std::vector<int> result;
    for (int rank = 0; rank < nranks_; ++rank) {
      if (!present[static_cast<std::size_t>(rank)]) result.push_back(rank);
    }
    return result;
  }

  bool finished(const Client& client) const {
    if (client.registered) return false;
    if (client.is_unproven() && nranks_ > 0 && answers_ >= nranks_) return true;  // all ranks are answered
    return client.channel.ended() || client.channel.is_foreign() || base::now_ns() >= client.deadline_ns;
  }

  Socket listener_;
  const Secret secret_;
  const std::int64_t deadline_ns_;
  std::list<Client> clients_;
  int nranks_ = 0, first_rank_ = 0;  // 0 until a rank has sent them
  int here_ = 0, answers_ = 0;
  std::string failure_;
  ErrorCode failure_code_ = ErrorCode::kOk;
  std::int64_t failed_at_ns_ = 0;
  bool out_of_descriptors_ = false, welcomed_ = false, confirmed_ = false;
};

}  // namespace

void start_root(Socket listener, const Secret& secret, std::int64_t deadline_ns) {
  auto root = std::make_shared<Root>(std::move(listener), secret, deadline_ns);
  base::Thread thread;
  thread.start("slip-root", [root] {
    try {
      root->run();
    } catch (const std::exception& error) {
      base::log_line(fmt::format("the root of a bootstrap failed: {}", error.what()));
    }
  });
  thread.detach();
}

}  // namespace slip::transport
