// Both ends of a TCP line. See net.hpp for the rules.
//
// Nothing is allocated for a message, unless it comes before a receive with its tag while others are posted: it is then
// kept, up to kTcpMaxKept bytes of them. With nothing posted nothing is read, and the sender is held up by TCP.
#pragma once

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>

#include "transport/bootstrap/secret.hpp"
#include "transport/net/net.hpp"
#include "transport/socket/address.hpp"

namespace slip {

// What the TCP network writes: handles, greetings, headers of messages, and how a message is dealt out to the sockets
// of a line. The first socket carries a header for each message and its first stripe, the others stripes only: what
// belongs where follows from the order of the headers.
static_assert(std::endian::native == std::endian::little, "headers are little-endian, and so are our hosts");

inline constexpr std::uint32_t kTcpVersion = 3;

struct TcpHandle {
  char mark[4] = {'t', 'c', 'p', ' '};
  std::uint32_t version = kTcpVersion;
  Secret salt{};  // random: greetings for this listener count at no other
  SocketAddress::Wire address;
  std::int32_t rank = 0;
};
static_assert(sizeof(TcpHandle) <= kNetHandleBytes);

// First on each socket.
struct TcpGreeting {
  char mark[8] = {'s', 'l', 'i', 'p', ' ', 't', 'c', 'p'};
  std::uint64_t line = 0;  // random, the same on all sockets of one
  std::uint64_t stripe_bytes = 0;
  std::uint32_t version = kTcpVersion;
  std::int32_t rank = 0;
  std::int32_t index = 0, sockets = 0;
  std::int32_t channel = 0, reserved = 0;
  Secret code{};  // of all before, and the listener's salt; who does not know the key of the job is a stranger

  Secret expected_code(const Secret& key, const Secret& salt) const {
    const Secret own = derive(key, "slip line", salt);
    return derive(own, "greeting", std::as_bytes(std::span(this, 1)).first(offsetof(TcpGreeting, code)));
  }
};

struct TcpHeader {
  static constexpr std::uint32_t kMark = 0x6d736731;
  std::uint64_t bytes = 0;
  std::int32_t tag = 0;
  std::uint32_t mark = kMark;
};
static_assert(sizeof(TcpHeader) == 16);

// The only thing that a receiver ever says.
struct TcpTooLarge {
  static constexpr std::uint32_t kMark = 0x62696731;
  std::uint32_t mark = kMark;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0, room = 0;
};

struct Stripes {
  std::size_t ways = 1, bytes = std::numeric_limits<std::size_t>::max();

  // Of a message of `total` bytes, those that go by this way.
  std::size_t on(std::size_t way, std::size_t total) const {
    if (ways == 1) return total;
    const std::size_t round = ways * bytes, rest = total % round, before = way * bytes;
    return total / round * bytes + (rest > before ? std::min(rest - before, bytes) : 0);
  }
  struct Piece {
    std::size_t offset, bytes;  // in the message
  };
  // What comes by this way after `done` bytes of the message did.
  Piece piece(std::size_t way, std::size_t total, std::size_t done) const {
    if (ways == 1) return {done, total - done};
    const std::size_t within = done % bytes, offset = (done / bytes * ways + way) * bytes + within;
    return {offset, std::min(bytes - within, total - offset)};
  }
};

// ZeroCopy: which messages the kernel still reads from after a send with MSG_ZEROCOPY. It counts those sends of a
// socket from 0 and says on the socket's error queue which ones it is through with. Not thread-safe.
class ZeroCopy {
 public:
  // False: the kernel does not know it.
  bool enable(int descriptor) {
    const int on = 1;
    enabled_ = ::setsockopt(descriptor, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) == 0;
    return enabled_;
  }
  bool possible() const { return enabled_ && outstanding_ < kMax; }
  bool outstanding() const { return outstanding_ > 0; }

  void sent(std::size_t message) {
    messages_[next_++ % kMax] = message;
    ++outstanding_;
  }

  // Calls released(message) for each send that the kernel is through with; false: there was none.
  template <class Released>
  bool settle(int descriptor, const Released& released) {
    bool any = false;
    while (outstanding_ > 0) {
      alignas(cmsghdr) char control[128];
      msghdr header{};
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
      if (::recvmsg(descriptor, &header, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) break;
      for (cmsghdr* one = CMSG_FIRSTHDR(&header); one; one = CMSG_NXTHDR(&header, one)) {
        const auto* notice = reinterpret_cast<const sock_extended_err*>(CMSG_DATA(one));
        if (!is_notice(*one) || notice->ee_origin != SO_EE_ORIGIN_ZEROCOPY || notice->ee_errno != 0) continue;
        for (std::uint32_t id = notice->ee_info; id != notice->ee_data + 1; ++id) {
          released(messages_[id % kMax]);
          --outstanding_;
          any = true;
        }
      }
    }
    return any;
  }

 private:
  static constexpr std::size_t kMax = 1024;  // a power of two, for ids to wrap around
  static bool is_notice(const cmsghdr& header) {
    return (header.cmsg_level == SOL_IP && header.cmsg_type == IP_RECVERR) ||
           (header.cmsg_level == SOL_IPV6 && header.cmsg_type == IPV6_RECVERR);
  }

  bool enabled_ = false;
  std::uint32_t next_ = 0;  // as the kernel counts
  std::size_t outstanding_ = 0;
  std::array<std::size_t, kMax> messages_{};
};

inline constexpr std::size_t kTcpMaxKept = std::size_t{256} << 20;

class TcpSender final : public NetSender {
 public:
  TcpSender(NetPeer peer, std::vector<Socket> sockets, std::size_t stripe_bytes, std::size_t zero_copy_from);
  ~TcpSender() override;
  std::unique_ptr<NetMemory> register_memory(std::span<std::byte> bytes) override;
  using NetSender::isend;
  NetRequest* isend(const NetPart& part, bool more) override;
  bool progress() override;
  void watch(std::vector<pollfd>& all) const override;

