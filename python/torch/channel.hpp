// Channel: the messages from one rank to one other rank. Each channel has a communicator of these two ranks. So a send
// that waits for its receive blocks neither collectives nor messages of other pairs, in whatever order ranks post them.
//
// When this rank first uses the channel, a separate thread makes the communicator, so that no call waits for the other
// rank. The thread shares ownership of the channel, because the group may be destroyed meanwhile. Messages that are
// posted before the communicator exists are kept.
//
// Thread rule: any thread may call any function.
#pragma once

#include <functional>
#include <mutex>
#include <optional>

#include "slip/communicator.hpp"
#include "work_stream.hpp"

namespace slip::distributed {

// Makes the communicator `name`. Its rank 0 creates the id and passes it to the others by the store. Returns when all
// ranks have joined.
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
  WorkStream works_;
  std::mutex mutex_;  // guards the members below
  std::optional<Communicator> comm_;
  std::string error_;                                         // why there is no communicator
  std::vector<std::pair<SlipWorkPtr, Staged>> waiting_ = {};  // messages that were posted before there is one
};

}  // namespace slip::distributed
