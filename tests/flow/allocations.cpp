#include "flow/allocations.hpp"

#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

std::uint64_t slip::test::allocations() { return 0; }

#else

namespace {

thread_local std::uint64_t calls = 0;

void* try_allocate(std::size_t bytes) noexcept {
  ++calls;
  return std::malloc(bytes > 0 ? bytes : 1);
}

void* allocate(std::size_t bytes) {
  if (void* const memory = try_allocate(bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
// std::stable_sort uses this form, and frees the memory with the operators below.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return try_allocate(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return try_allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

std::uint64_t slip::test::allocations() { return calls; }

#endif
