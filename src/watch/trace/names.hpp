// Maps enumerators to their names in trace files, and names to enumerators. An unknown name gives nullopt. Used by the
// reader and the writer of traces.
#pragma once

#include <optional>
#include <string_view>

#include "slip/buffer.hpp"
#include "slip/observer.hpp"

namespace slip::watch {

inline constexpr std::size_t kRecordKinds = static_cast<std::size_t>(RecordKind::kError) + 1;
inline constexpr std::size_t kMemoryKinds = static_cast<std::size_t>(MemoryKind::kPageable) + 1;

const char* record_kind_name(RecordKind kind);

std::optional<RecordKind> record_kind_of(std::string_view name);
std::optional<OpKind> op_kind_of(std::string_view name);
std::optional<Engine> engine_of(std::string_view name);
std::optional<MemoryKind> memory_kind_of(std::string_view name);

}  // namespace slip::watch
