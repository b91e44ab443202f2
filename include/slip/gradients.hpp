// Gradients: reduces gradients over all ranks while the rest of the backward pass, the optimizer and the next forward
// pass run.
//
//   slip::Gradients gradients(comm, device);
//   auto w = gradients.add("fc.weight", bytes, slip::DataType::kF32);   // in the order of the forward pass
//   gradients.seal();                                                    // all ranks; compares their parameters
//   for (...) {
//     compute.launch(backward, {... .writes = {gradients.view(w)}});
//     gradients.ready(w, compute);                                       // reduced while later work runs
//     ...
//     gradients.wait(w, compute);                                        // now the view holds the average of all ranks
//     compute.launch(optimizer, ...);
//     gradients.step_end();
//   }
//
// Gradients are views into one buffer, in the order in which they become ready. So a bucket is a range of the buffer,
// and nothing is copied. Buckets are reduced in a separate stream, ordered by events, so no call of a step blocks the
// host. The first step is an exception: step_end() waits for it and plans the buckets from its times. Then views may
// move, so call view() in each step. From the third step on nothing moves and nothing is allocated, except when a new
// plan is made.
//
// All ranks make the same calls in the same order; only the order of ready() may differ. An error in a step (ready()
// twice, a missing gradient, a hook that throws) becomes an error on every rank. It names the rank, the parameter and
// its size. The communicator cannot be used afterwards. One thread at a time.
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

// One bucket, for a hook: the hook enqueues the ops that make `data` the average over all ranks.
struct GradientCall {
  Communicator& comm;
  StreamRef stream;  // ops enqueued here run after the gradients in `data` are written
  Range data;
  DataType type = DataType::kF32;
  Range scratch;  // as large as `data`, for the hook
};
using GradientHook = std::function<void(const GradientCall&)>;

// The data type in which f32 gradients are sent; others are sent as they are. Values are rounded before they are sent,
// and after the addition of each rank.
enum class Compression : std::uint8_t { kNone, kF16, kBF16 };
const char* compression_name(Compression compression);

// Must be the same on all ranks.
struct GradientOptions {
  BucketRule buckets = BucketRule::kPlanned;
  DdpLimits ddp = {};  // for kDdp, and for kPlanned until a step was measured
  Compression compression = Compression::kNone;
  GradientHook hook = {};  // used instead of all_reduce; buckets then hold whole gradients
  ReduceCost cost = {};    // of reducing a bucket while nothing else runs; if not given, seal() measures it
  int check_every = 64;    // steps between checks: if times have changed, a new plan is made. 0: never
  bool measure = false;    // records every step, for report()
  bool norm = false;       // clip_norm() will be called in every step
};

class Gradients {
 public:
  // The object shares `comm`, whose device is `device`, and keeps its state alive: the program may move or destroy
  // `comm` earlier. Several objects may share a device, each with a communicator of its own.
  Gradients(Communicator& comm, const Device& device, GradientOptions options = {}, Here here = Here::at());
  Gradients(Gradients&&) noexcept;
  Gradients& operator=(Gradients&&) noexcept;
  // Waits for its calls. If other ranks on the GPU are threads of this process, it does not free the memory; the next
  // seal() of the process does. Freeing waits until the GPU is idle, and a kernel there may wait for this rank.
  ~Gradients();

  // Before seal(). Names must be unique, sizes a multiple of the type's.
  ParameterId add(std::string_view name, std::uint64_t bytes, DataType type, Here here = Here::at());
  // All ranks call it, and must have added the same parameters. Allocates, and measures the cost of calls.
  void seal(Here here = Here::at());

  Range view(ParameterId parameter, Here here = Here::at()) const;

  // The work in `stream` so far writes the gradient. The stream must stay open, and must not begin a capture, until all
  // gradients of the same bucket are ready: the event that the reduction waits for may be recorded only then.
  void ready(ParameterId parameter, StreamRef stream, Here here = Here::at());
  // This rank has no gradient for the parameter in this step. The call writes zeros in `stream`, and they are reduced
  // instead.
  void absent(ParameterId parameter, StreamRef stream, Here here = Here::at());
  // Later work in `stream` runs after the reduction, so the view then holds the average. Throws kNotReady if ready()
  // was not called for a gradient in the same bucket or an earlier one; the error names it. In each step, wait for all
  // gradients that the next step writes again.
  void wait(ParameterId parameter, StreamRef stream, Here here = Here::at());
  // Scales all gradients so that their norm is at most `max_norm`. The scaling runs in `stream`, after all reductions;
  // later waits wait for it. norm() holds the norm before scaling once `stream` has run this.
  void clip_norm(double max_norm, StreamRef stream, Here here = Here::at());
  // Clips several sets by their common norm. Each set has its own communicator, as in a mixture-of-experts model with
  // expert and shared parameters. `all` has every rank of these communicators, and all its ranks call this. Gradients
  // that several ranks share count once. norm() of each set is the common norm.
  static void clip_norm(std::span<Gradients* const> sets, Communicator& all, double max_norm, StreamRef stream,
                        Here here = Here::at());
  Range norm() const;  // a double, in pinned memory
  void step_end(Here here = Here::at());

  // While a NoSync object exists, steps are not reduced: the program accumulates gradients in the views.
  class NoSync {
   public:
    explicit NoSync(Gradients& gradients);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Gradients& gradients_;
  };

  std::uint64_t steps() const;  // number of reduced steps
  const BucketPlan& plan() const;
  std::uint64_t plans() const;     // number of plans so far
  const ReduceCost& cost() const;  // of reducing a bucket while compute ops run, which may slow the reduction
  // The last recorded step that is done. Never waits.
  std::optional<GradientReport> report() const;
  // The times that the last plan was made from; empty before the first one.
  const GradientProfile& profile() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slip
