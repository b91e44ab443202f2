// choose_memory() of streamed_pass.hpp: chooses the groups of a WeightStreamer that stay on the device, and the size of
// the ring.
#include <algorithm>
#include <optional>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "flow/weights/streamed_pass.hpp"
#include "flow/weights/weight_groups.hpp"

namespace slip::flow {
namespace {

// The memory of one choice; offsets of resident groups are set at the end.
struct MemoryChoice {
  std::vector<char> resident, compressed;  // by group
  std::uint64_t ring = 0, slots = 0;
};

// For WeightsOptions::compressed: each weight group of the pass's graph is a group of the catalog.
std::function<std::uint64_t(const WeightGroup&)> compressed_bytes_of(const StreamedPass& pass,
                                                                     const GroupCatalog& catalog) {
  if (!catalog.any_packed()) return {};
  return [&](const WeightGroup& group) { return catalog.packed_bytes(pass.group_of(group)); };
}

class MemoryChooser {
 public:
  MemoryChooser(const std::vector<std::unique_ptr<StreamedPass>>& passes, const GroupCatalog& catalog,
                std::uint64_t budget, const StreamerOptions& options)
      : passes_(passes), catalog_(catalog), budget_(budget / kAlignment * kAlignment), options_(options) {
    for (std::uint32_t i = 0; i < catalog.size(); ++i) {
      all_ += bytes(i);
      if (bytes(i) > bytes(largest_)) largest_ = i;
    }
  }

  std::uint64_t bytes(std::uint32_t group) const { return aligned(catalog_[group].bytes); }
  std::uint32_t largest() const { return largest_; }
  // A ring with the size of the largest group suffices for any order of uses, if one group is in use at a time: each
  // load then waits for the use before it.
  std::uint64_t smallest() const {
    const std::uint64_t ring = std::max(bytes(largest_), aligned(options_.ring.value_or(0)));
    return options_.stream_all ? ring : std::min(all_, ring);
  }

  // `budget` is at least smallest().
  MemoryChoice choose() const {
    const std::vector<char> none(catalog_.size(), 0);
    if (all_ <= budget_ && !options_.stream_all) return {std::vector<char>(catalog_.size(), 1), none};
    const std::uint64_t ring = options_.ring ? smallest() : std::min(budget_, std::max(all_, smallest()));
    MemoryChoice choice = choice_of_leader().value_or(MemoryChoice{none, none, ring});
    keep_more(choice);
    return choice;
  }

 private:
  // None if this pass cannot be planned.
  std::optional<WeightsPlan> try_plan(const StreamedPass& pass, std::uint64_t budget,
                                      std::optional<std::uint64_t> ring) const {
    if (pass.order().empty()) return std::nullopt;
    try {
      return plan_weights(pass.graph(), pass.costs(),
                          {.budget = budget,
                           .host_memory = UINT64_MAX,
                           .ring = ring,
                           .stream_all = options_.stream_all,
                           .compressed = compressed_bytes_of(pass, catalog_),
                           .search_effort = options_.search_effort});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      return std::nullopt;
    }
  }

  MemoryChoice choice_of(const StreamedPass& pass, const WeightsPlan& plan) const {
    const std::vector<char> none(catalog_.size(), 0);
    MemoryChoice choice{none, none, plan.ring_bytes, plan.slot_bytes};
    for (const WeightGroup& planned : plan.groups) {
      const std::uint32_t group = pass.group_of(planned);
      choice.resident[group] = planned.resident ? 1 : 0;
      choice.compressed[group] = planned.compressed_bytes > 0 ? 1 : 0;
    }
    return choice;
  }
  std::uint64_t resident_bytes(const MemoryChoice& choice) const {
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < catalog_.size(); ++i)
      sum += !choice.resident[i] ? 0 : choice.compressed[i] ? aligned(catalog_.packed_bytes(i)) : bytes(i);
    return sum;
  }
  std::uint64_t largest_in_ring(const MemoryChoice& choice) const {
    std::uint64_t max = 0;
    for (std::uint32_t i = 0; i < catalog_.size(); ++i) {
      const bool in_place = choice.resident[i] && !choice.compressed[i];
      max = std::max(max, in_place ? 0 : bytes(i));
    }
    return max;
  }

