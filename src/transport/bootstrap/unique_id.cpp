#include "slip/unique_id.hpp"

#include <cstring>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "transport/bootstrap/rendezvous.hpp"
#include "transport/bootstrap/secret.hpp"
#include "transport/socket/address.hpp"

namespace slip::transport {
namespace {

constexpr std::uint8_t kVersion = 2;
constexpr std::string_view kUnix = UniqueIdParts::kUnix;

struct Layout {
  char mark[4];
  std::uint8_t version;
  std::uint8_t rank0_listens;
  std::uint16_t port;
  Secret secret;
  char host[104];  // ends with a zero byte
};
static_assert(sizeof(Layout) == UniqueId::kBytes);

Layout layout(std::span<const std::byte, UniqueId::kBytes> bytes) {
  Layout result;
  std::memcpy(&result, bytes.data(), sizeof(result));
  return result;
}

[[noreturn]] void refuse(std::string_view text, std::string_view why, Here here) {
  base::fail(ErrorCode::kInvalidValue, here,
             "the id '{}' {}; write host:port, [::1]:port, unix:name, or the result of UniqueId::text()", text, why);
}

UniqueIdParts parse_host_port(std::string_view address, std::string_view text, Here here) {
  if (address.starts_with(kUnix)) {
    if (address.size() == kUnix.size()) refuse(text, "names no Unix socket", here);
    return {.host = std::string(address)};
  }
  const std::size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) refuse(text, "has no port", here);
  const auto port = base::parse_number<std::uint16_t>(address.substr(colon + 1), 1, 65'535);
  if (!port) refuse(text, "has a port that is not a number from 1 to 65535", here);
  std::string_view host = address.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string_view::npos) refuse(text, "has an IPv6 address without brackets", here);
  if (host.empty()) refuse(text, "has no host", here);
  return {.host = std::string(host), .port = *port};
}

}  // namespace

UniqueId UniqueIdParts::id() const {
  Layout parts{};
  std::memcpy(parts.mark, kMark, sizeof(kMark));
  parts.version = kVersion;
  parts.rank0_listens = rank0_listens ? 1 : 0;
  parts.port = port;
  parts.secret = secret;
  if (host.size() >= sizeof(parts.host))
    base::fail(ErrorCode::kInvalidValue, {},
               "the host '{}' of an id has {} characters: at most {} fit; give its IP address instead", host,
               host.size(), sizeof(parts.host) - 1);
  std::memcpy(parts.host, host.data(), host.size());
  UniqueId result;
  std::memcpy(result.bytes_.data(), &parts, sizeof(parts));
  return result;
}

UniqueIdParts UniqueIdParts::of(const UniqueId& id) {
  return {id.host(), id.port(), layout(id.bytes()).secret, id.rank0_listens()};
}

}  // namespace slip::transport

namespace slip {
using namespace transport;

UniqueId UniqueId::create() { return create({}); }

UniqueId UniqueId::create(const Options& options) {
  const SocketAddress address = options.host.empty() ? own_address(InterfaceFilter(base::socket_interface_rule()))
                                                     : resolve(options.host, 0).front();
  const Secret secret = random_secret();
  Socket listener = Socket::listen(address);
  const UniqueId id = UniqueIdParts{address.host(), listener.local().port(), secret, false}.id();
  start_root(std::move(listener), secret, base::deadline_after(std::chrono::nanoseconds(options.lifetime).count()));
  return id;
}

UniqueId UniqueId::parse(std::string_view text, std::string_view job, Here here) {
  const std::size_t slash = text.find('/');
  UniqueIdParts parts = parse_host_port(text.substr(0, slash), text, here);
  if (slash == std::string_view::npos)
    return UniqueIdParts{parts.host, parts.port, shared_secret(job, parts.host.starts_with(kUnix)), true}.id();
  std::string_view rest = text.substr(slash + 1);
  parts.rank0_listens = rest.ends_with("/0");
  if (parts.rank0_listens) rest.remove_suffix(2);
  bool whole = rest.size() == 2 * parts.secret.size();
  for (std::size_t i = 0; whole && i < parts.secret.size(); ++i) {
    const auto byte = base::parse_number<std::uint8_t>(rest.substr(2 * i, 2), 0, 255, 16);
    whole = byte.has_value();
    parts.secret[i] = std::byte{byte.value_or(0)};
  }
  if (!whole) refuse(text, "has no secret of 32 hexadecimal digits", here);
  return parts.id();
}

UniqueId UniqueId::from_bytes(std::span<const std::byte, kBytes> bytes, Here here) {
  UniqueId result;
  std::memcpy(result.bytes_.data(), bytes.data(), kBytes);
  if (!result.valid())
    throw Error(ErrorCode::kInvalidValue,
                "these 128 bytes are not a UniqueId of this version: pass the result of UniqueId::bytes()", here);
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
bool UniqueId::rank0_listens() const { return layout(bytes()).rank0_listens != 0; }

std::string UniqueId::text() const {
  const std::string name = host();
  std::string address = name;
  if (!name.starts_with(kUnix))
    address = fmt::format(fmt::runtime(name.find(':') == std::string::npos ? "{}:{}" : "[{}]:{}"), name, port());
  std::string secret;
  for (const std::byte byte : layout(bytes()).secret) secret += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return fmt::format("{}/{}{}", address, secret, rank0_listens() ? "/0" : "");
}

}  // namespace slip
