// UniqueId: how the ranks of one communicator find each other. It holds the address of the root, a thread where all
// ranks register, and a secret that keeps other processes out. It is 128 plain bytes. One process creates it and passes
// it to the others over any channel that outsiders cannot read. Ranks prove that they know the secret without sending
// it.
//
//   const slip::UniqueId id = slip::UniqueId::create();   // one process; it runs the root until all ranks have joined
//   send(id.text());                                      // to the others, which parse() it
//
// An id can also name an address that all ranks know beforehand; rank 0 listens there:
//
//   SLIP_ID=node7:29500 SLIP_RANK=3 SLIP_NRANKS=16 ./app
//
// Its secret comes from SLIP_SECRET, from SLIP_SECRET_FILE, or from a file in the user's home directory.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "slip/error.hpp"

namespace slip::transport {
struct UniqueIdParts;
}  // namespace slip::transport

namespace slip {

class UniqueId {
 public:
  static constexpr std::size_t kBytes = 128;

  struct Options {
    std::string host;  // address to listen on; empty: SLIP_SOCKET_IFNAME, or the first address others can reach
    std::chrono::milliseconds lifetime{600'000};  // then the root gives up; its error names the ranks that did not join
  };

  UniqueId() = default;
  // Starts the root, a thread of this process. Such an id serves one communicator.
  static UniqueId create();
  static UniqueId create(const Options& options);
  // Accepts the result of text(), or an address where rank 0 listens: "host:port", "[::1]:29500", or "unix:name" for
  // ranks of one host. An address can serve several communicators one after the other. Its secret is derived from `job`
  // and a base secret. `job` is any text on which all ranks agree; it need not be secret. The base secret is
  // SLIP_SECRET, the file SLIP_SECRET_FILE, or ~/.config/slipstream/secret, which is created on first use. "unix:name"
  // needs no secret unless SLIP_SECRET is set, because the kernel verifies that the ranks belong to one user.
  static UniqueId parse(std::string_view text, std::string_view job = {}, Here here = Here::at());
  static UniqueId from_bytes(std::span<const std::byte, kBytes> bytes, Here here = Here::at());

  std::string text() const;
  std::span<const std::byte, kBytes> bytes() const { return std::as_bytes(std::span<const char, kBytes>(bytes_)); }

  bool valid() const;
  std::string host() const;  // "unix:name" for a Unix socket
  std::uint16_t port() const;
  bool rank0_listens() const;  // true: an address; no root runs until rank 0 joins

  friend bool operator==(const UniqueId& a, const UniqueId& b) { return a.bytes_ == b.bytes_; }

 private:
  friend struct transport::UniqueIdParts;
  std::array<char, kBytes> bytes_{};
};

static_assert(sizeof(UniqueId) == UniqueId::kBytes);

}  // namespace slip
