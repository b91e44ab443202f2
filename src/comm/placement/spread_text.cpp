#include "comm/placement/spread_text.hpp"

namespace slip {
namespace {
constexpr std::uint64_t kTag = 0x7e873577;
}

// Counted from the owner on, rank r hears it from r less its lowest bit, and tells it to r plus each lower bit.
std::string spread_text(Bootstrap& bootstrap, int owner, const std::string& text) {
  const int nranks = bootstrap.nranks();
  const auto rank_at = [&](int place) { return (place + owner) % nranks; };
  const int own = (bootstrap.rank() - owner + nranks) % nranks;
  std::string heard = text;
  int bit = 1;
  while (bit < nranks && (own & bit) == 0) bit <<= 1;
  if (own != 0) {
    const std::vector<std::byte> bytes = bootstrap.recv(rank_at(own ^ bit), kTag);
    heard.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (own + bit < nranks) bootstrap.send(rank_at(own + bit), kTag, std::as_bytes(std::span(heard)));
  }
  return heard;
}

}  // namespace slip
