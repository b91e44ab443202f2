// MessageExchange: exchanges over the control connections: messages between two ranks, all-gathers, and questions that
// the other rank's control thread answers. Calling threads wait in these functions; the server's thread passes in the
// received frames.
//
// Functions are thread-safe unless they require the mutex of the context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/bootstrap/failure_table.hpp"

namespace slip::transport {

// A message as it was received.
struct ReceivedMessage {
  int rank = 0;  // the sender
  std::vector<std::byte> bytes;
};

class MessageExchange {
 public:
  MessageExchange(ControlContext& context, ConnectionTable& connections, FailureTable& failures)
      : context_(context), connections_(connections), failures_(failures) {}

  // All-gather: every rank provides the bytes of its own slot of the table, and receives those of all others. If ranks
  // are in different calls, throws kMismatch, which names two of them.
  void gather(std::span<std::byte> table, std::size_t bytes_per_rank, const SetupCall& call);
  void send(int rank, std::uint64_t tag, std::span<const std::byte> bytes, const SocketAddress& to,
            std::int64_t deadline_ns);
  std::vector<std::byte> recv(int rank, std::uint64_t tag, std::int64_t deadline_ns);

  // Asks the monitors of other ranks, and returns their answers by rank. Omits ranks that do not answer before the
  // deadline. Throws nothing.
  std::map<int, std::vector<std::byte>> ask(std::span<const std::pair<int, SocketAddress>> ranks,
                                            std::int64_t deadline_ns);

  // For recovery: the next two functions also work after a loss, and throw only if this rank aborts.
  // Sends to a watched rank, without waiting until the kernel takes the bytes. False: the rank is gone.
  bool post(int rank, std::uint64_t tag, std::span<const std::byte> bytes);
  // The next message with the tag from any rank. None at the deadline, or if the number of ranks that are gone is not
  // `known_gone`.
  std::optional<ReceivedMessage> next_message(std::uint64_t tag, std::size_t known_gone, std::int64_t deadline_ns);

  // The server's thread calls the next three.
  void add_message(int rank, std::uint64_t tag, std::vector<std::byte> bytes) SLIP_REQUIRES(control_mutex) {
    messages_[{rank, tag}].push_back(std::move(bytes));
  }
  void add_piece(const FrameHeader& header, std::vector<std::byte> bytes) SLIP_REQUIRES(control_mutex) {
    pieces_[{header.tag, header.rank}] = {header.call, std::move(bytes)};
  }
  void add_answer(int rank, std::uint64_t question, std::vector<std::byte> bytes) SLIP_REQUIRES(control_mutex) {
    const auto found = answers_.find({rank, question});
    if (found != answers_.end()) found->second = std::move(bytes);
  }

 private:
  struct Piece {  // the contribution of one rank to an all-gather
    SetupKind call{};
    std::vector<std::byte> bytes;
  };

  std::vector<int> missing(std::uint64_t gathering) const SLIP_REQUIRES(control_mutex);
  std::optional<int> in_another_call(std::uint64_t gathering, SetupKind call) const SLIP_REQUIRES(control_mutex);
  void copy_pieces(std::uint64_t gathering, std::span<std::byte> table, std::size_t bytes_per_rank)
      SLIP_REQUIRES(control_mutex);
  std::vector<std::byte> take(std::pair<int, std::uint64_t> key) SLIP_REQUIRES(control_mutex);
  // Tags of messages from the rank that no thread has received.
  std::string other_tags(int rank) const SLIP_REQUIRES(control_mutex);
  // Connects to the rank if this rank has no connection yet; releases the mutex meanwhile.
  void connect_to(int rank, const SocketAddress& to, std::int64_t deadline_ns) SLIP_REQUIRES(control_mutex);
  void connect_for_questions(std::span<const std::pair<int, SocketAddress>> ranks, std::int64_t deadline_ns)
      SLIP_REQUIRES(control_mutex);

  ControlContext& context_;
  ConnectionTable& connections_;
  FailureTable& failures_;
  // By rank and tag.
  std::map<std::pair<int, std::uint64_t>, std::deque<std::vector<std::byte>>> messages_ SLIP_GUARDED_BY(control_mutex);
  // By number of the all-gather and rank.
  std::map<std::pair<std::uint64_t, int>, Piece> pieces_ SLIP_GUARDED_BY(control_mutex);
  // By rank and question; has an entry for each expected answer, without a value until the answer arrives.
  std::map<std::pair<int, std::uint64_t>, std::optional<std::vector<std::byte>>> answers_
      SLIP_GUARDED_BY(control_mutex);
  std::uint64_t gatherings_ SLIP_GUARDED_BY(control_mutex) = 0;  // number of all-gathers begun so far
  std::uint64_t questions_ SLIP_GUARDED_BY(control_mutex) = 0;
};

}  // namespace slip::transport
