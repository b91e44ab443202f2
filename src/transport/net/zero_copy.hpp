// ZeroCopy: which messages the kernel still reads from after a send with MSG_ZEROCOPY. It counts those sends of a
// socket from 0 and says on the socket's error queue which ones it is through with. Not thread-safe.
#pragma once

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace slip {

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

}  // namespace slip
