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

// The words of an enum's kCount enumerators, looked up by comparison: they are few.
template <class Enum, std::size_t kCount>
class Words {
 public:
  explicit Words(const char* (*name)(Enum)) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] = name(static_cast<Enum>(i));
  }
  std::optional<Enum> find(std::string_view word) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if (words_[i] == word) return static_cast<Enum>(i);
    }
    return std::nullopt;
  }

 private:
  std::array<std::string_view, kCount> words_;
};

}  // namespace

std::optional<RecordKind> record_kind_of(std::string_view word) {
  static const Words<RecordKind, kRecordKinds> kWords(record_kind_name);
  return kWords.find(word);
}
std::optional<OpKind> op_kind_of(std::string_view word) {
  static const Words<OpKind, kOpKinds> kWords(kind_name);
  return kWords.find(word);
}
std::optional<Engine> engine_of(std::string_view word) {
  static const Words<Engine, kEngines> kWords(engine_name);
  return kWords.find(word);
}
std::optional<MemoryKind> memory_kind_of(std::string_view word) {
  static const Words<MemoryKind, kMemoryKinds> kWords(memory_kind_name);
  return kWords.find(word);
}

}  // namespace slip
