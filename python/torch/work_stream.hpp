// WorkStream: a stream for works, which complete in the order of issue, and the tensors of the works that are not
// complete.
//
// Thread rule: any thread may call any function. The device must outlive the object.
#pragma once

#include <deque>
#include <functional>
#include <mutex>

#include "host_memory.hpp"
#include "tensors.hpp"
#include "work.hpp"

namespace slip::distributed {

class WorkStream {
 public:
  using Enqueue = std::function<void(StreamRef stream)>;

  WorkStream(const Device& device, int rank, Name name);

  SlipWorkPtr make(SlipWork::Call call) const;
  // Calls `enqueue`, which enqueues the ops of the work. Then enqueues the copies of staged results to their tensors.
  void issue(SlipWork& work, std::vector<Staged> staged, const Enqueue& enqueue);
  bool is_idle() const;  // all ops have ended, or the stream has failed: then no op runs any more

 private:
  // The end of a work's ops in the stream, and the tensors that they use: the caller may drop the work before it is
  // complete.
  struct InFlight {
    Event event;
    std::shared_ptr<Tensors> kept;
  };
  std::vector<InFlight> take_finished();

  const int rank_;
  const Stream stream_;
  const std::shared_ptr<Notifier> notifier_;
  std::mutex mutex_;  // orders the calls of several threads; guards in_flight_
  std::deque<InFlight> in_flight_;
};

}  // namespace slip::distributed
