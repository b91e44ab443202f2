// WeightStreamer: weights larger than the device, for a program that has its own kernels. The program names groups of
// weights and the order of their uses. Some groups stay on the device; the others are loaded into a ring buffer before
// they are used.
//
//   slip::WeightStreamer streamer(device, {{"layer0", slip::GroupSource::pinned(memory0)}, ...},
//                                 {.budget = std::uint64_t{6} << 30});
//   slip::WeightPass prefill = streamer.add_pass("prefill", {{"layer0"}, {"layer1"}, ...});
//   streamer.plan();
//   streamer.begin(prefill);                              // a step of this pass begins
//   slip::Range w = streamer.acquire("layer0", stream);   // work issued to the stream from here on finds the group
//   stream.launch(kernel, {.reads = {x, w}, .writes = {y}});
//   streamer.release("layer0", stream);                   // the use ends after the work issued so far
//
// The order of uses may differ from the plan: a group that is not there is loaded on demand, and the results stay
// right. report() says what this cost. An order that comes in two steps one after the other replaces the planned one.
//
// begin(), acquire() and release() never wait for the device. acquire() and release() allocate nothing; begin() does
// only if it meets a pass for the first time or plans a new order. One thread at a time may call: a call beside another
// one throws kNotPermitted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slip/device.hpp"
#include "slip/runner.hpp"
#include "slip/weights.hpp"

namespace slip::flow {
class GroupCatalog;
}  // namespace slip::flow

namespace slip {

// Where the bytes of one group come from. Memory of the program must live as long as the streamer.
class GroupSource {
 public:
  // `type` of the weights matters to StreamerOptions::compress only.
  static GroupSource pinned(Range memory, Here here = Here::at());  // page-locked memory: copied from there
  static GroupSource pinned(Range memory, DataType type, Here here = Here::at());
  static GroupSource memory(std::span<const std::byte> memory, Here here = Here::at());  // pageable memory
  static GroupSource memory(std::span<const std::byte> memory, DataType type, Here here = Here::at());
  // Tensors of safetensors files, `files` from WeightSource::files. Each begins at a multiple of 256 bytes in the
  // group: see WeightStreamer::offset().
  static GroupSource tensors(const WeightSource& files, const std::vector<std::string>& names, Here here = Here::at());
  // A function that writes the bytes from `offset` on. It is called only while plan() runs.
  using Fill = std::function<void(std::uint64_t offset, std::span<std::byte> into)>;
  static GroupSource callback(std::uint64_t bytes, Fill fill, Here here = Here::at());
  static GroupSource callback(std::uint64_t bytes, DataType type, Fill fill, Here here = Here::at());
  // The bytes of `from`, compressed without loss into pinned memory of the device. `from` is needed for this call only.
  // The streamer uses them compressed where that makes steps shorter.
  static GroupSource compressed(const Device& device, const GroupSource& from, Here here = Here::at());

  std::uint64_t bytes() const;             // of the group
  std::uint64_t compressed_bytes() const;  // 0: not compressed
  // Writes the bytes of the group, decoded.
  void read(std::span<std::byte> into, Here here = Here::at()) const;

