#include "watch/words.hpp"

namespace slip {

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

template <class Enum>
std::optional<Enum> find(std::string_view word, const char* (*name)(Enum), Enum last) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    if (word == name(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

std::optional<RecordKind> record_kind_of(std::string_view word) {
  return find(word, record_kind_name, RecordKind::kError);
}
std::optional<OpKind> op_kind_of(std::string_view word) { return find(word, kind_name, OpKind::kPlan); }
std::optional<Engine> engine_of(std::string_view word) { return find(word, engine_name, Engine::kHost); }
std::optional<MemoryKind> memory_kind_of(std::string_view word) {
  return find(word, memory_kind_name, MemoryKind::kPageable);
}

}  // namespace slip
