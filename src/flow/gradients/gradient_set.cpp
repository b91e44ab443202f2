#include "flow/gradients/gradient_set.hpp"

#include <algorithm>
#include <cstring>

#include "base/fail.hpp"

namespace slip::flow {
namespace {

constexpr char kEnd = '\0';  // ends each entry of a text; no parameter name may contain it

std::string options_text(const GradientOptions& options) {
  return fmt::format("buckets {} ({} then {} bytes), compression {}, {}, a check every {} steps{}",
                     bucket_rule_name(options.buckets), options.ddp.first_bytes, options.ddp.bytes,
                     compression_name(options.compression), options.hook ? "a hook" : "no hook", options.check_every,
                     options.norm ? ", norm" : "");
}

std::vector<std::string> entries_of(const std::string& text) {
  std::vector<std::string> entries;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find(kEnd, at);
    entries.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return entries;
}

// The texts of all ranks, by rank. All ranks call it; it waits for all of them.
std::vector<std::string> gather_texts(Communicator& comm, const Device& device, StreamRef stream,
                                      const std::string& own, Here here) {
  const auto ranks = static_cast<std::size_t>(comm.nranks());
  Buffer size = device.alloc(8, MemoryKind::kPinned, "size of a text", here);
  Buffer sizes = device.alloc(8 * ranks, MemoryKind::kPinned, "sizes of texts", here);
  size.host_write<std::uint64_t>()[0] = own.size();
  meet_on_gpu(comm, device, here);
  comm.all_gather(sizes, size, stream, here);
  stream.sync(here);
  std::vector<std::uint64_t> lengths;
  for (const std::uint64_t length : sizes.host_read<std::uint64_t>()) lengths.push_back(length);
  if (lengths[static_cast<std::size_t>(comm.rank())] != own.size())
    throw Error(ErrorCode::kUnsupported, "ranks cannot exchange data on devices that run no functions (run_functions)",
                here);
  const std::size_t longest = std::max<std::size_t>(*std::max_element(lengths.begin(), lengths.end()), 1);
  Buffer text = device.alloc(longest, MemoryKind::kPinned, "text", here);
  Buffer all = device.alloc(longest * ranks, MemoryKind::kPinned, "texts", here);
  std::memcpy(text.host_write<char>().begin(), own.data(), own.size());
  meet_on_gpu(comm, device, here);
  comm.all_gather(all, text, stream, here);
  stream.sync(here);
  std::vector<std::string> texts;
  const HostView<const char> view = all.host_read<char>();
  for (std::size_t rank = 0; rank < ranks; ++rank) texts.emplace_back(view.begin() + longest * rank, lengths[rank]);
  return texts;
}

}  // namespace

bool on_gpu(const Device& device) { return device.info().name.starts_with("cuda"); }

void meet_on_gpu(Communicator& comm, const Device& device, Here here) {
  // An allocation of 0 bytes only synchronises the ranks.
  if (on_gpu(device)) static_cast<void>(comm.allocate(0, "gradients: meeting", here));
}

std::string Parameter::text() const { return fmt::format("'{}' ({} bytes of {})", name, bytes, data_type_name(type)); }

std::uint32_t ParameterList::add(std::string_view name, std::uint64_t bytes, DataType type, Here here) {
  Parameter added{std::string(name), bytes, type};
  const auto wrong = [&](const std::string& what) {
    base::fail(ErrorCode::kInvalidValue, here, "parameter {} {}", added.text(), what);
  };
  if (name.empty() || name.find(kEnd) != std::string_view::npos) wrong("has no name that can be compared");
  if (!can_reduce(type)) wrong("is of a type that cannot be reduced");
  if (bytes == 0 || bytes % bytes_of(type) != 0) wrong("has a size that is not one of whole elements");
  const auto index = static_cast<std::uint32_t>(list_.size());
  const auto [found, is_new] = by_name_.try_emplace(added.name, index);
  if (!is_new) wrong(fmt::format("is there already: as {}", list_[found->second].text()));
  list_.push_back(std::move(added));
  return index;
}

void require_same(const ParameterList& parameters, const GradientOptions& options, Communicator& comm,
                  const Device& device, StreamRef stream, Here here) {
  std::string own = options_text(options) + kEnd;
  for (const Parameter& parameter : parameters) own += parameter.text() + kEnd;
  const std::vector<std::string> texts = gather_texts(comm, device, stream, own, here);
  meet_on_gpu(comm, device, here);  // all ranks have freed the memory of the texts
  std::vector<std::vector<std::string>> all;
  std::size_t max_entries = 0;
  for (const std::string& text : texts) {
    all.push_back(entries_of(text));
    max_entries = std::max(max_entries, all.back().size());
  }
  const auto entry = [&](std::size_t rank, std::size_t i) {
    return i < all[rank].size() ? all[rank][i] : std::string("none");
  };
  for (std::size_t i = 0; i < max_entries; ++i) {
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      if (entry(rank, i) == entry(0, i)) continue;
      const std::string what = i == 0 ? "options" : fmt::format("parameter {}", i - 1);
      base::fail(ErrorCode::kMismatch, here, "gradients: {} on rank {}: {}; on rank 0: {}", what, rank, entry(rank, i),
                 entry(0, i));
    }
  }
}

GradientLayout::GradientLayout(const ParameterList& parameters, const std::vector<std::uint32_t>& arrival)
    : firsts_(parameters.size()) {
  std::vector<DataType> types;
  for (const std::uint32_t parameter : arrival) {
    if (std::find(types.begin(), types.end(), parameters[parameter].type) == types.end())
      types.push_back(parameters[parameter].type);
  }
  for (const DataType type : types) {
    sections_.push_back({type, bytes_});
    for (const std::uint32_t parameter : arrival) {
      if (parameters[parameter].type != type) continue;
      order_.push_back(parameter);
      firsts_[parameter] = bytes_;
      const std::uint64_t bytes = (parameters[parameter].bytes + kLine - 1) / kLine * kLine;
      profile_.gradients.push_back({bytes, 0, 0, static_cast<std::uint32_t>(sections_.size() - 1)});
      bytes_ += bytes;
    }
  }
}

DataType GradientLayout::type_at(std::uint64_t byte) const {
  return (std::ranges::upper_bound(sections_, byte, {}, &Section::first) - 1)->type;
}

}  // namespace slip::flow