 private:
  static constexpr std::size_t kNone = kNetMaxRequests;
  // A message under way; its place in the list is that of its request.
  struct Message {
    TcpHeader header;
    std::size_t next = kNone;
    std::size_t ways_left = 0;       // that have not passed it
    std::uint32_t notices_left = 0;  // of the kernel, that it no longer reads the bytes
  };
  struct Way {
    Socket socket;
    std::size_t at = kNone;  // the message, and how much of it has gone by this way, with its header
    std::size_t gone = 0;
    bool held = false;  // it could go on, but more was to follow
    ZeroCopy zero_copy;
  };

  std::size_t head_bytes(const Way& way) const { return &way == ways_.data() ? sizeof(TcpHeader) : 0; }
  std::size_t bytes_by(const Way& way, std::size_t message) const;
  bool push(Way& way);
  std::size_t gather(const Way& way, std::span<iovec> pieces, bool& zero_copy) const;
  void advance(Way& way, std::size_t bytes);
  void pass(Way& way);
  void look_back();
  bool settle_notices(Way& way);
  void finish_if_done(std::size_t message);
  [[noreturn]] void lost(int error);

  Stripes stripes_;
  std::size_t zero_copy_from_;
  std::vector<Way> ways_;
  std::vector<Message> messages_{kNetMaxRequests};
  std::size_t last_ = kNone;
  std::size_t under_way_ = 0;
  std::array<std::byte, sizeof(TcpTooLarge)> answer_{};
  std::size_t answered_ = 0;
};

class TcpReceiver final : public NetReceiver {
 public:
  TcpReceiver(NetPeer peer, std::vector<Socket> sockets, std::size_t stripe_bytes);
  std::unique_ptr<NetMemory> register_memory(std::span<std::byte> bytes) override;
  NetRequest* irecv(std::span<const NetPart> parts) override;
  NetRequest* flush(std::span<const NetPart> parts) override;
  bool progress() override;
  void watch(std::vector<pollfd>& all) const override;

 private:
  static constexpr std::size_t kInboxBytes = std::size_t{16} << 10;
  static constexpr std::size_t kMaxArrivals = 64;
  struct Kept {
    TcpHeader header;
    std::vector<std::byte> bytes;
    NetRequest* request = nullptr;  // of who asked for it while it was coming
    std::size_t part = 0;
    bool whole = false;
  };
  // A message whose header has come, and where it goes.
  struct Arrival {
    std::byte* to = nullptr;
    std::size_t bytes = 0, ways_left = 0;
    NetRequest* request = nullptr;
    std::size_t part = 0;
    Kept* kept = nullptr;
  };
  struct Way {
    Socket socket;
    std::uint64_t at = 0;  // arrival, and how much of it has come by this way
    std::size_t come = 0;
    mutable std::size_t wakes_at = 1;  // bytes, as the socket was told
  };
  struct Posted {
    NetRequest* request = nullptr;
    std::size_t unfinished = 0;  // parts that are not complete
    std::uint32_t open = 0;      // bits of the parts without a message
  };

  enum class Reading { kSocket, kInboxOnly };
  Arrival& arrival(std::uint64_t number) { return arrivals_[number % kMaxArrivals]; }
  const Arrival& arrival(std::uint64_t number) const { return arrivals_[number % kMaxArrivals]; }
  std::size_t inbox_bytes() const { return inbox_end_ - inbox_begin_; }
  bool is_first(const Way& way) const { return &way == ways_.data(); }
  std::size_t missing(std::size_t way) const;  // of the message that it stands at
  bool pull(Way& way, Reading reading);
  bool pull_data(Way& way, Reading& reading);
  bool read_into_inbox(Reading& reading);
  std::size_t receive(Way& way, std::span<const iovec> pieces);
  bool take_header();
  void pass(Way& way);
  bool match(const TcpHeader& header, Arrival& into);
  bool match_one(Posted& posted, const TcpHeader& header, Arrival& into);
  void keep(const TcpHeader& header, Arrival& into);
  bool ask_kept(NetRequest* request, std::size_t part);
  void hand_over(Kept& kept);
  void check_room(const TcpHeader& header, const NetPart& part);
  void finish_part(NetRequest* request, std::size_t part, std::size_t bytes);
  [[noreturn]] void lost(int error);

  Stripes stripes_;
  std::vector<Way> ways_;
  std::array<Arrival, kMaxArrivals> arrivals_;
  std::uint64_t arrived_ = 0, finished_ = 0;
  std::vector<std::byte> inbox_ = std::vector<std::byte>(kInboxBytes);
  std::size_t inbox_begin_ = 0, inbox_end_ = 0;
  std::vector<std::size_t> order_;  // of the posted requests, the oldest first; kNetMaxRequests reserved
  std::vector<Posted> posted_{kNetMaxRequests};
  std::size_t waiting_ = 0;     // parts without a message
  std::size_t unfinished_ = 0;  // parts that are not complete
  std::list<Kept> kept_;        // messages that nobody has asked for yet
  std::size_t kept_bytes_ = 0;
};

}  // namespace slip
