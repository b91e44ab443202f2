#include "transport/net/registrations.hpp"

#include <utility>

namespace slip::transport {
namespace {

constexpr std::uintptr_t kPageBytes = 4096;
// The registrations that a connection keeps. If operations once used more at the same time, it keeps that many.
constexpr std::size_t kMaxKept = 16;

// Whole pages: later operations will probably use the neighbouring bytes.
std::span<std::byte> pages_of(std::span<std::byte> bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t begin = first / kPageBytes * kPageBytes;
  const std::uintptr_t end = (first + bytes.size() + kPageBytes - 1) / kPageBytes * kPageBytes;
  return {reinterpret_cast<std::byte*>(begin), end - begin};
}

bool overlap(std::span<const std::byte> one, std::span<const std::byte> other) {
  return one.data() < other.data() + other.size() && other.data() < one.data() + one.size();
}

}  // namespace

const NetMemory* Registrations::find(std::span<std::byte> bytes, std::uint64_t operation, std::uint64_t done) {
  if (bytes.empty()) return nullptr;
  Registered* oldest = nullptr;
  for (Registered& one : all_) {
    if (!one.ended && one.memory->contains(bytes.data(), bytes.size())) {
      one.last_used = operation;
      return one.memory.get();
    }
    if (one.last_used < done && (!oldest || (!oldest->ended && (one.ended || one.last_used < oldest->last_used))))
      oldest = &one;
  }
  // The replaced one ends first, because a network may have a limit.
  if (oldest && (oldest->ended || all_.size() >= kMaxKept)) all_.erase(all_.begin() + (oldest - all_.data()));
  std::unique_ptr<NetMemory> memory = connection_.register_memory(pages_of(bytes));
  return all_.emplace_back(Registered{std::move(memory), operation}).memory.get();
}

void Registrations::end(std::span<const std::byte> bytes, std::uint64_t done) {
  std::erase_if(all_, [&](Registered& one) {
    if (!overlap(one.memory->bytes(), bytes)) return one.ended && one.last_used < done;
    one.ended = true;
    return one.last_used < done;
  });
}

}  // namespace slip::transport
