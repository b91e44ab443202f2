// UniqueId: how the ranks of one communicator find each other: where the root listens, and a secret that keeps
// strangers out. It is 128 plain bytes: one process makes it and hands it to the others by any means that no stranger
// can read. Ranks prove to each other that they know the secret; it is never sent.
//
//   const slip::UniqueId id = slip::UniqueId::create();   // one process; the root runs in it until all have come
//   send(id.text());                                      // to the others, who parse() it
//
// An id made by hand names a place that everybody knows beforehand: rank 0 listens there when it comes.
//
//   SLIP_ID=node7:29500 SLIP_RANK=3 SLIP_NRANKS=16 ./app
//
// Its secret is that of SLIP_SECRET or SLIP_SECRET_FILE, or the user's own, a file in the home directory.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "slip/error.hpp"

namespace slip {

class UniqueId {
 public:
  static constexpr std::size_t kBytes = 128;

  struct Options {
    std::string host;  // to listen at; empty: SLIP_SOCKET_IFNAME or the first that others reach
    std::chrono::milliseconds lifetime{600'000};  // then the root gives up and tells who has not come
  };

  UniqueId() = default;
  // Starts the root, a thread of this process. An id serves one communicator.
  static UniqueId create();
  static UniqueId create(const Options& options);
  // What text() gave, or a place for rank 0 to listen at: "host:port", "[::1]:29500", or "unix:name" for ranks of one
  // host. Such an id can be used again and again, for one communicator after the other. Its secret follows from
  // SLIP_SECRET, the file SLIP_SECRET_FILE or the user's secret in ~/.config/slipstream/secret, which is made when it
  // is needed for the first time, and from `job`, any words that all ranks agree on and that need not be secret. For
  // ranks of one host and "unix:name" the kernel says that they are of one user, so without SLIP_SECRET none is needed.
  static UniqueId parse(std::string_view text, std::string_view job = {}, Here here = Here::at());
  static UniqueId from_bytes(std::span<const std::byte, kBytes> bytes, Here here = Here::at());

  std::string text() const;
  std::span<const std::byte, kBytes> bytes() const { return std::as_bytes(std::span<const char, kBytes>(bytes_)); }

  bool valid() const;
  std::string host() const;  // "unix:name" for a Unix socket
  std::uint16_t port() const;
  bool rank0_listens() const;  // made by hand: no root runs until rank 0 comes

  friend bool operator==(const UniqueId& a, const UniqueId& b) { return a.bytes_ == b.bytes_; }

 private:
  friend struct UniqueIdParts;
  std::array<char, kBytes> bytes_{};
};

static_assert(sizeof(UniqueId) == UniqueId::kBytes);

}  // namespace slip
