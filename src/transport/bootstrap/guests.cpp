#include "transport/bootstrap/guests.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>

namespace slip {
namespace {

constexpr std::size_t kFew = 8;    // of each listener
constexpr std::size_t kShare = 8;  // of the descriptors of the process
constexpr std::size_t kMaxGuests = 256;

// relaxed everywhere: it only counts, and a limit that is passed by a few for a moment does no harm.
std::atomic<std::size_t> g_guests{0};

std::size_t limit() {
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return kMaxGuests;
  return std::min<std::size_t>(descriptors.rlim_cur / kShare, kMaxGuests);
}

}  // namespace

GuestToken GuestToken::take() {
  g_guests.fetch_add(1, std::memory_order_relaxed);
  GuestToken token;
  token.held_ = true;
  return token;
}

void GuestToken::give_back() noexcept {
  if (std::exchange(held_, false)) g_guests.fetch_sub(1, std::memory_order_relaxed);
}

bool has_too_many_guests(std::size_t own) { return own > kFew && g_guests.load(std::memory_order_relaxed) > limit(); }

}  // namespace slip
