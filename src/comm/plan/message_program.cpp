#include "comm/plan/message_program.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "comm/link/link.hpp"
#include "runtime/core.hpp"

namespace slip::comm {
namespace {

// A message is sent in parts of kPartBytes. One piece of the program begins at most kParts of them on each link: half
// of what a link holds, because the parts of the previous piece may still be under way. Both ranks count the same
// parts, so they never wait for room on the link at the same time.
constexpr std::uint64_t kPartBytes = 512 << 10, kParts = LinkEnd::kDepth / 2;

std::uint64_t parts_of(const UserMessage& message) {
  return std::max<std::uint64_t>((message.bytes + kPartBytes - 1) / kPartBytes, 1);
}

bool on_same_link(const UserMessage& a, const UserMessage& b) { return a.rank == b.rank && a.out == b.out; }

// The number of parts of all messages before this one on the same link.
std::uint64_t parts_before(std::span<const UserMessage> messages, std::size_t index) {
  std::uint64_t parts = 0;
  for (const UserMessage& one : messages.first(index)) {
    if (on_same_link(one, messages[index])) parts += parts_of(one);
  }
  return parts;
}

std::string text_of(const Range& range) {
  return fmt::format("bytes {} to {} of buffer '{}'", range.offset, range.offset + range.bytes,
                     range.block->name.text());
}

[[noreturn]] void refuse(const Range& received, const Range& other, const char* what, Here here) {
  base::fail(ErrorCode::kInvalidValue, here,
             "a group receives {} and {} {}, which overlap: its messages travel at the same time, so give each its own "
             "bytes, or use two groups",
             text_of(received), what, text_of(other));
}

}  // namespace

MessageProgramBuilder::MessageProgramBuilder(std::span<const UserMessage> messages) : messages_(messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::uint64_t parts = parts_before(messages, i) + parts_of(messages[i]);
    message_pieces_ = std::max(message_pieces_, (parts + kParts - 1) / kParts);
  }
}

Task MessageProgramBuilder::task_of(int channel) const {
  Task task = task_;
  task.graph = &graphs_[static_cast<std::size_t>(channel)];
  task.channel = channel;
  task.channels = channels();
  return task;
}

void MessageProgramBuilder::write(int channel, std::uint64_t piece, Program& program) const {
  if (schedule_) schedule_->program->write(task_of(channel), piece, program);
  else write_messages(piece, program);
}

void MessageProgramBuilder::write_messages(std::uint64_t piece, Program& program) const {
  const std::uint64_t begin = piece * kParts, end = begin + kParts;
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    const UserMessage& message = messages_[i];
    const std::uint64_t before = parts_before(messages_, i), parts = parts_of(message);
    for (std::uint64_t part = begin > before ? begin - before : 0; part < parts && before + part < end; ++part) {
      const std::uint64_t offset = part * kPartBytes, bytes = std::min(kPartBytes, message.bytes - offset);
      const BufferLocation place{BufferSpace::kAddress, 0, reinterpret_cast<std::uint64_t>(message.data) + offset};
      if (message.out) program.send(message.rank, place, bytes);
      else program.receive(message.rank, place, bytes);
      program.steps.back().begins = part == 0 && message.offset == 0;
      program.steps.back().value = message.whole != 0 ? message.whole : message.bytes;
    }
  }
  // Each piece waits until the parts of the previous piece are done; the last piece waits for all parts. Each link gets
  // one wait, written at its last message.
  const bool last = piece + 1 == message_pieces_;
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    const UserMessage& message = messages_[i];
    const bool later = std::ranges::any_of(messages_.subspan(i + 1),
                                           [&](const UserMessage& one) { return on_same_link(one, message); });
    const std::uint64_t parts = parts_before(messages_, i) + parts_of(message);
    if (later || (!last && parts <= begin)) continue;
    const std::uint64_t left = last ? 0 : std::min(parts, end) - begin;
    if (message.out) program.sent(message.rank, left);
    else program.received(message.rank, left);
  }
}

bool overlap(const Range& a, const Range& b) {
  return runtime::address(a) < runtime::address(b) + b.bytes && runtime::address(b) < runtime::address(a) + a.bytes;
}

void require_apart(std::span<const Range> sent, std::span<const Range> received, std::vector<Range>& sorted,
                   Here here) {
  if (received.empty()) return;
  const auto by_address = [](const Range& a, const Range& b) { return runtime::address(a) < runtime::address(b); };
  sorted.assign(received.begin(), received.end());
  std::sort(sorted.begin(), sorted.end(), by_address);
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    if (overlap(sorted[i - 1], sorted[i])) refuse(sorted[i], sorted[i - 1], "also", here);
  }
  // The received ranges are disjoint. If a sent range overlaps any of them, it overlaps the one that begins at or
  // before its first byte, or the next one.
  for (const Range& range : sent) {
    const auto after = std::upper_bound(sorted.begin(), sorted.end(), range, by_address);
    if (after != sorted.end() && overlap(*after, range)) refuse(*after, range, "sends", here);
    if (after != sorted.begin() && overlap(*std::prev(after), range)) refuse(*std::prev(after), range, "sends", here);
  }
}

}  // namespace slip::comm