  // The choice for the pass with the longest exposed loads. The ring must also have room for the groups of the other
  // passes. None: no pass could be planned, so everything is streamed.
  std::optional<MemoryChoice> choice_of_leader() const {
    const StreamedPass* leader = nullptr;
    std::optional<WeightsPlan> plan;
    for (const auto& pass : passes_) {
      std::optional<WeightsPlan> own = try_plan(*pass, budget_, options_.ring);
      if (!own || (plan && own->step - own->compute <= plan->step - plan->compute)) continue;
      leader = pass.get();
      plan = std::move(own);
    }
    if (!leader) return std::nullopt;
    MemoryChoice choice = choice_of(*leader, *plan);
    const std::uint64_t needed = largest_in_ring(choice);
    if (choice.ring >= needed) return choice;
    const std::uint64_t left = budget_ - resident_bytes(choice) - choice.slots;
    if (plan->loads.empty() && left >= needed) {
      choice.ring = needed;
      return choice;
    }
    // Plans again, with a ring for the largest group. If the pass streams nothing, plans with less memory instead.
    plan = plan->loads.empty() ? try_plan(*leader, budget_ - std::min(budget_, bytes(largest_)), {})
                               : try_plan(*leader, budget_, bytes(largest_));
    if (!plan) return std::nullopt;
    choice = choice_of(*leader, *plan);
    choice.ring = std::max(choice.ring, largest_in_ring(choice));
    return resident_bytes(choice) + choice.ring + choice.slots <= budget_ ? std::optional(choice) : std::nullopt;
  }

  // Makes further groups resident, in their order, while there is memory left.
  void keep_more(MemoryChoice& choice) const {
    if (options_.stream_all) return;
    std::uint64_t left = budget_ - std::min(budget_, resident_bytes(choice) + choice.ring + choice.slots);
    for (std::uint32_t i = 0; i < catalog_.size(); ++i) {
      if (choice.resident[i] || bytes(i) > left) continue;
      choice.resident[i] = 1;
      choice.compressed[i] = 0;
      left -= bytes(i);
    }
  }

  const std::vector<std::unique_ptr<StreamedPass>>& passes_;
  const GroupCatalog& catalog_;
  const std::uint64_t budget_;
  const StreamerOptions& options_;
  std::uint64_t all_ = 0;
  std::uint32_t largest_ = 0;
};

}  // namespace

StreamerMemory choose_memory(const std::vector<std::unique_ptr<StreamedPass>>& passes, GroupCatalog& catalog,
                             std::uint64_t budget, const StreamerOptions& options, Here here) {
  const MemoryChooser chooser(passes, catalog, budget, options);
  if (budget < chooser.smallest())
    base::fail(ErrorCode::kOutOfMemory, here,
               "a budget of {} bytes ({}) is too small: the smallest that works is {} bytes ({}); the largest group, "
               "'{}', takes {} bytes of it",
               budget, base::format_bytes(budget), chooser.smallest(), base::format_bytes(chooser.smallest()),
               catalog.name(chooser.largest()), catalog[chooser.largest()].bytes);
  const MemoryChoice choice = chooser.choose();
  StreamerMemory memory{.resident_bytes = 0, .ring_bytes = choice.ring};
  for (std::uint32_t i = 0; i < catalog.size(); ++i) {
    if (choice.compressed[i]) catalog.use_packed(i);
    if (choice.compressed[i] && !choice.resident[i]) memory.slot_bytes = choice.slots;
    if (!choice.resident[i]) continue;
    catalog.place_resident(i, memory.resident_bytes);
    memory.resident_bytes += aligned(catalog[i].stored_bytes());
  }
  return memory;
}

std::uint64_t budget_for_slowdown(const std::vector<std::unique_ptr<StreamedPass>>& passes, const GroupCatalog& catalog,
                                  const StreamerOptions& options, Here here) {
  std::uint64_t budget = 0;
  for (const auto& pass : passes) {
    if (pass->order().empty()) continue;
    const WeightsPlan plan = plan_weights(pass->graph(), pass->costs(),
                                          {.slowdown = options.slowdown,
                                           .ring = options.ring,
                                           .stream_all = options.stream_all,
                                           .compressed = compressed_bytes_of(*pass, catalog),
                                           .search_effort = options.search_effort},
                                          here);
    budget = std::max(budget, *plan.budget);
  }
  return budget;
}

}  // namespace slip::flow
