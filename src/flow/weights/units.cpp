#include "flow/weights/units.hpp"

#include <algorithm>
#include <map>

namespace slip {
namespace {

constexpr std::uint32_t kNear = 8;  // ops: uses this close share a load, small weights this close a unit

// Bytes of one weight that some ops use; pieces never overlap.
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

bool may_join(const WeightUnit& unit, const UsedBytes& piece, std::uint64_t small) {
  return (unit.bytes < small || piece.bytes.bytes < small) && piece.ops.back() - unit.ops.front() <= kNear;
}

}  // namespace

std::vector<WeightUnit> make_units(const Graph& graph) {
  std::vector<WeightUnit> units;
  for (UsedBytes& piece : pieces_of(graph)) {
    if (units.empty() || !may_join(units.back(), piece, graph.options().join_bytes)) units.emplace_back();
    WeightUnit& unit = units.back();
    const std::uint64_t offset = aligned(unit.bytes);
    unit.parts.push_back({piece.bytes, offset});
    unit.bytes = offset + piece.bytes.bytes;
    unit.ops.insert(unit.ops.end(), piece.ops.begin(), piece.ops.end());
    std::ranges::sort(unit.ops);
    unit.ops.erase(std::unique(unit.ops.begin(), unit.ops.end()), unit.ops.end());
  }
  return units;
}

std::vector<WeightLoad> make_loads(const std::vector<WeightUnit>& units) {
  std::vector<WeightLoad> loads;
  for (std::uint32_t index = 0; index < units.size(); ++index) {
    for (const std::uint32_t op : units[index].ops) {
      const bool near = !loads.empty() && loads.back().unit == index && op - loads.back().last_op <= kNear;
      if (!near) loads.push_back({.unit = index, .first_op = op, .last_op = op});
      loads.back().last_op = op;
    }
  }
  std::ranges::stable_sort(loads, {}, &WeightLoad::first_op);
  return loads;
}

const WeightUnit::Part* part_of(const WeightUnit& unit, const ValueBytes& bytes) {
  for (const WeightUnit::Part& part : unit.parts) {
    if (part.bytes.value == bytes.value && part.bytes.offset <= bytes.offset &&
        bytes.offset + bytes.bytes <= part.bytes.offset + part.bytes.bytes)
      return &part;
  }
  return nullptr;
}

}  // namespace slip
