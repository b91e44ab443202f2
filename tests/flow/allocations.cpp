#include "flow/allocations.hpp"

#include <cstdlib>
#include <new>

namespace {

thread_local std::uint64_t calls = 0;

void* allocate(std::size_t bytes) {
  ++calls;
  if (void* const memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

std::uint64_t slip::test::allocations() { return calls; }
