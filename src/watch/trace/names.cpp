#include "watch/trace/names.hpp"

#include <algorithm>
#include <array>

namespace slip::watch {

namespace {

// By RecordKind.
constexpr const char* kRecordKindNames[] = {"stream open", "stream close", "submit", "run",   "event record",
                                            "event wait",  "barrier",      "sync",   "query", "host read",
                                            "host write",  "host end",     "alloc",  "free",  "error"};
static_assert(std::size(kRecordKindNames) == kRecordKinds);

}  // namespace

const char* record_kind_name(RecordKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < kRecordKinds ? kRecordKindNames[index] : "unknown";
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
