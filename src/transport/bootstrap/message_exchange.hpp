// MessageExchange: what ranks send each other over their control connections: messages between two ranks, tables that
// all ranks gather, and questions that the other rank's control thread answers. Calling threads wait here; the server's
// thread hands in what arrives.
//
// Functions are thread-safe unless they say REQUIRES.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/bootstrap/failure_table.hpp"

namespace slip {

// A message as it was received.
struct Message {
  int rank = 0;  // the sender
  std::vector<std::byte> bytes;
};

class MessageExchange {
 public:
  MessageExchange(ControlContext& context, ConnectionTable& connections, FailureTable& failures)
      : context_(context), connections_(connections), failures_(failures) {}

  // Every rank gives the bytes in its own slot of the table, and gets those of all others.
  // If ranks are in different calls, it throws kMismatch, which names two of them.
  void gather(std::span<std::byte> table, std::size_t bytes_per_rank, const SetupCall& call);
  void send(int rank, std::uint64_t tag, std::span<const std::byte> bytes, const SocketAddress& to,
            std::int64_t deadline_ns);
  std::vector<std::byte> recv(int rank, std::uint64_t tag, std::int64_t deadline_ns);

  // The answers of other ranks' monitors, by rank. A rank that does not answer before the deadline is left out. Throws
  // nothing.
  std::map<int, std::vector<std::byte>> ask(std::span<const std::pair<int, SocketAddress>> ranks,
                                            std::int64_t deadline_ns);

  // For recovery: these go on after a loss, and end only if this rank aborts.
  // Sends to a rank that is watched, and does not wait until it is taken. False: the rank is gone.
  bool post(int rank, std::uint64_t tag, std::span<const std::byte> bytes);
  // The next message with the tag from any rank. None at the deadline, or if the number of ranks that are gone is not
  // `known_gone`.
  std::optional<Message> next_message(std::uint64_t tag, std::size_t known_gone, std::int64_t deadline_ns);

  // REQUIRES, for all below: the caller holds the mutex. The server's thread calls them.
  void add_message(int rank, std::uint64_t tag, std::vector<std::byte> bytes);
  void add_piece(const FrameHeader& header, std::vector<std::byte> bytes);
  void add_answer(int rank, std::uint64_t question, std::vector<std::byte> bytes);

 private:
  struct Piece {  // what one rank gave to a gathering
    SetupKind call{};
    std::vector<std::byte> bytes;
  };

  std::vector<int> missing(std::uint64_t gathering) const;
  std::optional<int> in_another_call(std::uint64_t gathering, SetupKind call) const;
  void copy_pieces(std::uint64_t gathering, std::span<std::byte> table, std::size_t bytes_per_rank);
  std::vector<std::byte> take(std::pair<int, std::uint64_t> key);
  std::string other_tags(int rank) const;  // of messages from the rank that nobody has asked for
  void connect_to(std::unique_lock<std::mutex>& lock, int rank, const SocketAddress& to, std::int64_t deadline_ns);
  // The same, without waiting for the proof of the other end.
  void begin_to_connect(std::unique_lock<std::mutex>& lock, int rank, const SocketAddress& to,
                        std::int64_t deadline_ns);

  ControlContext& context_;
  ConnectionTable& connections_;
  FailureTable& failures_;
  // Under the mutex.
  std::map<std::pair<int, std::uint64_t>, std::deque<std::vector<std::byte>>> messages_;  // by rank and tag
  std::map<std::pair<std::uint64_t, int>, Piece> pieces_;                                 // by gathering and rank
  std::map<std::pair<int, std::uint64_t>, std::vector<std::byte>> answers_;  // by rank and question; expected ones
  std::uint64_t gatherings_ = 0;                                             // begun so far
  std::uint64_t questions_ = 0;
};

}  // namespace slip
