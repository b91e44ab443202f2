// The relay algorithm: all_to_all between hosts with few messages. A rail is the set of network ports (nets) that have
// the same number on all hosts. Each message takes up to three steps:
//   hand over   The ranks of a host send their blocks for one receiver, a rank of another host, to one rank of their
//               own host, the relay. The relay is near the net on the receiver's rail.
//   between     The relay sends all these blocks as one message. The receiver copies them to its output.
//   forward     If the receiver's own path would overload the PCI switch of the net, another rank receives the message.
//               That rank is on the receiver's host and forwards the message to the receiver.
// CommGraph::relays names the relay and the receiving rank of each message.
//
// A link is the connection between two ranks. Messages of the three steps use a link in the order of the steps; blocks
// between ranks of one host belong to the second step. If a link carries several messages of one step, they go in
// rounds: in each round every rank sends one message on each of its links and receives one from each. So no rank waits
// for room on a link whose other end has not begun to receive.
#include <algorithm>

#include "comm/plan/algorithm.hpp"

namespace slip::comm {
namespace {

using Span = Task::Span;

// One message on the link to or from `peer`: the blocks of the ranks `from`, all of one host, for the rank `to`.
struct BlockMessage {
  int peer = 0, to = 0;
  std::vector<int> from;
  std::uint64_t scratch = 0;  // its offset in scratch memory, if in_scratch
  bool in_scratch = false;
  bool is_joint() const { return from.size() > 1; }
};

// The ranks whose blocks for `to` the rank `by` sends, in ascending order.
std::vector<int> carried(const Relays& relays, int by, int to) {
  std::vector<int> from;
  for (const int rank : relays.beside(by)) {
    if (rank != to && relays.via(rank, to) == by) from.push_back(rank);
  }
  return from;
}

// The messages that `by` sends to `peer`, in order: for `peer` itself, and for ranks to which `peer` forwards them.
std::vector<BlockMessage> sent_to(const Relays& relays, int by, int peer) {
  if (relays.none() || relays.same_host(by, peer)) return {{peer, peer, {by}}};
  std::vector<BlockMessage> result;
  for (const int to : relays.beside(peer)) {
    if (relays.arrival(to) != peer) continue;
    if (BlockMessage one{peer, to, carried(relays, by, to)}; !one.from.empty()) result.push_back(std::move(one));
  }
  return result;
}

// The ranks of other hosts for which `from` hands its blocks over to the rank `by` of its own host, in ascending order.
std::vector<int> handed(const Task& task, int from, int by) {
  const Relays& relays = task.graph->relays;
  std::vector<int> to;
  if (relays.none() || !relays.same_host(from, by)) return to;
  for (int rank = 0; rank < task.nranks; ++rank) {
    if (rank != from && rank != by && relays.via(from, rank) == by) to.push_back(rank);
  }
  return to;
}

class RelayProgram {
 public:
  explicit RelayProgram(const Task& task) : task_(task) {
    const Relays& relays = task.graph->relays;
    for (int step = 1; step < task.nranks; ++step) {  // neighbours first, so that not all ranks send to the same one
      const int to = (task.rank + step) % task.nranks, from = (task.rank - step + task.nranks) % task.nranks;
      give_.push_back({to, handed(task, task.rank, to)});
      take_.push_back({from, handed(task, from, task.rank)});
      add_link(out_, to, sent_to(relays, task.rank, to), false);
      add_link(in_, from, sent_to(relays, from, task.rank), task.in_place);
    }
    if (relays.forwards()) add_forwards(relays);
  }

  std::uint64_t scratch() const { return scratch_; }

