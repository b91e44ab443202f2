// Group: submits several sends and receives together. Two ranks that send to each other need a group: without one, each
// send may wait for the other rank's receive, and both ranks hang.
//
//   slip::Group group;
//   comm.send(out, right, stream);
//   comm.recv(in, left, stream);
//   group.end();                      // submits both; throws if one of them is refused
//
// A group ends in one of three ways:
//   end()                      submits the messages. If one of them is refused, end() throws and nothing was sent.
//   cancel()                   drops the messages. No error is kept, so the program must tell the other ranks: they
//                              wait for these messages until their deadline.
//   destructor without either  drops the messages, too, also when an exception destroys the group. A destructor cannot
//                              throw, so it logs an error, and the error sticks to every communicator and every stream
//                              of the dropped messages. Their next call and Stream::sync() throw it. It is sent to the
//                              other ranks, so they fail at once. It names the line at which the group began.
#pragma once

#include <cstddef>

#include "slip/error.hpp"

namespace slip {

// While a group exists, it collects the sends and receives of its thread. The messages of each communicator become one
// op. If they use several streams, these streams wait for each other before and after the op. Collectives are not
// collected: they are separate ops. If a communicator is destroyed before the group ends, its messages are an error of
// the group.
//
// Nested groups: end() of an inner group passes its messages to the enclosing group, and the outermost one submits.
// Without end(), an inner group drops its own messages only. A group cannot move, because it belongs to its thread:
// that thread also ends it.
class Group {
 public:
  explicit Group(Here here = Here::at());
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  void end();  // once; a second call does nothing. Throws if a group that began within this one has not ended.
  void cancel() noexcept;  // does nothing after end()

 private:
  bool open_ = true;
  int depth_;           // 1: the outermost group of the thread
  std::size_t before_;  // number of messages of the enclosing groups
  Here here_;
};

}  // namespace slip
