#include "backend/cpu/strict.hpp"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <vector>

#include "base/fail.hpp"
#include "base/thread.hpp"

namespace slip::backend {
namespace {

struct Region {
  std::byte* data;
  std::size_t bytes;  // whole pages
  runtime::DeviceCore* core;
};

bool contains(const Region& region, const void* address) {
  return address >= region.data && address < region.data + region.bytes;
}

struct State {
  // Held while an op runs; guards no data: page protection is per process, so only one op of all strict devices runs at
  // a time.
  base::Mutex running;
  base::ForkMutex mutex;
  std::vector<Region> regions SLIP_GUARDED_BY(mutex);
};

void renew_running();
State& strict_state() { return base::process_wide<State, renew_running>(); }

// `running` is held while an op runs, so fork() does not wait for it. In the child no op runs, so it gets a free mutex.
void renew_running() { new (&strict_state().running) base::Mutex; }

thread_local sigjmp_buf* t_escape = nullptr;
thread_local void* t_fault_address = nullptr;
struct sigaction g_previous;

void on_fault(int signal, siginfo_t* info, void* context) {
  if (t_escape) {
    t_fault_address = info->si_addr;
    siglongjmp(*t_escape, 1);
  }
  // A strict op did not cause this signal: behave as if this handler were not installed.
  if (g_previous.sa_flags & SA_SIGINFO && g_previous.sa_sigaction)
    return g_previous.sa_sigaction(signal, info, context);
  sigaction(SIGSEGV, &g_previous, nullptr);
}

void install_handler() {
  [[maybe_unused]] static const bool kInstalled = [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGSEGV, &action, &g_previous) == 0;
  }();
}

std::size_t page() {
  static const std::size_t kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return kPage;
}

std::size_t whole_pages(std::size_t bytes) { return (bytes + page() - 1) / page() * page(); }

// Sets the protection of the pages that the piece touches, if it is strict device memory.
void protect(const ArgBytes& piece, int protection) {
  if (piece.bytes == 0) return;
  State& state = strict_state();
  const base::LockGuard lock(state.mutex);
  for (const Region& region : state.regions) {
    if (!contains(region, piece.data)) continue;
    const auto first = reinterpret_cast<std::uintptr_t>(piece.data) / page() * page();
    const auto last = reinterpret_cast<std::uintptr_t>(piece.data) + piece.bytes;
    mprotect(reinterpret_cast<void*>(first), whole_pages(last - first), protection);
  }
}

void protect_all(int protection) {
  State& state = strict_state();
  const base::LockGuard lock(state.mutex);
  for (const Region& region : state.regions) mprotect(region.data, region.bytes, protection);
}

std::string describe_address(void* address) {
  State& state = strict_state();
  const base::LockGuard lock(state.mutex);
  const auto* byte = static_cast<std::byte*>(address);
  for (const Region& region : state.regions) {
    if (contains(region, address))
      return fmt::format("byte {} of the device allocation of {} bytes at {}", byte - region.data, region.bytes,
                         static_cast<void*>(region.data));
  }
  return fmt::format("address {}, which is not device memory", address);
}

}  // namespace

std::atomic<int> strict_regions{0};

bool touches_strict_memory(PackedOp& op) {
  State& state = strict_state();
  const base::LockGuard lock(state.mutex);
  const std::span<const ArgBytes> touched(pieces(op), std::size_t{op.reads} + op.writes);
  for (const ArgBytes& piece : touched) {
    for (const Region& region : state.regions) {
      if (contains(region, piece.data)) return true;
    }
  }
  return false;
}

void StrictScope::open() {
  PackedOp& op = op_;
  strict_state().running.lock();
  if (op.opaque) {  // it declared nothing, so nothing can be checked
    protect_all(PROT_READ | PROT_WRITE);
    return;
  }
  for (std::size_t i = 0; i < op.reads; ++i) protect(pieces(op)[i], PROT_READ);
  for (std::size_t i = op.reads; i < std::size_t{op.reads} + op.writes; ++i)
    protect(pieces(op)[i], PROT_READ | PROT_WRITE);
}

void StrictScope::close() {
  if (op_.opaque) protect_all(PROT_NONE);
  for (std::size_t i = 0; i < std::size_t{op_.reads} + op_.writes; ++i) protect(pieces(op_)[i], PROT_NONE);
  strict_state().running.unlock();
}

void StrictScope::guarded(const std::function<void()>& function) const {
  install_handler();
  sigjmp_buf escape;
  if (sigsetjmp(escape, 1) == 0) {
    t_escape = &escape;
    try {
      function();
    } catch (...) {
      t_escape = nullptr;
      throw;
    }
    t_escape = nullptr;
    return;
  }
  t_escape = nullptr;
  base::fail(ErrorCode::kUndeclaredAccess, here(op_), "it accessed {} in a way that it did not declare",
             describe_address(t_fault_address));
}

void* strict_allocate(runtime::DeviceCore& core, std::size_t bytes) {
  void* data = mmap(nullptr, whole_pages(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  State& state = strict_state();
  const base::LockGuard lock(state.mutex);
  state.regions.push_back({static_cast<std::byte*>(data), whole_pages(bytes), &core});
  // relaxed: an op that uses this memory is issued after this returned, and its queue orders the two.
  strict_regions.fetch_add(1, std::memory_order_relaxed);
  return data;
}

void strict_deallocate(void* data, std::size_t bytes) noexcept {
  {
    State& state = strict_state();
    const base::LockGuard lock(state.mutex);
    std::erase_if(state.regions, [data](const Region& region) { return region.data == data; });
    strict_regions.fetch_sub(1, std::memory_order_relaxed);
  }
  munmap(data, whole_pages(bytes));
}

}  // namespace slip::backend
