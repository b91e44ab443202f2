#include "nccl/operators.hpp"

#include <atomic>

namespace slip::nccl {

int PreMulOps::add(PreMulOp op) {
  static std::atomic<int> last{ncclNumOps};
  // relaxed: only the uniqueness of the number counts. After 2^31 operators the numbers start again.
  op.id = last.fetch_add(1, std::memory_order_relaxed);
  if (op.id >= ncclMaxRedOp) last.store(ncclNumOps, std::memory_order_relaxed);  // relaxed: as above
  const base::LockGuard lock(lock_);
  ops_.push_back(op);
  return op.id;
}

bool PreMulOps::remove(int id) {
  const base::LockGuard lock(lock_);
  return std::erase_if(ops_, [&](const PreMulOp& op) { return op.id == id; }) > 0;
}

std::optional<PreMulOp> PreMulOps::find(int id) const {
  const base::LockGuard lock(lock_);
  for (const PreMulOp& op : ops_) {
    if (op.id == id) return op;
  }
  return std::nullopt;
}

void* Registrations::add() {
  const base::LockGuard lock(lock_);
  return &all_.emplace_back();
}

bool Registrations::remove(const void* handle) {
  const base::LockGuard lock(lock_);
  return all_.remove_if([&](const char& one) { return &one == handle; }) > 0;
}

}  // namespace slip::nccl
