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
//   destructor without end()   submits, too. A destructor cannot throw, so an error becomes the error of every
//                              communicator and every stream of the group: their next call and Stream::sync() throw
//                              it, and the other ranks get it. No result of the group passes as valid.
//   destructor during stack unwinding   cancels: nothing is sent. The other ranks wait for these messages until their
//                              deadline; call Communicator::abort() if this rank gives up.
#pragma once

#include <cstddef>

namespace slip {

// While a group exists, it collects the sends and receives of its thread. The messages of each communicator become one
// op. If they use several streams, these streams wait for each other before and after the op. Collectives are not
// collected: they are separate ops. Nested groups join the outermost one, which submits. If a communicator is destroyed
// before the group ends, its messages are an error of the group.
class Group {
 public:
  Group();
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  void end();  // once; a second call does nothing

 private:
  bool open_ = true;
  int exceptions_;      // std::uncaught_exceptions() when the group began
  std::size_t before_;  // number of messages of the enclosing groups
};

}  // namespace slip
