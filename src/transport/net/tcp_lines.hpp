// Both ends of a TCP line. See net.hpp for the rules.
//
// Nothing is allocated for a message, unless it comes before a receive with its tag while others are posted: it is then
// kept, up to kTcpMaxKept bytes of them. With nothing posted nothing is read, and the sender is held up by TCP.
#pragma once

#include <list>

#include "transport/net/tcp_wire.hpp"
#include "transport/net/zero_copy.hpp"

namespace slip {

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
