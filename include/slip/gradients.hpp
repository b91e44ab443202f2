// Gradients: overlaps the all_reduce of gradients with the rest of the backward pass, the optimizer and the next
// forward pass.
//
//   slip::Gradients gradients(comm, device);
//   auto w = gradients.add("fc.weight", bytes, slip::DataType::kF32);   // in the order of the forward pass
//   gradients.seal();                                                    // all ranks; compares their parameters
//   for (...) {
//     compute.launch(backward, {... .writes = {gradients.view(w)}});
//     gradients.ready(w, compute);                                       // its reduction overlaps with later work
//     ...
//     gradients.wait(w, compute);                                        // from here the view holds the average
//     compute.launch(optimizer, ...);
//     gradients.step_end();
//   }
//
// All gradients are views into one buffer. Gradients that arrive consecutively lie side by side, so a bucket is a range
// of the buffer and nothing is copied. Bucket reductions run on their own stream, ordered by events: no call of a step
// waits for work. The exceptions are the first steps. The end of step one plans the buckets from its arrival times, and
// views may move then: call view() in each step. From the third step on nothing moves and nothing is allocated, unless
// a new plan is made.
//
// All ranks make the same calls in the same order; only the order of ready() may differ. A faulty step (ready() twice,
// a missing gradient, a hook that throws) ends with an error on every rank that names rank, parameter and size. After
// that the communicator is unusable. Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "slip/communicator.hpp"
#include "slip/gradient_plan.hpp"
#include "slip/gradient_report.hpp"

namespace slip {

enum class ParameterId : std::uint32_t {};

// One bucket, as a hook gets it. The hook enqueues ops that turn `data` into the average over all ranks.
struct GradientCall {
  Communicator& comm;
  StreamRef stream;  // its ops run after the gradients have been written
  Range data;
  DataType type = DataType::kF32;
  Range scratch;  // memory of the same size, for the hook
};
using GradientHook = std::function<void(const GradientCall&)>;

// The type in which f32 gradients are sent; other types are sent unchanged. Values are rounded before sending and after
// each rank's addition.
enum class Compression : std::uint8_t { kNone, kF16, kBF16 };
const char* compression_name(Compression compression);

// The same on all ranks.
struct GradientOptions {
  BucketRule buckets = BucketRule::kPlanned;
  DdpLimits ddp = {};  // for kDdp, and until the first step is measured
  Compression compression = Compression::kNone;
  GradientHook hook = {};  // replaces all_reduce; gradients are not cut into slices then
  ReduceCost cost = {};    // of a call without concurrent work; if not given, seal() measures it
  int check_every = 64;    // every so many steps times are compared, and a new plan is made if they changed; 0: never
  bool measure = false;    // time every step, for report()
  bool norm = false;       // clip_norm() will be called
};

class Gradients {
 public:
  // REQUIRES: `comm` outlives this object and is not moved; its device is `device`. Several Gradients may share a
  // device, each with its own communicator.
  Gradients(Communicator& comm, const Device& device, GradientOptions options = {}, Here here = Here::at());
  Gradients(Gradients&&) noexcept;
  Gradients& operator=(Gradients&&) noexcept;
  ~Gradients();  // waits for its calls

  // Before seal(). Names must be unique, and `bytes` a multiple of the type's size.
  ParameterId add(std::string_view name, std::uint64_t bytes, DataType type, Here here = Here::at());
  // All ranks call it and must have added the same parameters. It allocates, and measures calls
  // (GradientOptions::cost).
  void seal(Here here = Here::at());

  Range view(ParameterId parameter, Here here = Here::at()) const;

  // The gradient is complete when the work that `stream` has now is done.
  void ready(ParameterId parameter, StreamRef stream, Here here = Here::at());
  // The parameter has no gradient in this step: `stream` writes zeros, which count as this rank's values.
  void absent(ParameterId parameter, StreamRef stream, Here here = Here::at());
  // Later work of `stream` sees the average. Throws kNotReady if ready() is missing for a gradient of the same or an
  // earlier bucket, and names it. In each step wait for every gradient that the next step overwrites.
  void wait(ParameterId parameter, StreamRef stream, Here here = Here::at());
  // `stream` waits for all gradients and scales them so that their norm is at most `max_norm`. Later waits include it.
  // norm() holds the norm before scaling once `stream` has reached this point.
  void clip_norm(double max_norm, StreamRef stream, Here here = Here::at());
  // One norm over several sets with different communicators, such as experts beside shared parameters. All ranks of
  // `all`, which contains the ranks of every set, call it. A gradient that several ranks share counts once. Afterwards
  // norm() of each set is the common norm.
  static void clip_norm(std::span<Gradients* const> sets, Communicator& all, double max_norm, StreamRef stream,
                        Here here = Here::at());
  Range norm() const;  // a double, in pinned memory
  void step_end(Here here = Here::at());

  // While a NoSync exists, steps are not reduced: the kernels that write the views accumulate gradients in them.
  class NoSync {
   public:
    explicit NoSync(Gradients& gradients);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Gradients& gradients_;
  };

  std::uint64_t steps() const;  // reduced so far
  const BucketPlan& plan() const;
  std::uint64_t plans() const;     // number of plans made
  const ReduceCost& cost() const;  // of calls within steps, where concurrent compute may slow them down
  // The last measured step that is complete. Never blocks.
  std::optional<GradientReport> report() const;
  // The measured step that the last planning used; empty before the first plan.
  const GradientProfile& profile() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slip
