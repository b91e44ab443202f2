// Line: a stream for works, which complete in the order of issue, and the tensors of the works that are not complete.
//
// Thread rule: any thread may call any function. The device must outlive the line.
#pragma once

#include <deque>
#include <functional>
#include <mutex>

#include "host_memory.hpp"
#include "tensors.hpp"
#include "work.hpp"

namespace slip::distributed {

class Line {
 public:
  using Enqueue = std::function<void(StreamRef stream)>;

  Line(const Device& device, int rank, Name name);

  SlipWorkPtr make(SlipWork::Call call) const;
  // Calls `enqueue`, which enqueues the ops of the work. Afterwards staged results are copied to their tensors.
  void issue(SlipWork& work, std::vector<Staged> staged, const Enqueue& enqueue);
  bool is_idle() const;  // no op is unfinished; also if the stream has failed, because then none runs

 private:
  // An op in the stream, and the tensors that it uses. The caller may drop the work before it is complete.
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
