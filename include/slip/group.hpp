// Group: sends and receives that are submitted together. Messages that two ranks send to each other belong in a group:
// without one, each send may wait for the other rank's receive.
//
//   slip::Group group;
//   comm.send(out, right, stream);
//   comm.recv(in, left, stream);
//   group.end();                      // submits both; throws what is wrong with them
//
// A group ends in one of three ways:
//   end()                      submits the messages. If one of them is refused, end() throws and nothing was sent.
//   destructor without end()   submits, too. A destructor cannot throw, so an error becomes the error of every
//                              communicator and every stream of the group: their next call and Stream::sync() throw
//                              it, and the other ranks get it. No result of the group passes as good.
//   destructor, while an exception unwinds the stack   cancels: nothing of the group is sent. The other ranks wait for
//                              these messages until their deadline; call Communicator::abort() if this rank gives up.
#pragma once

#include <cstddef>

namespace slip {

// While a group exists, sends and receives of its thread are kept; they become one op of their stream for each
// communicator. If they are of several streams, all of these wait for each other before and after. Collectives are ops
// of their own all the same. A group within a group is part of it: the outermost one submits. A message whose
// communicator was destroyed before the group ended is an error of the group.
class Group {
 public:
  Group();
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  void end();  // once; a second call does nothing

 private:
  bool open_ = true;
  int exceptions_;      // under way in this thread when the group began
  std::size_t before_;  // messages of the groups around this one
};

}  // namespace slip
