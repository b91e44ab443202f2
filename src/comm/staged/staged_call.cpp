#include "comm/staged/staged_call.hpp"

#include <algorithm>
#include <bit>
#include <map>

namespace slip::comm {
namespace {

// Smaller parts would not be faster: running a part takes some tens of microseconds, in which 1 MiB is copied.
constexpr std::uint64_t kMinPartBytes = 1 << 20;
constexpr std::uint64_t kAlignment = 4096;      // parts of a block begin at multiples of it, so that copies are aligned
constexpr std::uint64_t kCacheLine = 64;        // messages begin at multiples of it in a slot
constexpr std::uint64_t kMaxPiece = 512 << 10;  // the maximum bytes of a piece of a message

std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }
std::uint64_t round_up(std::uint64_t a, std::uint64_t b) { return divide_up(a, b) * b; }

// The maximum number of blocks in the input or output of any rank. The same on all ranks, unlike blocks_of().
std::uint64_t rows_of(const Call& call, int nranks) {
  std::uint64_t rows = 1;
  for (const int rank : {call.root, (call.root + 1) % nranks}) {
    const Blocks blocks = blocks_of(call, rank, nranks);
    rows = std::max({rows, blocks.in, blocks.out});
  }
  return rows;
}

// The share of a slot that a link gets in each part: `bytes` of the slot, in pieces of at most `piece` bytes. The
// shares of all other ranks fit into a slot.
//
// Both ranks of a link must put the same pieces into the same part, whatever other messages are in their groups. So
// `bytes` and `piece` depend on `nranks` alone. Otherwise part i of one rank could wait for part i + 1 of its peer,
// which waits for part i + 1 of the first rank: a deadlock.
struct LinkShare {
  explicit LinkShare(int nranks) {
    const std::uint64_t max = kStagingBytes / static_cast<std::uint64_t>(std::max(nranks - 1, 1));
    bytes = std::max(max / kCacheLine * kCacheLine, kCacheLine);
    piece = std::clamp(std::bit_floor(max), kCacheLine, kMaxPiece);
  }
  std::uint64_t bytes = 0, piece = 0;
};

// Writes the steps in their order. The stream awaits part p only before part p + kStagingSlots reuses its slot, so that
// kStagingSlots parts are under way at the same time.
template <class CopyIn, class CopyOut>
void write(std::uint64_t parts, std::vector<StagedStep>& steps, const CopyIn& copy_in, const CopyOut& copy_out) {
  using Kind = StagedStep::Kind;
  const auto slot_of = [](std::uint64_t part) { return static_cast<std::uint32_t>(part % kStagingSlots); };
  const auto end = [&](std::uint64_t part) {
    steps.push_back({.kind = Kind::kAwait, .slot = slot_of(part), .copy = {}});
    copy_out(part, slot_of(part));
  };
  for (std::uint64_t part = 0; part < parts; ++part) {
    if (part >= kStagingSlots) end(part - kStagingSlots);
    copy_in(part, slot_of(part));
    steps.push_back({.kind = Kind::kPost, .slot = slot_of(part), .copy = {}});
  }
  for (std::uint64_t part = parts - std::min(parts, kStagingSlots); part < parts; ++part) end(part);
}

}  // namespace

StagedCollective::StagedCollective(const Call& call, int rank, int nranks)
    : call_(call), blocks_(blocks_of(call, rank, nranks)) {
  const std::uint64_t size = bytes_of(call.type), rows = rows_of(call, nranks);
  const std::uint64_t bytes = std::clamp(rows * call.block_bytes() / kStagingSlots, kMinPartBytes, kStagingBytes);
  parts_ = std::max<std::uint64_t>(divide_up(rows * call.block_bytes(), bytes), 1);
  const std::uint64_t max_elements = kStagingBytes / rows / size;
  part_elements_ = divide_up(call.elements, parts_);
  if (parts_ > 1) part_elements_ = std::min(round_up(part_elements_, kAlignment / size), max_elements);
  if (part_elements_ > 0) parts_ = divide_up(call.elements, part_elements_);
}

Call StagedCollective::part(std::uint64_t index) const {
  Call result = call_;
  result.elements = std::min(part_elements_, call_.elements - index * part_elements_);
  return result;
}

std::uint64_t StagedCollective::offset(std::uint64_t index) const {
  return index * part_elements_ * bytes_of(call_.type);
}

