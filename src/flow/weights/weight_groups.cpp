#include "flow/weights/weight_groups.hpp"

#include <algorithm>
#include <deque>
#include <map>

namespace slip::flow {
namespace {

// A piece of one weight and the ops that use it. Pieces never overlap.
struct UsedBytes {
  ValueBytes bytes;
  std::vector<std::uint32_t> ops;
};

void join(ValueBytes& into, const ValueBytes& other) {
  const std::uint64_t end = std::max(into.offset + into.bytes, other.offset + other.bytes);
  into.offset = std::min(into.offset, other.offset);
  into.bytes = end - into.offset;
}

std::vector<UsedBytes> pieces_of(const Graph& graph) {
  std::map<std::uint32_t, std::map<std::uint64_t, UsedBytes>> by_weight;  // by value, then by offset
  const std::span<const GraphOp> ops = graph.ops();
  for (std::uint32_t op = 0; op < ops.size(); ++op) {
    for (const ValueBytes& read : ops[op].reads) {
      if (graph[read.value].role != ValueRole::kWeight || read.bytes == 0) continue;
      UsedBytes piece{read, {op}};
      std::map<std::uint64_t, UsedBytes>& pieces = by_weight[read.value.index];
      auto at = pieces.upper_bound(read.offset);
      if (at != pieces.begin()) --at;
      while (at != pieces.end() && at->first < piece.bytes.offset + piece.bytes.bytes) {
        const ValueBytes& there = at->second.bytes;
        if (there.offset + there.bytes <= piece.bytes.offset) {
          ++at;
          continue;
        }
        join(piece.bytes, there);
        piece.ops.insert(piece.ops.end(), at->second.ops.begin(), at->second.ops.end());
        at = pieces.erase(at);
      }
      pieces[piece.bytes.offset] = std::move(piece);
    }
  }
  std::vector<UsedBytes> result;
  for (auto& [value, pieces] : by_weight) {
    for (auto& [offset, piece] : pieces) {
      std::ranges::sort(piece.ops);
      piece.ops.erase(std::unique(piece.ops.begin(), piece.ops.end()), piece.ops.end());
      result.push_back(std::move(piece));
    }
  }
  std::ranges::stable_sort(result, {}, [](const UsedBytes& piece) { return piece.ops.front(); });
  return result;
}

bool may_join(const WeightGroup& group, const UsedBytes& piece, std::uint64_t small) {
  return (group.bytes < small || piece.bytes.bytes < small) && piece.ops.back() - group.ops.front() <= kNearOps;
}

struct RingRange {
  std::uint64_t begin = 0, end = 0;
  std::uint32_t first_op = 0, last_op = 0;
  bool overlaps(std::uint64_t from, std::uint64_t to) const { return begin < to && from < end; }
};

// If [from, to) overlaps a load that is still needed at `first_op`: the end of that load.
std::optional<std::uint64_t> blocked_until(const std::deque<RingRange>& laid, std::uint64_t from, std::uint64_t to,
                                           std::uint32_t first_op) {
  for (const RingRange& load : laid) {
    if (load.overlaps(from, to) && load.last_op >= first_op) return load.end;
  }
  return std::nullopt;
}

}  // namespace

std::vector<WeightGroup> make_weight_groups(const Graph& graph) {
  std::vector<WeightGroup> groups;
  for (UsedBytes& piece : pieces_of(graph)) {
    if (groups.empty() || !may_join(groups.back(), piece, graph.options().join_bytes)) groups.emplace_back();
    WeightGroup& group = groups.back();
    const std::uint64_t offset = aligned(group.bytes);
    group.parts.push_back({piece.bytes, offset});
    group.bytes = offset + piece.bytes.bytes;
    group.ops.insert(group.ops.end(), piece.ops.begin(), piece.ops.end());
    std::ranges::sort(group.ops);
    group.ops.erase(std::unique(group.ops.begin(), group.ops.end()), group.ops.end());
  }
  return groups;
}

std::vector<WeightLoad> make_loads(const std::vector<WeightGroup>& groups, std::uint32_t near) {
  std::vector<WeightLoad> loads;
  for (std::uint32_t index = 0; index < groups.size(); ++index) {
    for (const std::uint32_t op : groups[index].ops) {
      const bool shared = !loads.empty() && loads.back().group == index && op - loads.back().last_op <= near;
      if (!shared) loads.push_back({.group = index, .first_op = op, .last_op = op});
      loads.back().last_op = op;
    }
  }
  std::ranges::stable_sort(loads, {}, &WeightLoad::first_op);
  return loads;
}

const WeightGroup::Part* part_of(const WeightGroup& group, const ValueBytes& bytes) {
  for (const WeightGroup::Part& part : group.parts) {
    if (part.bytes.value == bytes.value && part.bytes.offset <= bytes.offset &&
        bytes.offset + bytes.bytes <= part.bytes.offset + part.bytes.bytes)
      return &part;
  }
  return nullptr;
}

bool lay_ring(const std::vector<WeightGroup>& groups, std::span<WeightLoad> loads, std::uint64_t bytes) {
  std::deque<RingRange> laid;  // loads of this step, the latest last; completely overwritten ones are dropped
  std::uint64_t head = 0;
  for (WeightLoad& load : loads) {
    const std::uint64_t size = ring_bytes_of(groups[load.group]);
    int wraps = 0;
    for (;;) {
      if (head + size > bytes) {
        head = 0;
        if (++wraps > 1) return false;
        if (size > bytes) continue;
      }
      const auto blocked = blocked_until(laid, head, head + size, load.first_op);
      if (!blocked) break;
      head = *blocked;
    }
    load.offset = head;
    load.after_op = kNoOp;
    load.step_before = false;
    for (const RingRange& old : laid) {
      if (old.overlaps(head, head + size) && (load.after_op == kNoOp || old.last_op > load.after_op))
        load.after_op = old.last_op;
    }
    std::erase_if(laid, [&](const RingRange& old) { return old.begin >= head && old.end <= head + size; });
    laid.push_back({head, head + size, load.first_op, load.last_op});
    head += size;
  }
  // A load that overwrites no earlier load of this step overwrites loads of the step before, which used the same places
  // in the ring. So it waits for the last op of those loads.
  for (std::size_t i = 0; i < loads.size(); ++i) {
    WeightLoad& load = loads[i];
    if (load.after_op != kNoOp) continue;
    for (const WeightLoad& old : loads) {
      const RingRange there{old.offset, old.offset + ring_bytes_of(groups[old.group]), old.first_op, old.last_op};
      if (!there.overlaps(load.offset, load.offset + ring_bytes_of(groups[load.group]))) continue;
      if (load.after_op == kNoOp || old.last_op > load.after_op) load.after_op = old.last_op;
      load.step_before = true;
    }
  }
  return true;
}

WorkingSet largest_working_set(const std::vector<WeightGroup>& groups, std::span<const WeightLoad> loads) {
  WorkingSet largest;
  std::vector<const WeightLoad*> live;
  for (const WeightLoad& load : loads) {  // in the order of first use: the maximum is reached when some load starts
    std::erase_if(live, [&](const WeightLoad* old) { return old->last_op < load.first_op; });
    live.push_back(&load);
    std::uint64_t sum = 0;
    for (const WeightLoad* one : live) sum += ring_bytes_of(groups[one->group]);
    if (sum > largest.bytes) largest = {sum, load.first_op};
  }
  return largest;
}

}  // namespace slip::flow
