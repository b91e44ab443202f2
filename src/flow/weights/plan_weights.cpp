// plan_weights. It divides the memory first: activations, then the ring, then resident weights. Then it estimates the
// step.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "flow/weights/arena.hpp"
#include "flow/weights/resident.hpp"
#include "flow/weights/weight_groups.hpp"
#include "store/reader.hpp"

namespace slip::flow {
namespace {

constexpr double kMinRingGain = 1.001;        // a larger ring must make the step shorter by more than this factor
constexpr double kMinCompressionGain = 1.01;  // compression must make the step shorter by more than this factor
constexpr double kMaxPackedShare = 0.95;      // a group is compressed only if it shrinks to at most this share
// The shares of the resident groups that the planner tries to keep compressed. A compressed group takes fewer bytes,
// but is decoded in each step.
constexpr double kPackedShares[] = {0, 0.25, 0.5, 0.75, 1};
// A ring that is larger than the smallest one, to keep a disk busy, gets at most 1 / kRingShare of the memory for
// weights.
constexpr std::uint64_t kRingShare = 4;

// Sets from_disk of each group: true for the groups that do not fit into host memory. They are spread evenly over the
// step, so that the reads are spread, too.
void leave_on_disk(std::vector<WeightGroup>& groups, std::uint64_t host_memory) {
  double all = 0, owed = 0;
  for (WeightGroup& group : groups) {
    group.from_disk = false;  // the groups may have been marked for a form that takes more bytes
    all += static_cast<double>(group.stored_bytes());
  }
  if (all <= static_cast<double>(host_memory)) return;
  const double share = static_cast<double>(host_memory) / all;
  std::uint64_t left = host_memory;
  for (WeightGroup& group : groups) {
    const auto bytes = static_cast<double>(group.stored_bytes());
    owed += bytes * share;
    group.from_disk = owed < bytes / 2 || group.stored_bytes() > left;
    if (group.from_disk) continue;
    left -= group.stored_bytes();
    owed -= bytes;
  }
}

// For an error: the weights that must be in memory at one op. These are its own weights and those that are loaded
// together with them.
std::string weights_text(const Graph& graph, const std::vector<WeightGroup>& groups,
                         const std::vector<WeightLoad>& loads, std::uint64_t bytes) {
  const WorkingSet largest = largest_working_set(groups, loads);
  if (largest.op == kNoOp) return fmt::format("{} for weights", base::format_bytes(bytes));
  const GraphOp& op = graph.ops()[largest.op];
  std::uint64_t own = 0;
  for (const ValueBytes& read : op.reads) {
    if (graph[read.value].role == ValueRole::kWeight) own += aligned(read.bytes);
  }
  std::set<std::uint32_t> others;
  bool joined = false;
  for (const WeightLoad& load : loads) {
    if (load.first_op > largest.op || load.last_op < largest.op) continue;
    const WeightGroup& group = groups[load.group];
    others.insert(group.ops.begin(), group.ops.end());
    joined = joined || group.parts.size() > 1;
  }
  others.erase(largest.op);
  if (own >= largest.bytes || others.empty())
    return fmt::format("{} for the weights that op '{}' needs at once", base::format_bytes(bytes), op.name);
  constexpr std::size_t kMaxNames = 4;
  std::vector<std::string> names;
  for (const std::uint32_t other : others) {
    if (names.size() < kMaxNames) names.push_back(fmt::format("'{}'", graph.ops()[other].name));
  }
  if (others.size() > kMaxNames) names.push_back(fmt::format("{} more", others.size() - kMaxNames));
  return fmt::format("{} for the weights that are in memory during op '{}', {} of its own and the others of {}{}",
                     base::format_bytes(bytes), op.name, base::format_bytes(own), fmt::join(names, ", "),
                     joined ? fmt::format(", which are loaded with them because some are smaller than join_bytes ({})",
                                          base::format_bytes(graph.options().join_bytes))
                            : "");
}

// The form in which groups are loaded and kept: compressed or not.
struct GroupForms {
  std::vector<WeightGroup> groups;  // with their compressed bytes, if streamed groups are compressed
  std::vector<char> packed;         // by group: it stays compressed; empty: none
  StepCosts step_costs;
  std::uint64_t slots = 0;  // bytes of device memory for compressed groups that are copied and not yet decoded
};

class WeightsPlanner {
 public:
  WeightsPlanner(const Graph& graph, const Costs& costs, const WeightsOptions& options)
      : graph_(graph),
        options_(options),
        groups_(make_weight_groups(graph)),
        loads_(make_loads(groups_)),
        arena_(lay_arena(graph)) {
    leave_on_disk(groups_, options.host_memory);
    if (costs.device == "cpu" && !options.ring) {  // on the cpu device files are read straight into the ring
      for (WeightGroup& group : groups_) group.room = group.parts.back().bytes.bytes >= kLargePart ? kLandingRoom : 0;
    }
    forms_.push_back({groups_, {}, step_costs_of(graph, costs, groups_)});
    if (options.compressed && costs.decode.bytes_per_second > 0) add_compressed_forms(costs);
    for (const WeightGroup& group : groups_) all_bytes_ += aligned(group.bytes);
    for (const double op : forms_.front().step_costs.ops) compute_ += op;
    smallest_ring_ = find_smallest_ring();
    reads_into_ring_ = costs.device == "cpu" && std::ranges::any_of(groups_, &WeightGroup::from_disk);
  }

