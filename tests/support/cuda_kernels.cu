#include <algorithm>
#include <stdexcept>
#include <string>

#include "slip/error.hpp"
#include "support/cuda_kernels.hpp"

namespace slip::test::cuda {
namespace {

constexpr unsigned int kThreads = 128;
constexpr std::size_t kMaxBlocks = 256;
constexpr std::uint64_t kMissedNs = 2'000'000'000;
constexpr std::size_t kMeetings =
    4096;  // many more than exist at the same time, so that they are reused without being freed

// The device version of mixed() in kernels.hpp.
__device__ std::uint32_t mixed_on_gpu(std::uint32_t state, std::uint32_t value) {
  state = (state ^ value) * 0x9e3779b1u;
  return state ^ (state >> 15);
}

__device__ std::size_t first_index() { return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ std::size_t index_step() { return std::size_t{gridDim.x} * blockDim.x; }

__global__ void store_words(std::uint32_t* out, std::size_t count, std::uint32_t value) {
  for (std::size_t i = first_index(); i < count; i += index_step()) out[i] = value;
}

__global__ void mix_words(std::uint32_t* out, std::size_t count, std::uint32_t value) {
  for (std::size_t i = first_index(); i < count; i += index_step()) out[i] = mixed_on_gpu(out[i], value);
}

// Also works in place: each word is read only by the thread that writes it.
__global__ void add_words(std::uint32_t* out, const std::uint32_t* in, std::size_t count, std::uint32_t value) {
  for (std::size_t i = first_index(); i < count; i += index_step()) out[i] = in[i] + value;
}

__global__ void do_nothing() {}

__device__ std::uint64_t gpu_now_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// The flags are in host memory: volatile, so that each poll reads them there.
__global__ void meet_others(volatile std::uint32_t* arrived, volatile std::uint32_t* missed, int index, int expected) {
  arrived[index] = 1;
  __threadfence_system();
  const std::uint64_t until = gpu_now_ns() + kMissedNs;
  for (;;) {
    int count = 0;
    for (int i = 0; i < MeetingFlags::kMax; ++i) count += static_cast<int>(arrived[i]);
    if (count >= expected) return;
    if (*missed != 0 || gpu_now_ns() > until) {
      *missed = 1;
      __threadfence_system();
      return;
    }
    __nanosleep(1000);  // each poll is a read over the bus
  }
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw Error(ErrorCode::kLaunchFailed, std::string(what) + ": " + cudaGetErrorString(error));
}

unsigned int blocks_for(std::size_t count) {
  return static_cast<unsigned int>(std::clamp<std::size_t>((count + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

std::atomic<MeetingFlags*> meetings{nullptr};
std::atomic<std::size_t> next_meeting{0};

}  // namespace

void prepare() {
  if (meetings.load()) return;
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, kMeetings * sizeof(MeetingFlags), cudaHostAllocPortable | cudaHostAllocMapped) !=
      cudaSuccess)
    throw std::runtime_error("no pinned memory for the meetings of kernels");
  meetings.store(static_cast<MeetingFlags*>(memory));  // for the life of the process
}

MeetingFlags* meeting_flags() {
  MeetingFlags* const all = meetings.load();
  return all ? new (all + next_meeting.fetch_add(1) % kMeetings) MeetingFlags{} : nullptr;
}

void store(const Args& args, CUstream_st* stream) {
  const auto out = args.out<std::uint32_t>(0);
  store_words<<<blocks_for(out.size()), kThreads, 0, stream>>>(out.data(), out.size(), args.scalar<std::uint32_t>(0));
  check(cudaGetLastError(), "store");
}

void mix(const Args& args, CUstream_st* stream) {
  const auto out = args.out<std::uint32_t>(0);
  mix_words<<<blocks_for(out.size()), kThreads, 0, stream>>>(out.data(), out.size(), args.scalar<std::uint32_t>(0));
  check(cudaGetLastError(), "mix");
}

void add(const Args& args, CUstream_st* stream) {
  const auto in = args.in<std::uint32_t>(0);
  const auto out = args.out<std::uint32_t>(0);
  add_words<<<blocks_for(out.size()), kThreads, 0, stream>>>(out.data(), in.data(), out.size(),
                                                             args.scalar<std::uint32_t>(0));
  check(cudaGetLastError(), "add");
}

void nothing(const Args&, CUstream_st* stream) {
  do_nothing<<<1, 1, 0, stream>>>();
  check(cudaGetLastError(), "nothing");
}

void meet(const Args& args, CUstream_st* stream) {
  auto* const flags = args.scalar<MeetingFlags*>(0);
  const int index = flags->next.fetch_add(1);
  if (index >= MeetingFlags::kMax) throw std::runtime_error("too many members of a meeting");
  // The host's address is also the GPU's address, as always with 64 bits (unified addressing). A call that asks for the
  // GPU's address could fail during a capture.
  meet_others<<<1, 1, 0, stream>>>(flags->arrived, &flags->missed, index, flags->expected);
  check(cudaGetLastError(), "meet");
}

}  // namespace slip::test::cuda
