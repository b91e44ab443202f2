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
constexpr std::size_t kMeetings = 4096;  // far more than live at once, so that nobody has to give them back

// The same as mixed() of the host.
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

// In place, too: no word is read by another thread than the one that writes it.
__global__ void add_words(std::uint32_t* out, const std::uint32_t* in, std::size_t count, std::uint32_t value) {
  for (std::size_t i = first_index(); i < count; i += index_step()) out[i] = in[i] + value;
}

__global__ void do_nothing() {}

__device__ std::uint64_t gpu_now_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Words of host memory: volatile, so that each look goes there.
__global__ void meet_guests(volatile std::uint32_t* came, volatile std::uint32_t* missed, int place, int expected) {
  came[place] = 1;
  __threadfence_system();
  const std::uint64_t until = gpu_now_ns() + kMissedNs;
  for (;;) {
    int here = 0;
    for (int i = 0; i < Guests::kMax; ++i) here += static_cast<int>(came[i]);
    if (here >= expected) return;
    if (*missed != 0 || gpu_now_ns() > until) {
      *missed = 1;
      __threadfence_system();
      return;
    }
    __nanosleep(1000);  // each look is a read over the bus
  }
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw Error(Code::kLaunchFailed, std::string(what) + ": " + cudaGetErrorString(error));
}

unsigned int blocks_for(std::size_t count) {
  return static_cast<unsigned int>(std::clamp<std::size_t>((count + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

std::atomic<Guests*> meetings{nullptr};
std::atomic<std::size_t> next_meeting{0};

}  // namespace

void prepare() {
  if (meetings.load()) return;
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, kMeetings * sizeof(Guests), cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess)
    throw std::runtime_error("no pinned memory for the meetings of kernels");
  meetings.store(static_cast<Guests*>(memory));  // for the life of the process
}

Guests* guests() {
  Guests* const all = meetings.load();
  return all ? new (all + next_meeting.fetch_add(1) % kMeetings) Guests{} : nullptr;
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
  auto* const guests = args.scalar<Guests*>(0);
  const int place = guests->places.fetch_add(1);
  if (place >= Guests::kMax) throw std::runtime_error("too many guests at a meeting");
  // One address on both sides, as everywhere with 64 bits; asking for the GPU's would be a call that a graph's capture
  // may refuse.
  meet_guests<<<1, 1, 0, stream>>>(guests->came, &guests->missed, place, guests->expected);
  check(cudaGetLastError(), "meet");
}

}  // namespace slip::test::cuda
