// WeightStreamer: weights larger than the device, for a program that has its own kernels. The program names groups of
// weights and the order of their uses. Some groups stay on the device; the others are loaded into a ring buffer before
// they are used.
//
//   slip::WeightStreamer streamer(device, {{"layer0", slip::GroupSource::pinned(memory0)}, ...},
//                                 {.budget = std::uint64_t{6} << 30});
//   slip::WeightPass prefill = streamer.add_pass("prefill", {{"layer0"}, {"layer1"}, ...});
//   streamer.plan();
//   streamer.begin(prefill);                              // a step of this pass begins
//   slip::Range w = streamer.acquire("layer0", stream);   // work issued to the stream from here on may use the group
//   stream.launch(kernel, {.reads = {x, w}, .writes = {y}});
//   streamer.release("layer0", stream);                   // the use ends after the work issued so far
//
// The program may use groups in another order than planned. A group that is not in device memory is then loaded on
// demand; the results do not change. report() gives the cost. If two consecutive steps have the same new order, the
// streamer plans again for that order (StreamerOptions::learn).
//
// begin(), acquire() and release() never wait for the device. acquire() and release() never allocate. begin() allocates
// only in the first step of a pass and when it plans a new order. One thread at a time may call; a concurrent call
// throws kNotPermitted.
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
  // `type`: the type of the weights, which only StreamerOptions::compress uses.
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

// Set `budget` or `slowdown` (see WeightsOptions). If neither is set, the streamer may use all free device memory.
struct StreamerOptions {
  std::optional<std::uint64_t> budget = {};  // bytes of device memory for resident groups and the ring
  std::optional<double> slowdown = {};
  std::uint64_t host_memory = UINT64_MAX;  // bytes of tensors that may stay in host memory; the others stay on disk
  std::optional<std::uint64_t> ring = {};  // bytes; by default the smallest ring that costs no time
  bool stream_all = false;                 // no group stays resident
  // plan() compresses the groups without loss, into pinned memory of its own, and uses the compressed ones where that
  // makes steps shorter. `host_memory` does not limit this memory. The other groups are still loaded from their
  // sources. Tensors of files that `slip compress` has written are used compressed even without this option.
  bool compress = false;
  // Device memory of the program; then the streamer allocates none. Its size is the budget, unless `budget` is smaller.
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

// A pass: one kind of step, such as the prefill or the generation of a token. `index` counts the calls of add_pass().
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
  std::uint64_t unplanned = 0;   // uses that are not in the plan
  std::uint64_t skipped = 0;     // planned uses that the program did not make
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

  // Without `uses` the pass is planned with all groups, in the order of the constructor, until its real order is known.
  // A pass may also be added after plan().
  WeightPass add_pass(std::string name, const std::vector<GroupUse>& uses = {}, Here here = Here::at());
  // Chooses the resident groups and the ring, plans all passes, takes the device memory and fills the resident groups.
  // The first begin() calls it if the program has not. If the budget is too small, it throws kOutOfMemory, and the
  // error names the smallest budget that works.
  void plan(Here here = Here::at());

  // The plan of a pass, as data: see weights.hpp. In its graph each use is an op and each group a weight.
  const WeightsPlan& plan_of(WeightPass pass, Here here = Here::at()) const;
  const Graph& graph_of(WeightPass pass, Here here = Here::at()) const;
  const Costs& costs_of(WeightPass pass, Here here = Here::at()) const;
  std::string describe(WeightPass pass, Here here = Here::at()) const;
  // verify() proves the order of the ops that a few steps of this pass issue, if one stream makes all uses in the
  // planned order. For this it runs the streamer's own code on a simulated device. predict() simulates such steps.
  WeightsProof verify(WeightPass pass, Here here = Here::at()) const;
  Prediction predict(WeightPass pass, int steps = 4, Here here = Here::at()) const;

  // Begins a step, and ends the uses of the previous step that were not released. Throws the error of a failed load.
  void begin(WeightPass pass, Here here = Here::at());
  // Returns the group's range in device memory, valid until release(). `stream` waits until the group is loaded. Throws
  // kOutOfMemory if the acquired groups leave no room in the ring; the error names them.
  Range acquire(std::uint32_t group, StreamRef stream, Here here = Here::at());
  Range acquire(std::string_view group, StreamRef stream, Here here = Here::at());
  // The use ends after the work issued to `stream` so far. REQUIRES: all work that uses the group's bytes is ordered
  // before that point.
  void release(std::uint32_t group, StreamRef stream, Here here = Here::at());
  void release(std::string_view group, StreamRef stream, Here here = Here::at());
  // The number of a group, for calls without a search by name.
  std::uint32_t group(std::string_view name, Here here = Here::at()) const;
  // The offset of tensor number `tensor` in the group's range.
  std::uint64_t offset(std::string_view group, std::size_t tensor, Here here = Here::at()) const;
  // The range of a group that stays on the device, valid after plan(), without acquire(). Empty: the group is streamed,
  // or it stays on the device compressed.
  std::optional<Range> resident(std::uint32_t group, Here here = Here::at()) const;
  static void* address(Range range);  // of an acquired range, for native calls

  void sync(Here here = Here::at());  // waits for the loads that were issued
  StreamerReport report() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slip
