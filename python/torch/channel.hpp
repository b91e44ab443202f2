// Channel: the messages from one rank to one other rank. Each channel has a communicator of these two ranks. So a send
// that waits for its receive blocks neither collectives nor messages of other pairs, in whatever order ranks post them.
//
// A thread of its own makes the communicator when this rank uses the channel first. Until then messages are kept, so
// that no call waits for the other rank. The thread owns the channel, too: a group may be destroyed meanwhile.
//
// Thread rule: any thread may call any function.
#pragma once

#include <functional>
#include <mutex>
#include <optional>

#include "line.hpp"
#include "slip/communicator.hpp"

namespace slip::distributed {

// Makes the communicator `name` of a group. The rank 0 creates its id and passes it to the others by the store. Returns
// when all ranks have joined.
Communicator make_communicator(c10d::Store& store, const std::string& name, int size, int rank, const Device& device,
                               Milliseconds timeout);

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  struct Ends {
    int from, to;
    bool is_sender;  // whether this rank is `from`
  };
  Channel(const c10::intrusive_ptr<c10d::Store>& store, Ends ends, Milliseconds timeout);

  void connect();  // once; starts the thread
  WorkPtr start(const at::Tensor& tensor);
  void close();  // messages that are not complete end with an error

 private:
  void await_id(const std::string& name);
  void make();
  std::string issue(SlipWork& work, const Staged& memory);

  const c10::intrusive_ptr<c10d::Store> store_;
  const Ends ends_;
  const Milliseconds timeout_;
  const HostMemory memory_;
  Line line_;
  std::mutex mutex_;  // guards the members below
  std::optional<Communicator> comm_;
  std::string error_;                                         // why there is no communicator
  std::vector<std::pair<SlipWorkPtr, Staged>> waiting_ = {};  // messages, until there is one
};

}  // namespace slip::distributed