bool StagedCollective::operator==(const StagedCollective& other) const {
  return Signature::of(call_, 0) == Signature::of(other.call_, 0) && call_.scale.bytes == other.call_.scale.bytes;
}

StagedMessages::StagedMessages(std::span<const UserMessage> messages, int nranks)
    : messages_(messages.begin(), messages.end()) {
  struct Link {
    std::vector<std::uint32_t> messages;  // indices into messages_
    std::size_t next = 0;                 // the first of `messages` that is not divided completely
    std::uint64_t offset = 0;             // the bytes of that message that already have pieces
    std::uint64_t share_index = 0;        // of this link's share in the input or output of the slot
  };
  std::map<std::pair<bool, int>, Link> links;
  std::uint64_t counts[2] = {};  // the number of links that receive, and of links that send
  for (std::uint32_t i = 0; i < messages_.size(); ++i) {
    messages_[i].data = nullptr;
    const auto [link, is_new] = links.try_emplace({messages_[i].out, messages_[i].rank});
    if (is_new) link->second.share_index = counts[messages_[i].out ? 1 : 0]++;
    link->second.messages.push_back(i);
  }
  const LinkShare share(nranks);
  first_.push_back(0);
  for (bool any = true; any;) {
    any = false;
    for (auto& [key, link] : links) {
      for (std::uint64_t used = 0; link.next < link.messages.size();) {
        const std::uint32_t index = link.messages[link.next];
        const std::uint64_t bytes = std::min(share.piece, messages_[index].bytes - link.offset);
        if (used + bytes > share.bytes) break;
        pieces_.push_back({index, link.offset, bytes, link.share_index * share.bytes + used});
        used += round_up(bytes, kCacheLine);
        link.offset += bytes;
        if (link.offset == messages_[index].bytes) {
          ++link.next;
          link.offset = 0;
        }
      }
      any = any || link.next < link.messages.size();
    }
    first_.push_back(pieces_.size());
  }
}

std::span<const StagedMessages::Piece> StagedMessages::pieces(std::uint64_t part) const {
  return std::span(pieces_).subspan(first_[part], first_[part + 1] - first_[part]);
}

std::uint64_t StagedMessages::bytes() const {
  std::uint64_t sum = 0;
  for (const UserMessage& message : messages_) sum += message.bytes;
  return sum;
}

std::uint64_t parts_of(const StagedCall& call) {
  return std::visit([](const auto& one) { return one.parts(); }, call);
}

void write_steps(const StagedCollective& call, const std::byte* input, std::byte* output,
                 std::vector<StagedStep>& steps) {
  using Kind = StagedStep::Kind;
  const auto copy = [&](Kind kind, std::uint64_t part, std::uint32_t slot, std::byte* data, std::uint64_t rows) {
    const std::uint64_t bytes = call.part(part).block_bytes();
    if (rows == 0 || bytes == 0) return;
    steps.push_back({.kind = kind,
                     .from_input = kind == Kind::kToDevice && call.in_place(),
                     .slot = slot,
                     .copy = {data + call.offset(part), 0, bytes, rows, call.call().block_bytes()}});
  };
  write(
      call.parts(), steps,
      [&](std::uint64_t part, std::uint32_t slot) {
        copy(Kind::kToHost, part, slot, const_cast<std::byte*>(input), call.blocks().in);  // only read
      },
      [&](std::uint64_t part, std::uint32_t slot) { copy(Kind::kToDevice, part, slot, output, call.blocks().out); });
}

void write_steps(const StagedMessages& call, std::span<const UserMessage> messages, std::vector<StagedStep>& steps) {
  using Kind = StagedStep::Kind;
  const auto copy = [&](Kind kind, std::uint64_t part, std::uint32_t slot) {
    for (const StagedMessages::Piece& piece : call.pieces(part)) {
      if (piece.bytes == 0 || call.message(piece).out != (kind == Kind::kToHost)) continue;
      steps.push_back({.kind = kind,
                       .slot = slot,
                       .copy = {messages[piece.message].data + piece.offset, piece.slot_offset, piece.bytes}});
    }
  };
  write(
      call.parts(), steps, [&](std::uint64_t part, std::uint32_t slot) { copy(Kind::kToHost, part, slot); },
      [&](std::uint64_t part, std::uint32_t slot) { copy(Kind::kToDevice, part, slot); });
}

}  // namespace slip::comm
