// Bench: where the labs run. It opens devices, makes kernels take a wanted time on any of them, and measures runs.
//
// On sim a kernel takes its time from Cost and the figures are exact. On cpu it does its arithmetic and then turns in
// place until its time is over, leaving the core to others that need it: kernels last as long as they should on a busy
// machine too, and what is seen is the order and the overlap of streams, not the speed of the cores. On a GPU it does
// the same with its share of the device (cuda_kernels.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/lab/lab.hpp"
#include "flow/gradients/cluster_cost.hpp"
#include "slip/device.hpp"
#include "slip/figures.hpp"
#include "slip/plan.hpp"
#include "slip/trace.hpp"

namespace slip::cli {

// How long a kernel shall take.
struct Work {
  Cost cost;
  std::int64_t pace = 0;  // scalar 0 of the kernel, for Pace: 0 in virtual time
};

// Makes the kernel in which it lives, on cpu, take its time: scalar 0 (pace.hpp).
class Pace {
 public:
  explicit Pace(const Args& args);
  ~Pace();
  Pace(const Pace&) = delete;
  Pace& operator=(const Pace&) = delete;

 private:
  std::int64_t end_ns_;
};

// What was seen in one run.
struct Run {
  TraceData data;
  std::vector<TraceSpan> spans;
  Figures figures;
  std::size_t peak_bytes = 0;

  const TraceSpan& span(std::string_view name) const;  // the first op of that name; throws if there is none that ran
};

class Bench {
 public:
  // Throws UsageError when there is no such device.
  explicit Bench(LabOptions options);

  const LabOptions& options() const { return options_; }
  bool quick() const { return options_.quick; }
  bool virtual_time() const { return virtual_time_; }
  // A GPU is as it is: the number of its queues is fixed for the process, and there may be one only.
  bool on_gpu() const { return options_.device.starts_with("cuda"); }
  std::uint64_t bytes(std::uint64_t otherwise) const { return options_.bytes ? options_.bytes : otherwise; }

  // Of the machines asked for, in virtual time. It is known before a lab runs, so that a timeline shows the lab and not
  // the messages of a thousand devices, which take minutes to record.
  const std::optional<ClusterCost>& cluster() const { return cluster_; }

  Device open(const DeviceOptions& options = {}) const;
  std::vector<Device> open_all(int count, const DeviceOptions& options = {}) const;

  // Time of one upload of pinned memory on an idle device.
  Picos upload_time(std::uint64_t bytes) const;
  // A kernel that takes this long alone, or longer if its arithmetic does.
  Work work(Picos time, double width = 1.0) const;
  // How long a kernel takes in labs where only the order matters.
  Picos kernel_time() const;
  // A copy that is long enough for other threads to wake up meanwhile.
  std::uint64_t copy_bytes() const;

  // Runs the body, which issues work, then waits for the device. On cpu the streams given start only when all is
  // issued, as if issuing cost nothing, and of several runs the shortest counts: other programs can only make a run
  // longer. `prepare` runs before each, unmeasured. Give no streams if the body itself waits for work.
  Run measure(const Device& device, const std::vector<StreamRef>& streams, const std::function<void()>& body,
              const std::function<void()>& prepare = {}) const;

 private:
  LabOptions options_;
  bool virtual_time_ = false;
  std::optional<ClusterCost> cluster_;
};

// out[0][i] = in[0][i] + in[1][i] on floats. Scalar 0 of all kernels is for Pace.
extern const Kernel kVectorAdd;
// out[0][i] = scalar 1 * in[0][i] + in[1][i].
extern const Kernel kSaxpy;
// out[0][i] = scalar 1 * in[0][i] + scalar 2 on floats; may work in place.
extern const Kernel kScale;
// Only takes time; reads and writes what it is told to declare.
extern const Kernel kBusy;

// Whether two ops ran at the same time for a while.
bool together(const TraceSpan& a, const TraceSpan& b);
// "k1 -> k2 -> k3" or "k1 -> k2 || k3": the ops in the order in which they started. Of ops that "||" connects each pair
// overlapped, except those that follow: "k1 || k2 || k3, k1 -> k3".
std::string order_of(std::vector<TraceSpan> spans);

// Time in which some op of the first set ran, and the part of it in which one of the second ran too.
struct Cover {
  Picos busy = 0;
  Picos covered = 0;
};
using SpanFilter = std::function<bool(const TraceSpan&)>;
Cover cover(std::span<const TraceSpan> spans, const SpanFilter& of, const SpanFilter& by);
SpanFilter named(std::string_view prefix);

double ratio(Picos a, Picos b);  // a / b, 0 when b is 0

// How many of `seeds` runs were wrong. `program` issues, synchronises and says whether the result is right. Always on
// the cpu device with Policy::kRandom: it alone tries orders that time would hide.
int wrong_in_random_orders(int seeds, const std::function<bool(const Device&)>& program);

}  // namespace slip::cli
