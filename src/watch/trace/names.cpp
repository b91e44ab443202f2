#include "watch/trace/names.hpp"

#include <array>

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

// The names of an enum's kCount enumerators. They are few, so a linear search is enough.
template <class Enum, std::size_t kCount>
class NameTable {
 public:
  explicit NameTable(const char* (*name)(Enum)) {
    for (std::size_t i = 0; i < names_.size(); ++i) names_[i] = name(static_cast<Enum>(i));
  }
  std::optional<Enum> find(std::string_view name) const {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (names_[i] == name) return static_cast<Enum>(i);
    }
    return std::nullopt;
  }

 private:
  std::array<std::string_view, kCount> names_;
};

}  // namespace

std::optional<RecordKind> record_kind_of(std::string_view name) {
  static const NameTable<RecordKind, kRecordKinds> kNames(record_kind_name);
  return kNames.find(name);
}
std::optional<OpKind> op_kind_of(std::string_view name) {
  static const NameTable<OpKind, kOpKinds> kNames(kind_name);
  return kNames.find(name);
}
std::optional<Engine> engine_of(std::string_view name) {
  static const NameTable<Engine, kEngines> kNames(engine_name);
  return kNames.find(name);
}
std::optional<MemoryKind> memory_kind_of(std::string_view name) {
  static const NameTable<MemoryKind, kMemoryKinds> kNames(memory_kind_name);
  return kNames.find(name);
}

}  // namespace slip
