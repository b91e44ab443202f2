// GroupCatalog: the weight groups of a WeightStreamer, by number and by name, as Loader takes them.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flow/weights/loader.hpp"
#include "slip/weight_streamer.hpp"

namespace slip::flow {

// A group of these parts, one after the other. Their values have numbers from `first_value` on.
WeightGroup group_of(const std::vector<GraphValue>& parts, std::size_t first_value);

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
  bool is_of_files(std::uint32_t group) const { return PackedGroups::has_files(sources_[group]); }
  // Loads take this group from pinned memory, where compress() has put it: they do not read its files.
  bool is_packed_in_memory(std::uint32_t group) const {
    return groups_[group].compressed_bytes > 0 && packed_[group]->image.block;
  }

  // The functions below set the place of a group (device, host memory or disk), before a loader is made.
  void clear_places() {
    for (WeightGroup& group : groups_) {
      group.resident = group.from_disk = false;
      group.compressed_bytes = 0;
    }
  }
  // Finds the groups that are compressed in files. `all`: compresses the others, into pinned memory of the device.
  void compress(const Device& device, bool all, Here here);
  bool any_packed() const {
    return std::ranges::any_of(packed_, [](const PackedGroups::Group& group) { return group != nullptr; });
  }
  std::uint64_t packed_bytes(std::uint32_t group) const { return packed_[group] ? packed_[group]->bytes : 0; }
  void use_packed(std::uint32_t group) { groups_[group].compressed_bytes = packed_bytes(group); }
  void place_resident(std::uint32_t group, std::uint64_t offset) {
    groups_[group].resident = true;
    groups_[group].offset = offset;
  }
  void leave_on_disk(std::uint32_t group) { groups_[group].from_disk = true; }

  // For a Loader that runs.
  LoadedGroups loaded() const { return {groups_, values_, sources_, pinned_, packed_}; }
  // For a Loader that proves, on a simulated device. The ranges of pinned memory are left out, because they belong to
  // another device: the loader wraps the same bytes.
  LoadedGroups proven() const { return {groups_, values_, sources_, {}, packed_}; }

 private:
  std::vector<std::string> names_;
  std::vector<WeightGroup> groups_;
  std::vector<GraphValue> values_;
  std::vector<WeightSource> sources_;
  std::vector<Range> pinned_;
  std::vector<PackedGroups::Group> packed_;         // by group; null: it is not compressed
  std::unique_ptr<const PackedGroups> own_packed_;  // has the memory of those that compress() made
  std::map<std::string, std::uint32_t, std::less<>> by_name_;
};

}  // namespace slip::flow
