// SlipWork: one call of a process group, as torch sees it. It is complete when its event on a stream is reached. wait()
// runs the op in the waiting thread if no other thread has begun it (see Event::sync).
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

// A thread that completes the futures of works on one stream. It sleeps until the event of the next work is reached.
// Callbacks of futures run in this thread and not in a host function of a stream, because they may issue collectives.
// The thread is started when the first work is added.
class Notifier {
 public:
  explicit Notifier(const Device& device);
  ~Notifier();
  void add(SlipWorkPtr work);
  bool is_this_thread() const;  // whether the caller is a callback of a future

 private:
  struct Queue;
  static void run(Queue& queue);
  std::shared_ptr<Queue> queue_;  // the thread has it, too
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

  // One of these two, once: its ops are enqueued, or could not be.
  void issued(const Event& event);
  void failed(const std::string& text) { end(text); }

  // The tensors that the op uses. The group has them, too, until the event is reached: the caller may drop the work.
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
  bool notified_ = false;     // the notifier has it
  bool future_read_ = false;  // end() has read future_: getFuture() completes a future that it makes later
  Event event_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace slip::distributed