  std::uint64_t needed_for_all() const { return arena_.bytes + all_bytes_; }
  std::uint64_t max_needed() const {  // a requested ring may be larger than all weights
    return std::max(needed_for_all(), arena_.bytes + aligned(options_.ring.value_or(0)));
  }
  std::uint64_t smallest() const {
    return arena_.bytes + (options_.stream_all ? smallest_ring_ : std::min(all_bytes_, smallest_ring_));
  }

  WeightsPlan plan(std::uint64_t budget, Here here) const {
    if (budget < smallest()) too_small(budget, here);
    const std::uint64_t for_weights = budget - arena_.bytes;
    if (all_stay(for_weights)) return write_down(forms_.front(), 0, std::vector<char>(groups_.size(), 1), {});
    const Guess guess = best_guess(for_weights);
    if (!guess.forms) no_room(budget, here);
    const ResidentProblem problem = problem_of(*guess.forms, for_weights, guess.ring);
    const ResidentChoice choice = search_resident(problem, options_.search_effort);
    if (!choice.found()) no_room(budget, here);
    std::vector<WeightLoad> loads;
    streamed_loads(problem, choice.resident, loads);
    WeightsPlan plan = write_down(*guess.forms, guess.ring, choice.resident, std::move(loads));
    plan.bound = std::min(plan.step, rounded(choice.bound));
    return plan;
  }

  // The smallest budget, to 0.01 % of the weights, with which the estimated step is at most `step`. Nothing if no
  // budget suffices, because the requested ring is too small or everything is streamed.
  std::optional<std::uint64_t> smallest_budget_for(double step) const {
    std::uint64_t low = smallest(), high = needed_for_all();
    if (options_.ring || options_.stream_all) high += std::max(smallest_ring_, ring_asked_for());
    const std::uint64_t fine = std::max<std::uint64_t>(all_bytes_ / 10'000, kAlignment);
    if (guessed_step(low) <= step) return low;
    if (guessed_step(high) > step) return std::nullopt;
    while (high - low > fine) {
      const std::uint64_t middle = low + (high - low) / 2;
      if (guessed_step(middle) <= step) high = middle;
      else low = middle;
    }
    return high;
  }
  double compute() const { return compute_; }

 private:
  std::uint64_t ring_asked_for() const { return aligned(std::min(options_.ring.value_or(0), std::uint64_t{1} << 62)); }
  bool all_stay(std::uint64_t for_weights) const {
    return groups_.empty() || (all_bytes_ <= for_weights && !options_.stream_all);
  }
  ResidentProblem problem_of(const GroupForms& forms, std::uint64_t for_weights, std::uint64_t ring) const {
    return {forms.step_costs, forms.groups, loads_, options_.stream_all ? 0 : for_weights - forms.slots - ring, ring,
            forms.packed};
  }

  // Adds the forms to compare: all groups that become smaller are compressed, with different shares of the resident
  // ones; or only the groups that are read from disk are.
  void add_compressed_forms(const Costs& costs) {
    std::vector<WeightGroup> groups = groups_;
    for (WeightGroup& group : groups) {
      const std::uint64_t bytes = options_.compressed(group);
      if (bytes == 0 || static_cast<double>(bytes) > kMaxPackedShare * static_cast<double>(group.bytes)) continue;
      group.compressed_bytes = bytes;
      group.room = 0;
    }
    keep_slots_small(groups);
    leave_on_disk(groups, options_.host_memory);
    if (std::ranges::none_of(groups, [](const WeightGroup& group) { return group.compressed_bytes > 0; })) return;
    for (const double share : kPackedShares) {
      if (share > 0 && options_.stream_all) break;
      add_form(groups, share, costs);
    }
    // The last form keeps the same groups in host memory as the uncompressed form. Those of the other compressed forms
    // would not fit: they are larger uncompressed.
    const auto on_disk = std::ranges::count(groups_, true, &WeightGroup::from_disk);
    if (on_disk == 0 || on_disk == static_cast<std::int64_t>(groups_.size())) return;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].from_disk) groups[i].from_disk = true;
      else groups[i] = groups_[i];
    }
    add_form(groups, 0, costs);
  }
  // Each slot has the size of the largest compressed group. If a few groups are much larger than the others (an
  // embedding), their slots would take too much memory. So these groups are not compressed.
  static void keep_slots_small(std::vector<WeightGroup>& groups) {
    constexpr std::uint64_t kTimesTheMean = 4;
    std::uint64_t sum = 0, count = 0;
    for (const WeightGroup& group : groups) sum += group.compressed_bytes, count += group.compressed_bytes > 0 ? 1 : 0;
    for (WeightGroup& group : groups) {
      if (count > 0 && group.compressed_bytes > kTimesTheMean * (sum / count)) group.compressed_bytes = 0;
    }
  }
  void add_form(const std::vector<WeightGroup>& groups, double packed_share, const Costs& costs) {
    GroupForms forms{groups, {}, step_costs_of(graph_, costs, groups)};
    std::uint64_t largest = 0;
    double owed = 0;
    for (const WeightGroup& group : groups) {
      largest = std::max(largest, group.compressed_bytes);
      owed += packed_share;  // so the packed groups are spread over the step
      const bool packed = group.compressed_bytes > 0 && owed >= 1 - 1e-9;
      if (packed) owed -= 1;
      forms.packed.push_back(packed ? 1 : 0);
    }
    forms.slots = costs.device == "cpu" ? 0 : slots_bytes(kDecodeSlots, largest);
    forms_.push_back(std::move(forms));
  }

