#include "group.hpp"

#include <Python.h>

namespace slip::distributed {
namespace {

// Releases the GIL while a group is destroyed. The destructor waits for threads that complete works, and these threads
// may need the GIL.
class WithoutPython {
 public:
  WithoutPython() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutPython() {
    if (state_) PyEval_RestoreThread(state_);
  }
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace

SlipGroup::SlipGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Milliseconds timeout)
    : TorchGroup(rank, size),
      store_(store),
      timeout_(timeout),
      works_(memory_.device(), rank, Name("collectives")),
      comm_(make_communicator(*store, "torch", size, rank, memory_.device(), timeout)) {
  init();
}

SlipGroup::~SlipGroup() {
  const WithoutPython unlocked;
  for (const auto& [ends, channel] : channels_) channel->close();
  comm_.reset();  // returns when the calls of this rank are complete
}

std::uint64_t SlipGroup::getSequenceNumberForGroup() {
  return calls_.load(std::memory_order_relaxed);  // relaxed: a count, which publishes nothing
}

WorkPtr SlipGroup::start(SlipWork::Call call, std::vector<Staged> staged, const WorkStream::Enqueue& enqueue) {
  for (const Staged& memory : staged) call.staging.push_back(memory.memory);
  const SlipWorkPtr work = works_.make(std::move(call));
  works_.issue(*work, std::move(staged), enqueue);
  calls_.fetch_add(1, std::memory_order_relaxed);  // relaxed: see above
  return work;
}

WorkPtr SlipGroup::send(Tensors& tensors, int to, int tag) { return message(tensors, to, tag, true); }
WorkPtr SlipGroup::recv(Tensors& tensors, int from, int tag) { return message(tensors, from, tag, false); }

WorkPtr SlipGroup::recvAnysource(Tensors&, int) {
  TORCH_CHECK(false, "slip recv: a receive from any rank is not supported; name the sender");
}

WorkPtr SlipGroup::message(const Tensors& tensors, int peer, int tag, bool out) {
  const char* const call = out ? "send" : "recv";
  const at::Tensor& tensor = require_one(tensors, call);
  TORCH_CHECK(peer >= 0 && peer < getSize() && peer != getRank(), "slip ", call, ": rank ", peer, " of ", getSize(),
              " ranks; expected another rank than ", getRank());
  TORCH_CHECK(tag == 0, "slip ", call, ": the tag is ", tag,
              "; messages between two ranks are received in the order in which they were sent, so only tag 0 is "
              "supported");
  const Channel::Ends ends{out ? getRank() : peer, out ? peer : getRank(), out};
  std::shared_ptr<Channel> channel;
  {
    const std::lock_guard lock(channels_mutex_);
    const std::pair key{ends.from, ends.to};
    if (const auto found = channels_.find(key); found != channels_.end()) {
      channel = found->second;
    } else {
      channel = std::make_shared<Channel>(store_, ends, timeout_);
      channel->connect();
      channels_.emplace(key, channel);  // last: if connect() throws, no message may wait for this channel
    }
  }
  return channel->start(tensor);
}

}  // namespace slip::distributed
