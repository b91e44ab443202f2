#include "channel.hpp"

#include <pthread.h>

#include <algorithm>
#include <thread>

namespace slip::distributed {
namespace {

constexpr int kSender = 0, kReceiver = 1;  // ranks in the communicator of a channel
// The pauses between polls of the store for the sender's id grow from the first to the last one. Store::get is not
// used, because it blocks all other threads that use the store.
constexpr Milliseconds kFirstPause{1}, kLastPause{20};

std::string id_key(const std::string& name) { return "slip/" + name; }

}  // namespace

Communicator make_communicator(c10d::Store& store, const std::string& name, int size, int rank, const Device& device,
                               Milliseconds timeout) {
  const std::string key = id_key(name);
  UniqueId id;
  if (rank == 0) {
    id = UniqueId::create({.host = {}, .lifetime = timeout});
    const std::string text = id.text();
    store.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
  } else {
    const std::vector<std::uint8_t> text = store.get(key);
    id = UniqueId::parse(std::string(text.begin(), text.end()), {}, {});
  }
  return Communicator::init(id, size, rank, device, {.timeout = timeout, .init_timeout = timeout, .name = name}, {});
}

Channel::Channel(const c10::intrusive_ptr<c10d::Store>& store, Ends ends, Milliseconds timeout)
    : store_(store),
      ends_(ends),
      timeout_(timeout),
      works_(memory_.device(), ends.is_sender ? ends.from : ends.to, Name("messages")) {}

void Channel::connect() {
  std::thread thread([self = shared_from_this()] { self->make(); });
  pthread_setname_np(thread.native_handle(), "slip channel");
  thread.detach();
}

// Returns when the sender has passed its id to the store.
void Channel::await_id(const std::string& name) {
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  for (Milliseconds pause = kFirstPause; !store_->check({id_key(name)}); pause = std::min(2 * pause, kLastPause)) {
    if (std::chrono::steady_clock::now() > deadline)
      throw std::runtime_error(
          c10::str("rank ", ends_.from, " has not called send() to this rank within ", timeout_.count(), " ms"));
    std::this_thread::sleep_for(pause);
    const std::lock_guard lock(mutex_);
    if (!error_.empty()) throw std::runtime_error(error_);
  }
}

void Channel::make() {
  const std::string name = c10::str("messages from ", ends_.from, " to ", ends_.to);
  std::optional<Communicator> made;
  std::string error;
  try {
    if (!ends_.is_sender) await_id(name);
    made.emplace(
        make_communicator(*store_, name, 2, ends_.is_sender ? kSender : kReceiver, memory_.device(), timeout_));
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  std::vector<std::pair<SlipWorkPtr, std::string>> failed;
  {
    const std::lock_guard lock(mutex_);
    if (error_.empty()) {  // not closed
      comm_ = std::move(made);
      error_ = error;
    }
    for (const auto& [work, memory] : waiting_) {
      if (std::string reason = issue(*work, memory); !reason.empty()) failed.emplace_back(work, std::move(reason));
    }
    waiting_.clear();
  }
  // Without the lock: failed() runs the callbacks of the work's future, which may send by this channel.
  for (const auto& [work, reason] : failed) work->failed(reason);
}

WorkPtr Channel::start(const at::Tensor& tensor) {
  const Staged memory = stage(tensor, ends_.is_sender ? Access::kRead : Access::kWrite);
  const bool out = ends_.is_sender;
  const SlipWorkPtr work = works_.make(
      {.type = out ? c10d::OpType::SEND : c10d::OpType::RECV,
       .name = out ? "slip:send" : "slip:recv",
       .inputs = out ? Tensors{tensor} : Tensors{},
       .outputs = out ? Tensors{} : Tensors{tensor},
       .staging = {memory.memory},
       .context = c10::str("message from rank ", ends_.from, " to rank ", ends_.to, " (below: ranks 0 and 1): ")});
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ || !error_.empty()) reason = issue(*work, memory);
    else waiting_.emplace_back(work, memory);
  }
  if (!reason.empty()) work->failed(reason);
  return work;
}

// Enqueues the message. Returns why it could not be enqueued; then the caller must end the work, without the lock.
// Empty: it is enqueued. REQUIRES: mutex_
std::string Channel::issue(SlipWork& work, const Staged& memory) {
  if (!comm_) return error_;
  try {
    works_.issue(work, {memory}, [&](StreamRef stream) {
      const Range range = memory_.range(memory.memory);
      if (ends_.is_sender) comm_->send(range, kReceiver, stream, {});
      else comm_->recv(range, kSender, stream, {});
    });
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

void Channel::close() {
  std::optional<Communicator> comm;
  std::vector<std::pair<SlipWorkPtr, Staged>> waiting;
  {
    const std::lock_guard lock(mutex_);
    error_ = "the process group was destroyed";
    comm.swap(comm_);
    waiting.swap(waiting_);
  }
  for (const auto& [work, memory] : waiting) work->failed(error_);
  if (comm && !works_.is_idle()) comm->abort();
}

}  // namespace slip::distributed
