#include "flow/weights/streamed_groups.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "runtime/core.hpp"

namespace slip::flow {

StallClock::StallClock(StreamRef stream) {
  for (Span& span : spans_) {
    stream.record(span.before);
    stream.record(span.after);
  }
  stream.sync();  // the memory of an event can be used again only when its record has been reached
}

StallClock::Span* StallClock::free_span() {
  for (int round = 0; round < 2; ++round) {
    for (Span& span : spans_) {
      if (!span.pending) return &span;
    }
    collect();
  }
  return nullptr;
}

void StallClock::collect() {
  for (Span& span : spans_) {
    if (!span.pending) continue;
    try {
      if (!span.after.query()) continue;
      total_ += (span.after - span.before).count() * 1000;
    } catch (const Error&) {  // its stream has failed: there is no time
    }
    span.pending = false;
  }
}

StreamedGroups::StreamedGroups(const Device& device, const GroupCatalog& catalog, const StreamerMemory& sizes,
                               Range memory, GroupLoader& loader)
    : device_(device),
      catalog_(catalog),
      sizes_(sizes),
      memory_(memory),
      loads_(device, memory.slice(sizes.resident_bytes, sizes.ring_bytes), loader,
             std::make_unique<RingContents>(sizes.ring_bytes, catalog.size(), kMaxOpen)),
      stalls_(loads_.stream()) {
  open_.reserve(kMaxOpen);
}

std::size_t StreamedGroups::begin(PassTable& pass, PassTable& after) {
  const std::size_t broken_off = open_.size();
  for (const OpenUse& open : open_) {
    if (!open.entry) continue;
    try {
      loads_.end_use(*open.entry, open.stream);
    } catch (const Error&) {
      // The stream is destroyed or has failed, so no event can say when its work ends. Only here the host waits.
      try {
        device_.sync();
      } catch (const Error&) {  // some stream has failed; its work does not run any more
      }
      --open.entry->open;
    }
  }
  open_.clear();
  loads_.begin(pass, after);
  loads_.issue_ahead();
  return broken_off;
}

StreamedGroups::Acquired StreamedGroups::acquire(std::uint32_t group, std::uint32_t use, StreamRef stream, Here here) {
  if (open_.size() == kMaxOpen)
    base::fail(ErrorCode::kOutOfMemory, here, "group '{}' is the {}th that is acquired and not released",
               catalog_.name(group), kMaxOpen + 1);
  check_stream(stream, here);
  const WeightGroup& bytes = catalog_[group];
  RingLoads::Use found = loads_.next_use(group);
  Acquired acquired{.range = {}, .planned = found.planned, .skipped = found.skipped};
  if (bytes.in_place()) {
    acquired.range = memory_.slice(bytes.offset, bytes.bytes);
  } else {
    loads_.load(found, group, bytes.bytes, stream);
    if (!found.entry) no_place(group, here);
    acquired.range = memory_.slice(sizes_.resident_bytes + found.entry->begin, bytes.bytes);
    const auto wait = [&] { stream.wait(found.entry->loaded, here); };
    if (found.on_demand) stalls_.measure(stream, wait);
    else if (found.must_wait) wait();
  }
  loads_.begin_use(found, stream);
  open_.push_back({group, use, found.entry, stream});
  return acquired;
}

std::uint32_t StreamedGroups::release(std::uint32_t group, StreamRef stream, Here here) {
  // Of several uses of the group, the one that was acquired in this stream ends.
  const auto is_same = [&](const OpenUse& open) { return open.group == group && open.stream == stream; };
  auto open = std::ranges::find_if(open_, is_same);
  if (open == open_.end()) open = std::ranges::find(open_, group, &OpenUse::group);
  if (open == open_.end())
    base::fail(ErrorCode::kInvalidValue, here, "release of group '{}', which is not acquired", catalog_.name(group));
  check_stream(stream, here);
  if (open->entry) loads_.end_use(*open->entry, stream);
  const std::uint32_t use = open->use;
  open_.erase(open);
  loads_.issue_ahead();
  return use;
}

void StreamedGroups::check_stream(StreamRef stream, Here here) const {
  const runtime::StreamState& state = *stream.state(here);
  if (state.core->id != device_.id())
    base::fail(ErrorCode::kInvalidHandle, here, "{} is of device {}, the weights are on device {}",
               runtime::stream_text(state, stream.id()), state.core->id, device_.id());
}

void StreamedGroups::no_place(std::uint32_t group, Here here) const {
  std::string held;
  std::uint64_t bytes = 0;
  for (const OpenUse& open : open_) {
    if (!open.entry) continue;
    held += fmt::format("{}'{}'", held.empty() ? "" : ", ", catalog_.name(open.group));
    bytes += open.entry->end - open.entry->begin;
  }
  base::fail(ErrorCode::kOutOfMemory, here,
             "group '{}' of {} bytes has no place in the ring of {} bytes ({}): acquired and not released are {}, with "
             "{} bytes; release them first, or give a larger budget",
             catalog_.name(group), catalog_[group].bytes, sizes_.ring_bytes, base::format_bytes(sizes_.ring_bytes),
             held, bytes);
}

}  // namespace slip::flow