  void write(const Span& chunk, Program& program) const {
    hand_over(chunk, program);
    for (const Link& link : out_) {
      if (link.items.size() == 1 && !link.items[0].is_joint()) send(link.items[0], chunk, program);
    }
    for (const Link& link : in_) {
      if (link.items.size() == 1) receive(link.items[0], chunk, program);
    }
    if (!task_.in_place) program.copy(output(task_.rank, chunk), input(task_.rank, chunk), chunk.bytes);
    send_between(chunk, program);
    for (const Link& link : in_) program.received(link.peer);
    forward(chunk, program);
    for (const Link& link : out_) program.sent(link.peer);
    for (const HandOver& one : give_) {
      if (!one.items.empty()) program.sent(one.peer);
    }
    for (const Link& link : forward_out_) program.sent(link.peer);
    for (const std::vector<Link>* const links : {&in_, &forward_in_}) {
      for (const Link& link : *links) {
        for (const BlockMessage& one : link.items) scatter(one, chunk, program);
      }
    }
  }

 private:
  template <class Item>
  struct WithPeer {
    int peer = 0;
    std::vector<Item> items;  // in the order in which they are sent
  };
  using HandOver = WithPeer<int>;  // the receivers of the blocks; empty if the peer is on another host
  using Link = WithPeer<BlockMessage>;

  // `into_scratch`: all messages are received in scratch memory, because the call is in place.
  void add_link(std::vector<Link>& links, int peer, std::vector<BlockMessage> messages, bool into_scratch) {
    if (messages.empty()) return;
    for (BlockMessage& one : messages) {
      one.peer = peer;
      if (one.is_joint() || into_scratch || (&links == &in_ && one.to != task_.rank)) reserve_scratch(one);
    }
    links.push_back({peer, std::move(messages)});
  }
  void reserve_scratch(BlockMessage& one) {
    one.in_scratch = true;
    one.scratch = scratch_;
    scratch_ += one.from.size() * task_.chunk_bytes;
  }

  // Adds the messages that this rank forwards to ranks of its host, and those that they forward to it.
  void add_forwards(const Relays& relays) {
    for (const int other : relays.beside(task_.rank)) {
      if (other == task_.rank) continue;
      Link out{other, {}};
      for (int from = 0; from < task_.nranks; ++from) {
        const auto link = std::find_if(in_.begin(), in_.end(), [&](const Link& one) { return one.peer == from; });
        if (link == in_.end()) continue;
        for (const BlockMessage& one : link->items) {
          if (one.to != other) continue;
          out.items.push_back(one);
          out.items.back().peer = other;
        }
      }
      if (!out.items.empty()) forward_out_.push_back(std::move(out));
      if (relays.arrival(task_.rank) != other) continue;
      std::vector<BlockMessage> incoming;
      for (int from = 0; from < task_.nranks; ++from) {
        if (relays.same_host(from, other)) continue;
        for (const BlockMessage& one : sent_to(relays, from, other)) {
          if (one.to == task_.rank) incoming.push_back(one);
        }
      }
      add_link(forward_in_, other, std::move(incoming), task_.in_place);
    }
  }

  BufferLocation input(int rank, const Span& chunk) const {
    return input_at(static_cast<std::uint64_t>(rank) * task_.block() + chunk.begin);
  }
  BufferLocation output(int rank, const Span& chunk) const {
    return output_at(static_cast<std::uint64_t>(rank) * task_.block() + chunk.begin);
  }
  // The location of a block of a message in scratch memory. The blocks of a message are contiguous.
  static BufferLocation part(const BlockMessage& one, std::size_t index, const Span& chunk) {
    return scratch_at(one.scratch + index * chunk.bytes);
  }
  // The scratch memory in which this rank, a relay, keeps the block of `from` for `to`.
  BufferLocation slot(int to, int from, const Span& chunk) const {
    for (const Link& link : out_) {
      for (const BlockMessage& one : link.items) {
        const auto place = std::find(one.from.begin(), one.from.end(), from);
        if (one.to == to && place != one.from.end())
          return part(one, static_cast<std::size_t>(place - one.from.begin()), chunk);
      }
    }
    return {};
  }