  [[noreturn]] void too_small(std::uint64_t budget, Here here) const {
    base::fail(ErrorCode::kOutOfMemory, here,
               "a budget of {} bytes ({}) is too small: the smallest that works is {} bytes ({}): {}; and {} "
               "for activations, most of them live at op '{}'",
               budget, base::format_bytes(budget), smallest(), base::format_bytes(smallest()),
               weights_text(graph_, groups_, loads_, smallest() - arena_.bytes), base::format_bytes(arena_.bytes),
               graph_.ops()[arena_.fullest].name);
  }

  // This error is possible only with a requested ring: a ring that the planner chooses is large enough.
  [[noreturn]] void no_room(std::uint64_t budget, Here here) const {
    base::fail(ErrorCode::kOutOfMemory, here,
               "within {} a ring of {} cannot hold the weights of each op: {}; give a larger ring, or leave it to the "
               "planner",
               base::format_bytes(budget), base::format_bytes(options_.ring.value_or(0)),
               weights_text(graph_, groups_, loads_, largest_working_set(groups_, loads_).bytes));
  }

  double guessed_step(std::uint64_t budget) const {
    const std::uint64_t for_weights = budget - arena_.bytes;
    if (all_stay(for_weights)) return compute_;
    const Guess guess = best_guess(for_weights);
    return guess.forms ? guess.choice.step : kInfinite;
  }

  // The smallest ring with all groups streamed. A ring loses bytes at its end, so it may have to be larger than the
  // working set.
  std::uint64_t find_smallest_ring() const {
    std::uint64_t bytes = largest_working_set(groups_, loads_).bytes;
    std::vector<WeightLoad> loads = loads_;
    for (const std::uint64_t more = aligned(bytes / 16 + 1); !lay_ring(groups_, loads, bytes);) bytes += more;
    return bytes;
  }

  // Sizes worth trying, at most `max`: a few groups of the common sizes, and a few groups that are neighbours.
  std::vector<std::uint64_t> ring_sizes(std::uint64_t max) const {
    if (options_.ring) return {ring_asked_for()};
    std::vector<std::uint64_t> sizes;
    for (const WeightGroup& group : groups_) sizes.push_back(ring_bytes_of(group));
    std::ranges::sort(sizes);
    std::set<std::uint64_t> tries{std::min(smallest_ring_, max)};
    for (const std::size_t at : {sizes.size() / 2, sizes.size() * 3 / 4, sizes.size() - 1}) {
      for (const std::uint64_t count : {1, 2, 3, 4, 6}) tries.insert(sizes[at] > max / count ? max : sizes[at] * count);
    }
    for (const std::size_t together : {2, 3, 4}) {
      std::uint64_t largest = 0;
      for (std::size_t i = 0; i + together <= loads_.size(); ++i) {
        std::uint64_t sum = 0;
        for (std::size_t k = 0; k < together; ++k) sum += ring_bytes_of(groups_[loads_[i + k].group]);
        largest = std::max(largest, sum);
      }
      if (largest > 0) tries.insert(std::min(largest, max));
    }
    if (reads_into_ring_) tries.erase(tries.begin(), tries.insert(std::min(fast_ring(max), max)).first);
    return {tries.begin(), tries.end()};
  }

