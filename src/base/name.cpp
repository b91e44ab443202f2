#include "slip/name.hpp"

#include <unordered_set>

#include "base/sync.hpp"
#include "base/thread.hpp"

namespace slip {
namespace {

struct Table {
  base::ForkMutex mutex;
  // Node-based, so the addresses of the names never change.
  std::unordered_set<std::string> names SLIP_GUARDED_BY(mutex);
};

}  // namespace

Name::Name(std::string_view text) {
  if (text.empty()) return;
  Table& table = base::process_wide<Table>();
  const base::LockGuard lock(table.mutex);
  text_ = &*table.names.emplace(text).first;
}

}  // namespace slip
