// GroupCatalog: the weight groups of a WeightStreamer, by number and by name, as Loader takes them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "flow/weights/loader.hpp"
#include "slip/weight_streamer.hpp"

namespace slip::flow {

class GroupCatalog {
 public:
  // Throws kInvalidValue for groups without a name, with the same name or without bytes.
  GroupCatalog(const std::vector<StreamedGroup>& groups, Here here);

  std::size_t size() const { return names_.size(); }
  const std::string& name(std::uint32_t group) const { return names_[group]; }
  std::uint32_t find(std::string_view name, Here here) const;  // throws kInvalidValue, with the names that there are
  void check(std::uint32_t group, Here here) const;
  const std::vector<WeightGroup>& groups() const { return groups_; }
  const WeightGroup& operator[](std::uint32_t group) const { return groups_[group]; }
  bool is_of_files(std::uint32_t group) const { return of_files_[group]; }

  // Before a loader is made: whether a group stays on the device, and where; whether it stays on disk.
  void clear_places() {
    for (WeightGroup& group : groups_) group.resident = group.from_disk = false;
  }
  void place_resident(std::uint32_t group, std::uint64_t offset) {
    groups_[group].resident = true;
    groups_[group].offset = offset;
  }
  void leave_on_disk(std::uint32_t group) { groups_[group].from_disk = true; }

  // For a Loader that runs, and for one that proves, on another device.
  LoadedGroups loaded() const { return {groups_, values_, sources_, pinned_}; }
  // A range of pinned memory belongs to its device: in a proof the same bytes are wrapped for the simulated device.
  LoadedGroups proven() const { return {groups_, values_, sources_}; }

 private:
  std::vector<std::string> names_;
  std::vector<WeightGroup> groups_;
  std::vector<GraphValue> values_;
  std::vector<WeightSource> sources_;
  std::vector<Range> pinned_;
  std::vector<bool> of_files_;
  std::map<std::string, std::uint32_t, std::less<>> by_name_;
};

}  // namespace slip::flow
