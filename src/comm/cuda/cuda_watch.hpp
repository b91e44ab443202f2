// SharedPages: pinned host memory of all ranks of a communicator. CudaWatch: the thread that watches the calls of one
// rank on the device. It maps memory that other ranks publish, and writes the ledger. After an error, a lost rank, a
// mismatch or the deadline it ends the calls that wait, which nothing else would end.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/sync.hpp"
#include "comm/api/gpu_calls.hpp"
#include "comm/cuda/cuda_kernels.hpp"
#include "comm/cuda/cuda_peers.hpp"
#include "comm/cuda/cuda_streams.hpp"
#include "transport/memory/segment.hpp"

namespace slip::comm {

struct ControlMemory;

class SharedPages {
 public:
  // All ranks call it. Maps the memory and makes it accessible to the GPU.
  void share(transport::Bootstrap& bootstrap, int gpu);
  ~SharedPages();

  RankPage* pages() const { return reinterpret_cast<RankPage*>(segment_.data()); }
  MessageBox& box(int from, int to) const;
  PublishedMemory* published() const;

 private:
  std::size_t flag_bytes() const;
  transport::Segment segment_;
  int nranks_ = 0;
};

class CudaWatch {
 public:
  struct Setup {
    transport::Bootstrap* bootstrap = nullptr;
    SharedPages* shared = nullptr;
    PeerMemory* peers = nullptr;
    ControlMemory* control = nullptr;
    MeetingMode mode = MeetingMode::kTogether;
  };
  void start(const Setup& setup, GpuWatch watch);
  void stop() noexcept { thread_.stop(); }

  std::optional<Error> error() const { return watch_.error ? watch_.error() : std::nullopt; }
  // The enqueuing thread notes each call, so that the watch thread can name it and fail its stream.
  struct Noted {
    std::uint64_t ticket = 0;
    Signature signature;
    bool is_counted = true;  // RankPage::finished counts it
    CallUse use = CallUse::kRuns;
  };
  void note(const Noted& call, runtime::StreamState& stream, std::uint64_t position);
  void drain() noexcept { pending_.drain(); }

 private:
  void look();
  void keep_ledger(std::uint32_t finished, std::uint32_t begun);
  void check_progress(std::uint32_t finished, std::uint32_t begun);
  void check_messages();
  bool fail_message(int other, std::int64_t since_ns);
  void report_mismatch();
  RankPage& own_page() const { return setup_.shared->pages()[setup_.bootstrap->rank()]; }
  bool is_missing(int rank) const;
  int first_missing() const;
  Noted call_at(std::uint32_t count) const;
  std::string name_of(std::uint32_t count) const;
  void count_calls();
  void release_waits();

  Setup setup_;
  GpuWatch watch_;
  WatchThread thread_;
  bool failed_ = false;
  bool stops_ = false;  // `stop` was enqueued
  std::uint32_t last_finished_ = 0;
  std::uint32_t last_counted_ = 0;
  int looks_ = 0;
  std::int64_t joined_ns_ = 0;  // when this rank's wait in its call began, in now_ns(); 0: it is in no call

  struct MessageWait {
    std::int64_t since_ns = 0;  // 0: no stream of this rank waits for the other one
    std::uint32_t copied = 0;   // of the messages between both: one more is progress
  };
  std::vector<MessageWait> message_waits_;  // by rank

  mutable base::Mutex mutex_;
  std::array<Noted, 256> noted_ SLIP_GUARDED_BY(mutex_){};
  std::uint32_t count_ SLIP_GUARDED_BY(mutex_) = 0;
  bool any_captured_ SLIP_GUARDED_BY(mutex_) = false;
  PendingStreams pending_;
};

}  // namespace slip::comm
