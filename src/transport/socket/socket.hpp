// Socket: a connection or a listener, TCP or Unix, that never blocks beyond a deadline and can be aborted. Errors name
// both ends. One thread at a time; the descriptor is closed with the object and never inherited over exec.
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/socket/abort_flag.hpp"
#include "transport/socket/address.hpp"

namespace slip {

// How long a wait may take and who may end it.
struct Deadline {
  std::int64_t at_ns = 0;            // of now_ns(); 0: no limit
  const AbortFlag* abort = nullptr;  // may be null
};

enum class Waited { kReady, kTimeout, kAborted };

// Waits until the descriptor has one of the events of poll(2). Errors of the descriptor count as ready.
Waited wait_for(int descriptor, short events, const Deadline& deadline);
// Until one of several is ready; the caller looks which. At a deadline or when aborted it returns, too.
void wait_for_any(std::span<const pollfd> watched, const Deadline& deadline);
// The same for at most so long, and nothing is allocated.
void wait_for_any(std::span<pollfd> watched, std::int64_t limit_ns);
Waited wait_a_moment(std::int64_t limit_ns, const Deadline& deadline);  // kReady: the moment passed

class Socket {
 public:
  Socket() = default;
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  // Port 0: the system chooses one, see local().
  static Socket listen(const SocketAddress& address, int backlog = 1024);

  enum class IfRefused { kFail, kTryAgain };  // nobody listens there: now, or not yet
  static Socket connect(const SocketAddress& peer, const Deadline& deadline, IfRefused refused = IfRefused::kFail);
  // One attempt; an invalid socket and the reason if it does not succeed.
  static Socket try_connect(const SocketAddress& peer, const Deadline& deadline, int& error);
  // Does not wait: with EINPROGRESS it is there, or failed with connect_error(), once it can be written to.
  static Socket begin_connect(const SocketAddress& peer, int& error);
  int connect_error() const;

  Socket accept(const Deadline& deadline) const;
  std::optional<Socket> try_accept(int& error) const;  // error 0: nobody waits

  // All of the bytes, or an error.
  void send(std::span<const std::byte> bytes, const Deadline& deadline) const;
  void recv(std::span<std::byte> bytes, const Deadline& deadline) const;

  // What goes without waiting.
  struct Moved {
    std::size_t bytes = 0;
    bool ended = false;  // the other end closed, or is gone
    int error = 0;       // why, if there is a reason
  };
  Moved try_send(std::span<const std::byte> bytes) const;
  Moved try_recv(std::span<std::byte> bytes) const;
  // The same with several places in one call. `flags`: of sendmsg(2).
  Moved try_send(std::span<const iovec> pieces, int flags) const;
  Moved try_recv(std::span<const iovec> pieces) const;

  bool valid() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  SocketAddress local() const;
  SocketAddress peer() const;
  std::string text() const;  // "127.0.0.1:1234 to 127.0.0.1:80"
  bool same_user() const;    // of a Unix connection: the other process is of this user or root; true for TCP
  void finish_sending() const;
  // For who only receives over TCP: an answer to every second message is enough. Where every message is answered at
  // once, with nothing to say, 8 bytes over plain sockets took 4.15 us one way on loopback, and 3.63 us so.
  void acknowledge_later() const;
  // How much the kernel takes to be sent that was not received, about; else it finds out what the way needs.
  void send_ahead(int bytes) const;
  // Who waits for it in poll is woken when so much has come, or the end; what is there can be read before.
  void wake_at(std::size_t bytes) const;
  bool stays_here() const;  // both ends are of one host
  void close();

 private:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

struct Reached {
  Socket socket;        // invalid: not reached
  bool silent = false;  // there was no answer before the deadline; else it was refused
};

// In the order of the addresses. Throws only if it is aborted.
std::vector<Reached> connect_all(std::span<const SocketAddress> peers, const Deadline& deadline);

// Counts one guest of the process while it lives.
class UnprovenToken {
 public:
  UnprovenToken() = default;
  static UnprovenToken take();
  ~UnprovenToken() { give_back(); }
  UnprovenToken(UnprovenToken&& other) noexcept : held_(std::exchange(other.held_, false)) {}
  UnprovenToken& operator=(UnprovenToken&& other) noexcept {
    give_back();
    held_ = std::exchange(other.held_, false);
    return *this;
  }
  void give_back() noexcept;

 private:
  bool held_ = false;
};

// Whether a listener with so many guests of its own has to close one. Each may keep a few, whatever the others have.
bool has_too_many_unproven(std::size_t own);

}  // namespace slip
