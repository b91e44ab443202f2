// Bench: opens devices for the labs, makes kernels take a given time on any of them, and measures runs.
//
// On sim a kernel takes the time of its Cost, and figures are exact. On cpu it computes, then yields in a loop until
// its time is over. So kernels take the given time on a busy machine, too, and runs show the order and overlap of
// streams, not the speed of cores. On a GPU a kernel does the same with its share of the device (cuda_kernels.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/json_fields.hpp"
#include "base/sync.hpp"
#include "cli/lab/lab.hpp"
#include "flow/gradients/predict_step.hpp"
#include "slip/device.hpp"
#include "slip/figures.hpp"
#include "slip/plan.hpp"
#include "slip/trace.hpp"

namespace slip::cli {

inline constexpr auto kNonBlocking = StreamFlags::kNonBlocking;

// The duration of a kernel.
struct Work {
  Cost cost;
  std::int64_t pace = 0;  // scalar 0 of the kernel, read by Pace; 0 in virtual time
};

// A local object of a cpu kernel. Its destructor waits until the kernel's time (scalar 0, see pace_of) is over.
class Pace : base::NoCopy {
 public:
  explicit Pace(const Args& args);
  ~Pace();

 private:
  std::int64_t end_ns_;
};

// Two pairs of pinned host memory and device memory, with all pages mapped.
struct CopyMemory {
  CopyMemory(const Device& on, std::size_t bytes);
  Buffer host[2], device[2];
};

struct Run {
  TraceData data;
  std::vector<TraceSpan> spans;
  Figures figures;
  std::size_t peak_bytes = 0;

  const TraceSpan& span(std::string_view name) const;  // the first op of that name that ran; throws if there is none
  std::vector<TraceSpan> kernels() const {             // the kernels that ran
    std::vector<TraceSpan> result = spans;
    std::erase_if(result, [](const TraceSpan& span) { return !span.run || span.kind != OpKind::kKernel; });
    return result;
  }
};

struct CheckedRun {
  Run run;
  bool ok = false;  // the result is right
};

class Bench {
 public:
  // Throws UsageError if the device does not exist.
  explicit Bench(LabOptions options);

  const LabOptions& options() const { return options_; }
  bool quick() const { return options_.quick; }
  bool virtual_time() const { return virtual_time_; }
  // On a GPU the number of hardware queues is fixed for the process, and there may be only one GPU.
  bool on_gpu() const { return options_.device.starts_with("cuda"); }
  std::uint64_t bytes(std::uint64_t otherwise) const { return options_.bytes ? options_.bytes : otherwise; }

  // Reduction costs of the machines in --topology, in virtual time. They are computed before the lab runs. Otherwise
  // its timeline would contain the messages of the machines that are simulated.
  const std::optional<flow::ClusterCost>& cluster() const { return cluster_; }

  Device open(const DeviceOptions& options = {}) const { return Device::open(options_.device, options); }

  // Time of one upload of pinned memory on an idle device.
  Picos upload_time(std::uint64_t bytes) const;
  // The work of a kernel that takes `time` alone, or longer if its arithmetic does.
  Work work(Picos time, double width = 1.0) const;
  // Kernel duration in labs where only the order matters.
  Picos kernel_time() const {
    constexpr Picos kMilli = 1'000'000'000;
    return quick() && !virtual_time_ ? 4 * kMilli : 10 * kMilli;
  }
  // Size of a copy that lasts long enough for other threads to wake up.
  std::uint64_t copy_bytes() const { return virtual_time_ ? 8 << 20 : quick() ? 16 << 20 : 64 << 20; }

  // Runs the body, which issues work, then waits for the device. On cpu `streams` start only when all work is issued,
  // as if issuing took no time. The shortest of several runs counts, because other programs can only make a run longer.
  // `prepare` runs before each run and is not measured. Pass no streams if the body itself waits for work.
  Run measure(const Device& device, const std::vector<StreamRef>& streams, const std::function<void()>& body,
              const std::function<void()>& prepare = {}) const;

