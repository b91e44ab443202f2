// Names: the table behind Name, and the names of enumerators. Also the checked accessors of kernel arguments and
// ranges.
#include <unordered_set>

#include "base/fail.hpp"
#include "base/sync.hpp"
#include "base/thread.hpp"
#include "slip/buffer.hpp"
#include "slip/name.hpp"
#include "slip/op.hpp"

namespace slip {
namespace {

struct NameTable {
  base::ForkMutex mutex;
  // Node-based, so the addresses of the names never change.
  std::unordered_set<std::string> names SLIP_GUARDED_BY(mutex);
};

}  // namespace

Name::Name(std::string_view text) {
  if (text.empty()) return;
  NameTable& table = base::process_wide<NameTable>();
  const base::LockGuard lock(table.mutex);
  text_ = &*table.names.emplace(text).first;
}

const char* op_kind_name(OpKind kind) {
  switch (kind) {
    case OpKind::kKernel: return "kernel";
    case OpKind::kCopy: return "copy";
    case OpKind::kFill: return "fill";
    case OpKind::kHost: return "host function";
    case OpKind::kWaitValue: return "wait value";
    case OpKind::kWriteValue: return "write value";
    case OpKind::kRecord: return "record";
    case OpKind::kWait: return "wait";
    case OpKind::kAlloc: return "alloc";
    case OpKind::kFree: return "free";
    case OpKind::kPlan: return "plan";
    case OpKind::kExchange: return "exchange";
  }
  return "unknown";
}

const char* engine_name(Engine engine) {
  switch (engine) {
    case Engine::kNone: return "none";
    case Engine::kCompute: return "compute";
    case Engine::kCopyIn: return "copy in";
    case Engine::kCopyOut: return "copy out";
    case Engine::kHost: return "host";
    case Engine::kCommunication: return "communication";
  }
  return "unknown";
}

const char* memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDevice: return "device";
    case MemoryKind::kPinned: return "pinned";
    case MemoryKind::kPageable: return "pageable";
  }
  return "unknown";
}

const ArgBytes& Args::at(std::span<const ArgBytes> pieces, std::size_t i, const char* which) {
  if (i >= pieces.size())
    base::fail(ErrorCode::kInvalidValue, {}, "the kernel uses {}({}), but the launch passed only {} such ranges", which,
               i, pieces.size());
  return pieces[i];
}

const Scalar& Args::scalar_at(std::size_t i) const {
  if (i >= scalars_.size())
    base::fail(ErrorCode::kInvalidValue, {}, "the kernel uses scalar({}), but the launch passed only {} scalars", i,
               scalars_.size());
  return scalars_[i];
}

Range Range::slice(std::size_t first, std::size_t count) const {
  if (first > bytes || count > bytes - first)
    throw Error(ErrorCode::kInvalidValue,
                fmt::format("a slice of {} bytes at {} ends beyond its range of {} bytes", count, first, bytes));
  return {block, id, offset + first, count};
}

}  // namespace slip
