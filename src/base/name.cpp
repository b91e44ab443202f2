#include "slip/name.hpp"

#include <unordered_set>

#include "base/fork_mutex.hpp"

namespace slip {
namespace {

struct Table {
  base::ForkMutex mutex;
  std::unordered_set<std::string> names;  // node-based, so the addresses of the names never change
};

// Never destroyed: names are used by threads that may outlive static destruction.
Table& table() {
  static Table* const kTable = new Table;
  return *kTable;
}

}  // namespace

Name::Name(std::string_view text) {
  if (text.empty()) return;
  Table& names = table();
  const base::LockGuard lock(names.mutex);
  text_ = &*names.names.emplace(text).first;
}

}  // namespace slip