  // The ring with which the disk never waits for ops. It holds the groups in use and all reads in flight. Half as much
  // again as the groups in use is for groups that are loaded and not used yet: without it, nothing was gained.
  std::uint64_t fast_ring(std::uint64_t max) const {
    const store::ReaderOptions reads;
    const std::uint64_t wanted =
        smallest_ring_ + smallest_ring_ / 2 + aligned(std::uint64_t{reads.in_flight} * reads.block_bytes);
    return std::min(wanted, std::max(smallest_ring_, aligned(max / kRingShare)));
  }

  struct Guess {
    const GroupForms* forms = nullptr;  // null: nothing fits
    std::uint64_t ring = 0;
    ResidentChoice choice = {};
  };
  Guess best_guess(std::uint64_t for_weights) const {
    Guess best;
    for (const GroupForms& forms : forms_) {
      if (forms.slots > for_weights) continue;
      const std::uint64_t left = for_weights - forms.slots;
      Guess own;
      for (const std::uint64_t ring : ring_sizes(left)) {
        if (ring > left) continue;
        ResidentChoice choice = guess_resident(problem_of(forms, for_weights, ring));
        if (choice.found() && (!own.forms || choice.step * kMinRingGain < own.choice.step))
          own = {&forms, ring, std::move(choice)};
      }
      const double gain = best.forms == &forms_.front() ? kMinCompressionGain : kMinRingGain;
      if (own.forms && (!best.forms || own.choice.step * gain < best.choice.step)) best = std::move(own);
    }
    return best;
  }

  WeightsPlan write_down(const GroupForms& forms, std::uint64_t ring, const std::vector<char>& resident,
                         std::vector<WeightLoad> loads) const {
    WeightsPlan plan;
    plan.groups = forms.groups;
    std::vector<bool> loaded(groups_.size());
    for (const WeightLoad& load : loads) loaded[load.group] = true;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      WeightGroup& group = plan.groups[i];
      if (!resident[i]) {
        if (group.compressed_bytes > 0) plan.slot_bytes = forms.slots;
        continue;
      }
      if (!loaded[i]) group.compressed_bytes = 0;  // it is kept uncompressed: no load decodes it
      group.resident = true;
      group.offset = plan.resident_bytes;
      plan.resident_bytes += aligned(group.stored_bytes());
    }
    plan.loads = std::move(loads);
    plan.ring_bytes = plan.loads.empty() ? 0 : ring;
    plan.value_offsets = arena_.offsets;
    plan.activation_bytes = arena_.bytes;
    plan.activation_bound = arena_.bound;
    set_times(plan, forms.step_costs);
    return plan;
  }

  const Graph& graph_;
  const WeightsOptions& options_;
  std::vector<WeightGroup> groups_;
  std::vector<WeightLoad> loads_;
  Arena arena_;
  std::uint64_t all_bytes_ = 0, smallest_ring_ = 0;
  std::vector<GroupForms> forms_;  // the first one: nothing is compressed
  bool reads_into_ring_ = false;   // some groups are read from disk straight into the ring
  double compute_ = 0;
};

void check(const Graph& graph, const WeightsOptions& options, Here here) {
  if (graph.ops().empty())
    throw Error(ErrorCode::kInvalidValue, "the graph has no ops: there is nothing to plan", here);
  if (options.budget && options.slowdown)
    throw Error(ErrorCode::kInvalidValue, "give a budget or a slowdown, not both: each follows from the other", here);
  if (options.slowdown && !(*options.slowdown >= 0 && std::isfinite(*options.slowdown)))
    base::fail(ErrorCode::kInvalidValue, here,
               "a slowdown of {}: must be 0 or more; 0.05 allows 5 % more time than with all weights resident",
               *options.slowdown);
}

}  // namespace
}  // namespace slip::flow

namespace slip {
using namespace flow;

WeightsPlan plan_weights(const Graph& graph, const Costs& costs, const WeightsOptions& options, Here here) {
  check(graph, options, here);
  const WeightsPlanner planner(graph, costs, options);
  std::uint64_t budget = options.budget.value_or(std::min(options.free_memory, planner.max_needed()));
  if (options.slowdown) {
    const auto smallest = planner.smallest_budget_for(planner.compute() * (1 + *options.slowdown));
    if (!smallest)
      base::fail(
          ErrorCode::kInvalidValue, here,
          "no budget allows a slowdown of {} with the given ring or with all weights streamed: leave the ring to "
          "the planner, or do not stream all weights",
          *options.slowdown);
    budget = *smallest;
  }
  WeightsPlan plan = planner.plan(budget, here);
  if (options.budget || options.slowdown) plan.budget = budget;
  return plan;
}

}  // namespace slip