 private:
  LabOptions options_;
  bool virtual_time_ = false;
  std::optional<flow::ClusterCost> cluster_;
};

// out[0][i] = in[0][i] + in[1][i] on floats. Scalar 0 of all kernels is the pace (Pace).
extern const Kernel kVectorAdd;
// out[0][i] = scalar 1 * in[0][i] + in[1][i].
extern const Kernel kSaxpy;
// out[0][i] = scalar 1 * in[0][i] + scalar 2 on floats; may work in place.
extern const Kernel kScale;
// Only takes time; it accesses nothing, whatever ranges its launch declares.
extern const Kernel kBusy;

inline void busy(StreamRef stream, const char* name, const Work& work) {
  stream.launch(kBusy, {{}, {}, {work.pace}, name}, work.cost);
}

// True if the two ops overlapped in time.
bool together(const TraceSpan& a, const TraceSpan& b);
// "k1 -> k2 -> k3" or "k1 -> k2 || k3": the ops in start order. "||" connects ops that overlap pairwise; exceptions
// follow after a comma: "k1 || k2 || k3, k1 -> k3".
std::string order_of(std::vector<TraceSpan> spans);
inline std::string kernel_order(const Run& run) { return order_of(run.kernels()); }

// Time in which an op of the first set ran, and the part of it in which an op of the second set ran, too.
struct Cover {
  Picos busy = 0;
  Picos covered = 0;
};
using SpanFilter = std::function<bool(const TraceSpan&)>;
Cover cover(std::span<const TraceSpan> spans, const SpanFilter& of, const SpanFilter& by);
SpanFilter named(std::string_view prefix);

double ratio(Picos a, Picos b);  // a / b; 0 if b is 0

// Runs the program in `seeds` random orders and returns the number of wrong results. `program` issues work,
// synchronises and returns whether the result is right. It always uses the cpu device with CpuPolicy::kRandom, which
// runs ops in any order that their events allow: a missing wait shows as a wrong result.
int wrong_in_random_orders(int seeds, const std::function<bool(const Device&)>& program);

// --- The program of lab events, which lab questions runs, too: four layers in two weight slots (events.cpp) ---

// Number of event objects, and positions of the waits.
enum class EventScheme {
  kThree,          // two for layers, one for loads; waits directly before the ops that need them
  kTwo,            // the same calls, but the layers share one event
  kTwoWaitAtOnce,  // one for layers, one for loads; each wait directly after its record
  kOneWaitAtOnce,  // one for all; each wait directly after its record
};
inline constexpr int kEdges = 5;

// Measures the program on a device of its own.
CheckedRun run_two_slots(const Bench& bench, EventScheme use, std::size_t bytes, const Work& add);

// Number of wrong results in `seeds` random orders of the four-layer program without the edge.
int wrong_without_edge(int seeds, int edge);

// --- Cases of labs that need one hardware queue, on a GPU (lab.cpp) ---
//
// The driver reads the number of queues when a process first uses it (CUDA_DEVICE_MAX_CONNECTIONS), and never again. So
// the case runs in processes of its own: this program, started again with the hidden command `one-queue`.
//
// The ranks of lab gradients must be processes there for another reason, too. In one queue of one process, a stream
// that waits for a call would be in front of the call of another rank: a deadlock.

inline constexpr int kQueuesOfLabs = 32;  // of all other cases on a GPU: no two streams of a lab share a queue

// The place of such a result in errors.
inline constexpr const char* kResultOfCase = "the result of the case with one hardware queue";

inline constexpr Picos kMaxCaseTime = Picos{1} << 60;  // of a case

// Runs the case of this lab in `ranks` processes and returns what rank 0 reports. Throws if a process fails.
base::Json run_with_one_queue(const Bench& bench, std::string_view lab, int ranks);

// The case itself, in such a process. Only rank 0's result counts.
base::Json hook_with_one_queue(const Bench& bench);
base::Json gradients_with_one_queue(const Bench& bench);

}  // namespace slip::cli
