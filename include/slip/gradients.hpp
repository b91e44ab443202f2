// Gradients: hides the reduction of gradients behind the rest of the backward pass, the optimizer and the next forward.
//
//   slip::Gradients gradients(comm, device);
//   auto w = gradients.add("fc.weight", bytes, slip::DataType::kF32);   // in the order of the forward pass
//   gradients.seal();                                                    // all ranks; compares what they registered
//   for (...) {
//     compute.launch(backward, {... .writes = {gradients.view(w)}});
//     gradients.ready(w, compute);                                       // reduced behind what comes next
//     ...
//     gradients.wait(w, compute);                                        // now the view holds the average of all ranks
//     compute.launch(optimizer, ...);
//     gradients.step_end();
//   }
//
// Gradients are views into one buffer in which those that arrive one after the other lie side by side, so a bucket is a
// range of it and nothing is copied. A bucket's reduction is an op of a stream of its own, behind events: no call of a
// step waits for work. The first steps are an exception: at the end of the first one it is planned, with its arrival
// times; then views may move, so take them anew for each step. From the third step on nothing moves and nothing is
// allocated, unless a new plan is looked for.
//
// All ranks make the same calls in the same order, but for the order of ready() among each other. A step in which
// something is wrong (ready twice, a gradient left out, a hook that throws) ends with an error on every rank, which
// names rank, parameter and size; the communicator is lost with it. One thread at a time.
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

// One call of a step, for a hook: it enqueues what makes `data` the average over all ranks.
struct GradientCall {
  Communicator& comm;
  StreamRef stream;  // the gradients are there for what is enqueued here
  Range data;
  DataType type = DataType::kF32;
  Range scratch;  // as large, for the hook
};
using GradientHook = std::function<void(const GradientCall&)>;

// How gradients travel; f32 only, others travel as they are. They are rounded before, and after each rank.
enum class Compression : std::uint8_t { kNone, kF16, kBF16 };
const char* compression_name(Compression compression);

// The same on all ranks.
struct GradientOptions {
  BucketRule buckets = BucketRule::kPlanned;
  DdpLimits ddp = {};  // of kDdp, and until something is measured
  Compression compression = Compression::kNone;
  GradientHook hook = {};  // instead of all_reduce; buckets do not cut gradients then
  ReduceCost cost = {};    // of a call alone, by its bytes; if it is not given, seal() measures it
  int check_every = 64;  // steps; then times are looked at, and if they have changed a new plan is looked for. 0: never
  bool measure = false;  // times every step, for report()
  bool norm = false;     // clip_norm() will be called
};

class Gradients {
 public:
  // The object shares `comm`, whose device is `device`, and keeps it alive: `comm` may move or go before it. Several
  // objects may share a device, each with a communicator of its own.
  Gradients(Communicator& comm, const Device& device, GradientOptions options = {}, Here here = Here::at());
  Gradients(Gradients&&) noexcept;
  Gradients& operator=(Gradients&&) noexcept;
  ~Gradients();  // waits for its calls

  // Before seal(). Names are unique; sizes a multiple of the type's.
  ParameterId add(std::string_view name, std::uint64_t bytes, DataType type, Here here = Here::at());
  // All ranks, which must have added the same. Allocates, and measures what calls take.
  void seal(Here here = Here::at());

  Range view(ParameterId parameter, Here here = Here::at()) const;

  // The gradient is written when `stream` has done what it has now.
  void ready(ParameterId parameter, StreamRef stream, Here here = Here::at());
  // In this step it has none: zeros are written in `stream` and count as this rank's.
  void absent(ParameterId parameter, StreamRef stream, Here here = Here::at());
  // What comes later in `stream` finds the average. kNotReady when a gradient that is reduced with it, or before it,
  // has not been told of; the error names it. Wait in each step for all gradients that the next one writes again.
  void wait(ParameterId parameter, StreamRef stream, Here here = Here::at());
  // Scales all gradients so that their norm is at most `most`, in `stream`, which waits for all of them; later waits
  // wait for it. The norm before is in norm() once `stream` is there.
  void clip_norm(double most, StreamRef stream, Here here = Here::at());
  // The norm of several sets as one, each of a communicator of its own, as those of experts beside shared parameters
  // are. `all` has every rank of theirs, and all its ranks call it; gradients that a group of ranks has in common count
  // once. norm() of each is that of all.
  static void clip_norm(std::span<Gradients* const> sets, Communicator& all, double most, StreamRef stream,
                        Here here = Here::at());
  Range norm() const;  // a double, in pinned memory
  void step_end(Here here = Here::at());

  // While one is there steps are not reduced: gradients are added up in the views by who writes them.
  class NoSync {
   public:
    explicit NoSync(Gradients& gradients);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Gradients& gradients_;
  };

  std::uint64_t steps() const;  // that were reduced
  const BucketPlan& plan() const;
  std::uint64_t plans() const;     // how many there were
  const ReduceCost& cost() const;  // of calls in steps: beside compute they may take longer than alone
  // The last step that was measured and is done. It waits for nothing.
  std::optional<GradientReport> report() const;
  // The step as it was measured when a plan was last looked for; nothing before the first plan.
  const GradientProfile& profile() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slip