 private:
  friend class flow::GroupCatalog;
  WeightSource source_;
  std::vector<GraphValue> parts_;
  Range pinned_;
};

struct StreamedGroup {
  std::string name;
  GroupSource source;
};

// Give a budget or a slowdown (WeightsOptions). With neither, all memory that is free on the device may be used.
struct StreamerOptions {
  std::optional<std::uint64_t> budget = {};  // bytes of device memory for resident groups and the ring
  std::optional<double> slowdown = {};
  std::uint64_t host_memory = UINT64_MAX;  // bytes of tensors that may stay in host memory; the others stay on disk
  std::optional<std::uint64_t> ring = {};  // bytes; by default the smallest ring that costs no time
  bool stream_all = false;                 // no group stays resident
  // plan() compresses the groups without loss, into pinned memory of its own, and uses the compressed ones where that
  // makes steps shorter. The sources are not needed any more then. Tensors of files that `slip compress` has written
  // are used compressed even without this option.
  bool compress = false;
  // Device memory of the program, in place of an allocation. It is also the budget, unless there is a smaller one.
  std::optional<Range> memory = {};
  LinkCost load = {};                       // from host memory to the device; unknown: plan() measures it
  LinkCost read = {};                       // from disk to host memory; unknown: as `load`
  LinkCost decode = {};                     // of compressed groups (Costs::decode); unknown: plan() measures it
  bool learn = true;                        // plan again if the order of uses has changed
  std::uint64_t search_effort = 2'000'000;  // as in WeightsOptions
};

// One use of a group. `time` is the time of its kernels; 0: unknown, it is measured in the first steps. `held` is the
// number of later uses that begin before this one ends.
struct GroupUse {
  std::string group;
  Picos time = 0;
  std::uint32_t held = 0;
};

// A pass: one kind of step, such as the prefill or the generation of a token. Its number, by order of add_pass().
struct WeightPass {
  std::uint32_t index = 0;
};

struct StreamerReport {
  struct Loads {
    std::uint64_t count = 0, bytes = 0;
  };
  std::uint64_t steps = 0, uses = 0;
  Loads planned, on_demand;
  Picos stalled = 0;             // how long streams waited for loads on demand, as far as these waits have ended
  std::uint64_t unplanned = 0;   // uses that the plan did not have
  std::uint64_t skipped = 0;     // planned uses that the program passed over
  std::uint64_t broken_off = 0;  // uses that had not ended when the next step began
  std::uint64_t replans = 0;     // passes planned again, because their order had changed
  std::string text() const;      // human-readable
};

class WeightStreamer {
 public:
  WeightStreamer(const Device& device, std::vector<StreamedGroup> groups, const StreamerOptions& options = {},
                 Here here = Here::at());
  ~WeightStreamer();  // waits for the loads that were issued; the program's own work must have ended
  WeightStreamer(const WeightStreamer&) = delete;
  WeightStreamer& operator=(const WeightStreamer&) = delete;

  // Without uses the pass is planned for the groups in the order given to the constructor, until its real order is
  // known. After plan() too, a pass may be added.
  WeightPass add_pass(std::string name, const std::vector<GroupUse>& uses = {}, Here here = Here::at());
  // Chooses the resident groups and the ring, plans all passes, takes the device memory and fills the resident groups.
  // The first begin() calls it if the program has not. Throws kOutOfMemory if the budget is too small, with the
  // smallest that works.
  void plan(Here here = Here::at());

  // The plan of a pass, as data: see weights.hpp. In its graph each use is an op and each group a weight.
  const WeightsPlan& plan_of(WeightPass pass, Here here = Here::at()) const;
  const Graph& graph_of(WeightPass pass, Here here = Here::at()) const;
  const Costs& costs_of(WeightPass pass, Here here = Here::at()) const;
  std::string describe(WeightPass pass, Here here = Here::at()) const;
  // Proves the order of the ops that a few steps of this pass issue, with one stream that makes all uses in the planned
  // order. For this it runs the streamer's own code on a simulated device. Simulates such steps.
  WeightsProof verify(WeightPass pass, Here here = Here::at()) const;
  Prediction predict(WeightPass pass, int steps = 4, Here here = Here::at()) const;

  // Begins a step. Uses of the step before that have not ended end here. Throws the error of a load that failed.
  void begin(WeightPass pass, Here here = Here::at());
  // The group's place in device memory. `stream` waits until the group is loaded. The place is valid until release().
  // Throws kOutOfMemory if the groups that are acquired leave no place in the ring; the error names them.
  Range acquire(std::uint32_t group, StreamRef stream, Here here = Here::at());
  Range acquire(std::string_view group, StreamRef stream, Here here = Here::at());
  // Ends a use after the work that `stream` has so far. All uses of the group's bytes must be ordered before that
  // point.
  void release(std::uint32_t group, StreamRef stream, Here here = Here::at());
  void release(std::string_view group, StreamRef stream, Here here = Here::at());
  // The number of a group, for calls without a search by name.
  std::uint32_t group(std::string_view name, Here here = Here::at()) const;
  // Where tensor number `tensor` of a group begins in its place.
  std::uint64_t offset(std::string_view group, std::size_t tensor, Here here = Here::at()) const;
  // The place of a group that stays on the device, valid from plan() on, without acquire(). Empty: it is streamed, or
  // stays compressed.
  std::optional<Range> resident(std::uint32_t group, Here here = Here::at()) const;
  static void* address(Range range);  // of an acquired place, for native calls

  void sync(Here here = Here::at());  // waits for the loads that were issued
  StreamerReport report() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slip