  void send(const BlockMessage& one, const Span& chunk, Program& program) const {
    program.send(one.peer, one.in_scratch ? part(one, 0, chunk) : input(one.to, chunk), one.from.size() * chunk.bytes);
  }
  void receive(const BlockMessage& one, const Span& chunk, Program& program) const {
    program.receive(one.peer, one.in_scratch ? part(one, 0, chunk) : output(one.from[0], chunk),
                    one.from.size() * chunk.bytes);
  }

  // In round i, calls give() for the i-th message of each outgoing link and take() for that of each incoming link.
  template <class Lists, class Give, class Take>
  static void in_rounds(const Lists& out, const Lists& in, const Give& give, const Take& take) {
    std::size_t rounds = 0;
    for (const auto* const lists : {&out, &in}) {
      for (const auto& one : *lists) rounds = std::max(rounds, one.items.size());
    }
    for (std::size_t round = 0; round < rounds; ++round) {
      for (const auto& one : out) {
        if (round < one.items.size()) give(one, round);
      }
      for (const auto& one : in) {
        if (round < one.items.size()) take(one, round);
      }
    }
  }

  void hand_over(const Span& chunk, Program& program) const {
    in_rounds(
        give_, take_,
        [&](const HandOver& one, std::size_t i) { program.send(one.peer, input(one.items[i], chunk), chunk.bytes); },
        [&](const HandOver& one, std::size_t i) {
          program.receive(one.peer, slot(one.items[i], one.peer, chunk), chunk.bytes);
        });
  }

  // Sends the blocks that were handed over to this rank, together with its own.
  void send_between(const Span& chunk, Program& program) const {
    for (const Link& link : out_) {
      for (const BlockMessage& one : link.items) {
        for (std::size_t i = 0; one.in_scratch && i < one.from.size(); ++i) {
          if (one.from[i] == task_.rank) program.copy(part(one, i, chunk), input(one.to, chunk), chunk.bytes);
        }
      }
    }
    for (const HandOver& one : take_) {
      if (!one.items.empty()) program.received(one.peer, 1);  // the last receive is that rank's own block for this rank
    }
    for (const Link& link : out_) {
      if (link.items.size() == 1 && link.items[0].is_joint()) send(link.items[0], chunk, program);
    }
    in_rounds(
        out_, in_,
        [&](const Link& link, std::size_t i) {
          if (link.items.size() > 1) send(link.items[i], chunk, program);
        },
        [&](const Link& link, std::size_t i) {
          if (link.items.size() > 1) receive(link.items[i], chunk, program);
        });
  }

  // Forwards the messages that this rank received for other ranks of its host.
  void forward(const Span& chunk, Program& program) const {
    in_rounds(
        forward_out_, forward_in_, [&](const Link& link, std::size_t i) { send(link.items[i], chunk, program); },
        [&](const Link& link, std::size_t i) { receive(link.items[i], chunk, program); });
    for (const Link& link : forward_in_) program.received(link.peer);
  }

  // If the message is for this rank and was received in scratch memory, copies its blocks to the output.
  void scatter(const BlockMessage& one, const Span& chunk, Program& program) const {
    for (std::size_t i = 0; one.in_scratch && one.to == task_.rank && i < one.from.size(); ++i)
      program.copy(output(one.from[i], chunk), part(one, i, chunk), chunk.bytes);
  }

  const Task& task_;
  std::vector<Link> out_, in_;                  // messages to and from each peer
  std::vector<Link> forward_out_, forward_in_;  // messages that are forwarded within the host
  std::vector<HandOver> give_, take_;
  std::uint64_t scratch_ = 0;
};

void write_relay(const Task& task, std::uint64_t piece, Program& program) {
  RelayProgram(task).write(task.chunk(piece), program);
}

}  // namespace

const ProgramWriter kRelayAllToAll{write_relay, [](const Task& task) { return RelayProgram(task).scratch(); }};

}  // namespace slip::comm
