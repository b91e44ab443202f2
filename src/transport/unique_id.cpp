#include "slip/unique_id.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstring>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "transport/interfaces.hpp"
#include "transport/root.hpp"
#include "transport/secret.hpp"

namespace slip {
namespace {

constexpr char kMark[4] = {'s', 'l', 'i', 'p'};
constexpr std::uint8_t kVersion = 1;
constexpr std::string_view kUnix = "unix:";

struct Layout {
  char mark[4];
  std::uint8_t version;
  std::uint8_t rank0_listens;
  std::uint16_t port;
  std::uint64_t magic;
  char host[112];  // ends with a zero byte
};
static_assert(sizeof(Layout) == UniqueId::kBytes);

Layout layout(std::span<const std::byte, UniqueId::kBytes> bytes) {
  Layout result;
  std::memcpy(&result, bytes.data(), sizeof(result));
  return result;
}

[[noreturn]] void refuse(std::string_view text, std::string_view why, Here here) {
  throw Error(
      Code::kInvalidValue,
      fmt::format("the id '{}' {}; write host:port, [::1]:port, unix:name, or what UniqueId::text() gave", text, why),
      here);
}

template <class T>
bool parse_number(std::string_view text, T& value, int base) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

struct Place {
  std::string host;
  std::uint16_t port = 0;
};

Place parse_place(std::string_view place, std::string_view text, Here here) {
  if (place.starts_with(kUnix)) {
    if (place.size() == kUnix.size()) refuse(text, "names no Unix socket", here);
    return {std::string(place), 0};
  }
  const std::size_t colon = place.rfind(':');
  if (colon == std::string_view::npos) refuse(text, "has no port", here);
  Place result;
  if (!parse_number(place.substr(colon + 1), result.port, 10) || result.port == 0)
    refuse(text, "has a port that is none of 1 to 65535", here);
  std::string_view host = place.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string_view::npos) refuse(text, "has an IPv6 address without brackets", here);
  if (host.empty()) refuse(text, "has no host", here);
  result.host = host;
  return result;
}

}  // namespace

UniqueId::UniqueId(std::string_view host, std::uint16_t port, std::uint64_t magic, bool rank0_listens) {
  Layout parts{};
  std::memcpy(parts.mark, kMark, sizeof(kMark));
  parts.version = kVersion;
  parts.rank0_listens = rank0_listens ? 1 : 0;
  parts.port = port;
  parts.magic = magic;
  if (host.size() >= sizeof(parts.host))
    throw Error(Code::kInvalidValue,
                fmt::format("the host '{}' of an id has {} characters: at most {} fit; give its number instead", host,
                            host.size(), sizeof(parts.host) - 1),
                {});
  std::memcpy(parts.host, host.data(), host.size());
  std::memcpy(bytes_.data(), &parts, sizeof(parts));
}

UniqueId UniqueId::create() { return create({}); }

UniqueId UniqueId::create(const Options& options) {
  const SocketAddress address = options.host.empty() ? own_address(InterfaceFilter(env_text("SLIP_SOCKET_IFNAME")))
                                                     : resolve(options.host, 0).front();
  const std::uint64_t magic = random_secret();
  Socket listener = Socket::listen(address);
  const UniqueId id(address.host(), listener.local().port(), magic, false);
  const auto limit = std::chrono::duration_cast<std::chrono::nanoseconds>(options.lifetime).count();
  start_root(std::move(listener), magic, deadline_after(limit));
  return id;
}

UniqueId UniqueId::parse(std::string_view text, std::string_view job, Here here) {
  const std::size_t slash = text.find('/');
  const Place place = parse_place(text.substr(0, slash), text, here);
  if (slash == std::string_view::npos) return UniqueId(place.host, place.port, secret_of(job), true);
  std::string_view rest = text.substr(slash + 1);
  const bool rank0_listens = rest.ends_with("/0");
  if (rank0_listens) rest.remove_suffix(2);
  std::uint64_t magic = 0;
  if (rest.size() != 16 || !parse_number(rest, magic, 16)) refuse(text, "has no secret of 16 hexadecimal digits", here);
  return UniqueId(place.host, place.port, magic, rank0_listens);
}

UniqueId UniqueId::from_bytes(std::span<const std::byte, kBytes> bytes, Here here) {
  UniqueId result;
  std::memcpy(result.bytes_.data(), bytes.data(), kBytes);
  if (!result.valid())
    throw Error(Code::kInvalidValue, "these 128 bytes are no UniqueId of this version: pass on what bytes() gave",
                here);
  return result;
}

bool UniqueId::valid() const {
  const Layout parts = layout(bytes());
  return std::memcmp(parts.mark, kMark, sizeof(kMark)) == 0 && parts.version == kVersion && parts.host[0] != 0 &&
         parts.host[sizeof(parts.host) - 1] == 0;
}

std::string UniqueId::host() const {
  const Layout parts = layout(bytes());
  return {parts.host, ::strnlen(parts.host, sizeof(parts.host))};
}
std::uint16_t UniqueId::port() const { return layout(bytes()).port; }
std::uint64_t UniqueId::magic() const { return layout(bytes()).magic; }
bool UniqueId::rank0_listens() const { return layout(bytes()).rank0_listens != 0; }

std::string UniqueId::text() const {
  const std::string name = host();
  std::string place = name;
  if (!name.starts_with(kUnix))
    place = fmt::format(fmt::runtime(name.find(':') == std::string::npos ? "{}:{}" : "[{}]:{}"), name, port());
  return fmt::format("{}/{:016x}{}", place, magic(), rank0_listens() ? "/0" : "");
}

}  // namespace slip
