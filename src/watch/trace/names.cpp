#include "watch/trace/names.hpp"

#include <algorithm>
#include <array>

namespace slip::watch {

const char* record_kind_name(RecordKind kind) {
  switch (kind) {
    case RecordKind::kStreamOpen: return "stream open";
    case RecordKind::kStreamClose: return "stream close";
    case RecordKind::kSubmit: return "submit";
    case RecordKind::kRun: return "run";
    case RecordKind::kEventRecord: return "event record";
    case RecordKind::kEventWait: return "event wait";
    case RecordKind::kBarrier: return "barrier";
    case RecordKind::kSync: return "sync";
    case RecordKind::kQuery: return "query";
    case RecordKind::kHostRead: return "host read";
    case RecordKind::kHostWrite: return "host write";
    case RecordKind::kHostEnd: return "host end";
    case RecordKind::kAlloc: return "alloc";
    case RecordKind::kFree: return "free";
    case RecordKind::kError: return "error";
  }
  return "unknown";
}

namespace {

// The enumerators are few, so a linear search is enough.
template <class Enum, std::size_t kCount, const char* (*kNameOf)(Enum)>
std::optional<Enum> find(std::string_view name) {
  static const auto kNames = [] {
    std::array<std::string_view, kCount> names;
    for (std::size_t i = 0; i < kCount; ++i) names[i] = kNameOf(static_cast<Enum>(i));
    return names;
  }();
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Enum>(found - kNames.begin());
}

}  // namespace

std::optional<RecordKind> record_kind_of(std::string_view name) {
  return find<RecordKind, kRecordKinds, record_kind_name>(name);
}
std::optional<OpKind> op_kind_of(std::string_view name) { return find<OpKind, kOpKinds, kind_name>(name); }
std::optional<Engine> engine_of(std::string_view name) { return find<Engine, kEngines, engine_name>(name); }
std::optional<MemoryKind> memory_kind_of(std::string_view name) {
  return find<MemoryKind, kMemoryKinds, memory_kind_name>(name);
}

}  // namespace slip::watch
