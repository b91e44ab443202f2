#include "work.hpp"

#include <pthread.h>

#include <deque>

namespace slip::distributed {

struct Notifier::Queue {
  explicit Queue(const Device& device) : stream(device.stream(Name("futures"), StreamFlags::kNonBlocking)) {}
  Stream stream;  // waits for the events, so that workers run the ops and the notifier's thread only sleeps
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<SlipWorkPtr> works;
  bool stopping = false;
};

Notifier::Notifier(const Device& device) : queue_(std::make_shared<Queue>(device)) {}

// The queue is empty here, because each work in it owns the notifier.
Notifier::~Notifier() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stopping = true;
  }
  queue_->changed.notify_one();
  if (thread_.get_id() == std::this_thread::get_id()) thread_.detach();  // this thread dropped the last work
  else thread_.join();
}

void Notifier::add(SlipWorkPtr work) {
  const std::lock_guard lock(queue_->mutex);
  queue_->works.push_back(std::move(work));
  queue_->changed.notify_one();
  if (thread_.joinable()) return;
  thread_ = std::thread([queue = queue_] { run(*queue); });
  pthread_setname_np(thread_.native_handle(), "slip futures");
}

bool Notifier::is_this_thread() const {
  const std::lock_guard lock(queue_->mutex);  // guards thread_, too
  return thread_.get_id() == std::this_thread::get_id();
}

void Notifier::run(Queue& queue) {
  for (;;) {
    SlipWorkPtr work;
    {
      std::unique_lock lock(queue.mutex);
      queue.changed.wait(lock, [&] { return queue.stopping || !queue.works.empty(); });
      if (queue.works.empty()) return;
      work = std::move(queue.works.front());
      queue.works.pop_front();
    }
    if (const Event* const event = work->await_issue()) {
      try {
        queue.stream.wait(*event, {});
        while (!queue.stream.sync_for(std::chrono::hours(1), {})) continue;  // the call itself has a deadline
      } catch (const std::exception&) {                                      // settle() reports the error of the work
      }
    }
    work->settle();
  }
}

SlipWork::SlipWork(int rank, Call call, std::shared_ptr<Notifier> notifier)
    : c10d::Work(rank, call.type, call.name, call.inputs),
      outputs_(std::move(call.outputs)),
      timeout_(call.timeout),
      context_(std::move(call.context)),
      notifier_(std::move(notifier)),
      kept_(std::make_shared<Tensors>(std::move(call.inputs))) {
  kept_->insert(kept_->end(), outputs_.begin(), outputs_.end());
  kept_->insert(kept_->end(), call.staging.begin(), call.staging.end());
}

void SlipWork::issued(const Event& event) {
  {
    const std::lock_guard lock(mutex_);
    event_ = event;
    issued_ = true;
  }
  issue_.notify_all();
}

const Event* SlipWork::await_issue() {
  std::unique_lock lock(mutex_);
  issue_.wait(lock, [&] { return issued_ || ended_; });
  return issued_ ? &event_ : nullptr;
}

void SlipWork::settle() {
  const Event* const event = await_issue();
  if (!event) return;
  try {
    event->sync({});
    end({});
  } catch (const std::exception& error) {
    end(error.what());
  }
}

void SlipWork::end(const std::string& error) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
  }
  kept_->clear();  // no race: only the first thread comes here, and WorkStream only drops its reference
  std::exception_ptr exception;
  if (!error.empty()) exception = std::make_exception_ptr(std::runtime_error("slip: " + context_ + error));
  finish(exception);  // sets completed_ and wakes the threads in wait()
  issue_.notify_all();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    future = future_;
    future_read_ = true;
  }
  if (future) complete(*future);
}

void SlipWork::complete(c10::ivalue::Future& future) const {
  if (exception_) future.setError(exception_);
  else future.markCompleted(c10::IValue(outputs_));
}

// Adds the work to the notifier, once. The caller holds the lock and has seen that the work has not ended.
void SlipWork::notify_later(const std::unique_lock<std::mutex>&) {
  if (!std::exchange(notified_, true)) notifier_->add(SlipWorkPtr::unsafe_reclaim_from_nonowning(this));
}

bool SlipWork::isCompleted() {
  {
    const std::lock_guard lock(mutex_);
    if (completed_ || !issued_) return completed_;
  }
  try {
    if (!event_.query({})) return false;
  } catch (const std::exception&) {  // reached, with an error
  }
  settle();
  const std::lock_guard lock(mutex_);
  return completed_;  // false: another thread is about to end the work. True only when isSuccess() has its result
}

bool SlipWork::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

std::exception_ptr SlipWork::exception() const {
  const std::lock_guard lock(mutex_);
  return exception_;
}

bool SlipWork::wait(Milliseconds timeout) {
  const Milliseconds limit = timeout != kNoTimeout ? timeout : timeout_;
  std::unique_lock lock(mutex_);
  if (!completed_ && limit == c10d::kUnsetTimeout) {
    lock.unlock();
    settle();
    lock.lock();
    cv_.wait(lock, [&] { return completed_; });  // another thread may be about to end it
  } else if (!completed_) {
    notify_later(lock);
    if (!cv_.wait_for(lock, limit, [&] { return completed_; }))
      throw std::runtime_error(c10::str("slip: ", context_, "the work is not complete after ", limit.count(), " ms"));
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> SlipWork::getFuture() {
  // The caller is a callback, which may wait for the future. Then the notifier's thread could not complete the future.
  if (notifier_->is_this_thread()) settle();
  std::unique_lock lock(mutex_);
  if (future_) return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  if (!future_read_) {  // end() will complete it. A second thread must not: a future can be completed only once
    if (!completed_) notify_later(lock);
    return future_;
  }
  lock.unlock();
  complete(*future_);
  return future_;
}

}  // namespace slip::distributed
