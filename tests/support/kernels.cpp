#include "support/kernels.hpp"

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "support/cuda_kernels.hpp"
#include "support/devices.hpp"

namespace slip::test {
namespace {

void store(const Args& args) {
  const auto out = args.out<std::uint32_t>(0);
  std::fill(out.begin(), out.end(), args.scalar<std::uint32_t>(0));
}

void mix(const Args& args) {
  for (std::uint32_t& word : args.out<std::uint32_t>(0)) word = mixed(word, args.scalar<std::uint32_t>(0));
}

void add(const Args& args) {
  const auto in = args.in<std::uint32_t>(0);
  const auto out = args.out<std::uint32_t>(0);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = in[i] + args.scalar<std::uint32_t>(0);
}

void fail(const Args&) { throw std::runtime_error("on purpose"); }
void fault(const Args&) { throw DeviceFault("illegal address 0xdead"); }

std::atomic_ref<std::uint32_t> word(std::uint32_t& plain) { return std::atomic_ref(plain); }

int arrived(MeetingFlags& flags) {
  int count = 0;
  for (std::uint32_t& flag : flags.arrived) count += static_cast<int>(word(flag).load(std::memory_order_acquire));
  return count;
}

void arrive_at(MeetingFlags& flags) {
  const int index = flags.next.fetch_add(1);
  if (index >= MeetingFlags::kMax) throw std::runtime_error("too many members of a meeting");
  word(flags.arrived[index]).store(1, std::memory_order_release);
}

void arrive_and_wait(MeetingFlags& flags) {
  arrive_at(flags);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (arrived(flags) < flags.expected) {
    if (word(flags.missed).load() != 0 || std::chrono::steady_clock::now() > until) {
      word(flags.missed).store(1);
      return;
    }
    std::this_thread::yield();
  }
}

void meet(const Args& args) { arrive_and_wait(*args.scalar<MeetingFlags*>(0)); }

}  // namespace

const Kernel& idle_kernel() {
  static const Kernel kKernel{"idle", [](const Args&) {}, [](const Args&, CUstream_st*) {}};
  return kKernel;
}

const Kernel& store_kernel() {
  static const Kernel kKernel{"store", store, cuda::store};
  return kKernel;
}

const Kernel& mix_kernel() {
  static const Kernel kKernel{"mix", mix, cuda::mix};
  return kKernel;
}

const Kernel& add_kernel() {
  static const Kernel kKernel{"add", add, cuda::add};
  return kKernel;
}

const Kernel& fail_kernel() {
  static const Kernel kKernel{"fail", fail};
  return kKernel;
}

const Kernel& fault_kernel() {
  static const Kernel kKernel{"fault", fault};
  return kKernel;
}

const Kernel& meet_kernel() {
  static const Kernel kKernel{"meet", meet, cuda::meet};
  return kKernel;
}

Trail::Trail(const Device& device) : device_(device), word_(device.alloc(4, MemoryKind::kDevice, "trail")) {
  device.fill(word_, 0);
  device.sync();
}

void Trail::leave(StreamRef stream, std::uint32_t number, const Cost& cost) const {
  stream.launch(mix_kernel(), {.writes = {word_}, .scalars = {number}}, cost);
}

testing::AssertionResult Trail::is(std::initializer_list<std::uint32_t> numbers) const {
  std::uint32_t expected = 0;
  for (const std::uint32_t number : numbers) expected = mixed(expected, number);
  if (words_of(device_, word_).front() == expected) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "the ops did not run in the order " << testing::PrintToString(numbers);
}

Meeting::Meeting(int expected) : flags_(cuda::meeting_flags()) {
  if (!flags_) flags_ = &own_;
  flags_->expected = expected;
}

void Meeting::meet() { arrive_and_wait(*flags_); }
void Meeting::arrive() { arrive_at(*flags_); }
bool Meeting::complete() const { return arrived(*flags_) >= flags_->expected && word(flags_->missed).load() == 0; }

std::vector<std::uint32_t> words_of(const Device& device, Range range) {
  const Buffer host = device.alloc(range.bytes, MemoryKind::kPinned, "words");
  device.sync();
  device.copy(host, range);
  const auto view = host.host_read<std::uint32_t>();
  return {view.begin(), view.end()};
}

void set_words(Buffer& buffer, std::uint32_t value) {
  const auto view = buffer.host_write<std::uint32_t>();
  std::fill(view.begin(), view.end(), value);
}

void poke_words(Buffer& buffer, std::uint32_t value) {
  std::fill_n(static_cast<std::uint32_t*>(buffer.native()), buffer.bytes() / sizeof value, value);
}

bool peek_words(const Buffer& buffer, std::uint32_t value) {
  const auto* words = static_cast<const std::uint32_t*>(buffer.native());
  return std::all_of(words, words + buffer.bytes() / sizeof value,
                     [value](std::uint32_t word) { return word == value; });
}

bool all_words(const Buffer& buffer, std::uint32_t value) {
  const auto view = buffer.host_read<std::uint32_t>();
  return std::all_of(view.begin(), view.end(), [value](std::uint32_t word) { return word == value; });
}

}  // namespace slip::test
