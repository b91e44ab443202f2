// SlipWork: one call of a process group, as a c10d::Work. It is complete when its event on a stream is reached. If no
// other thread has begun the op, wait() runs it in the waiting thread (see Event::sync).
//
// Thread rule: any thread may call any function.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "slip/device.hpp"
#include "torch_api.hpp"

namespace slip::distributed {

class SlipWork;
using SlipWorkPtr = c10::intrusive_ptr<SlipWork>;

// Completes the futures of works of one stream. Its thread sleeps until the event of the next work is reached.
// Callbacks of futures run in this thread and not in a host function of a stream, because they may issue collectives.
// The first add() starts the thread.
class Notifier {
 public:
  explicit Notifier(const Device& device);
  ~Notifier();
  void add(SlipWorkPtr work);
  bool is_this_thread() const;  // whether the caller is this thread, that is, a callback of a future

 private:
  struct Queue;
  static void run(Queue& queue);
  std::shared_ptr<Queue> queue_;  // shared with the thread
  std::thread thread_;
};

class SlipWork final : public c10d::Work {
 public:
  struct Call {
    c10d::OpType type;
    const char* name;  // "slip:all_reduce", for torch's profiler
    Tensors inputs = {}, outputs = {};
    Tensors staging = {};
    Milliseconds timeout = c10d::kUnsetTimeout;  // of wait(); unset: as long as the communicator's
    std::string context = {};                    // the beginning of an error's text
  };
  SlipWork(int rank, Call call, std::shared_ptr<Notifier> notifier);

  // The owner calls one of these two, once: the ops are enqueued and end with the event, or they could not be enqueued.
  void issued(const Event& event);
  void failed(const std::string& text) { end(text); }

  // The tensors that the op uses. WorkStream shares them until the event is reached, because the caller may drop the
  // work before.
  const std::shared_ptr<Tensors>& kept() const { return kept_; }
  const Event* await_issue();  // null: it failed before
  void settle();               // waits for the event, then ends the work

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(Milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void end(const std::string& error);
  void complete(c10::ivalue::Future& future) const;
  void notify_later(const std::unique_lock<std::mutex>& lock);

  const Tensors outputs_;
  const Milliseconds timeout_;
  const std::string context_;
  const std::shared_ptr<Notifier> notifier_;
  const std::shared_ptr<Tensors> kept_;
  // Guarded by mutex_ of the base class. `event_` does not change after issued().
  std::condition_variable issue_;
  bool issued_ = false;
  bool ended_ = false;        // a thread has begun end()
  bool notified_ = false;     // the work was added to the notifier
  bool future_read_ = false;  // end() has read future_: getFuture() completes a future that it makes later
  Event event_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace slip::distributed
