// TwoSlots: the four-layer model in two weight slots with explicit events, for the labs that vary them.
//
// A0..A3 are the layers (adds), L0..L2 the loads of weights 1..3. Layer 0's weight is in slot 0 before the run. Between
// the streams five edges are needed:
//   1..3  A1, A2, A3 after L0, L1, L2: a layer reads the loaded weight
//   4, 5  L1, L2 after A0, A1: a load overwrites the weight that the layer has read
#pragma once

#include <array>
#include <vector>

#include "cli/lab/bench.hpp"

namespace slip::cli {

// Number of event objects, and positions of the waits.
enum class EventScheme {
  kThree,          // two for layers, one for loads; waits directly before the ops that need them
  kTwo,            // the same calls, but the layers share one event
  kTwoWaitAtOnce,  // one for layers, one for loads; each wait directly after its record
  kOneWaitAtOnce,  // one for all; each wait directly after its record
};
inline constexpr int kEdges = 5;

class TwoSlots {
 public:
  TwoSlots(const Device& device, std::size_t bytes, const Work& add);

  // Resets the data and waits for the device.
  void prepare();
  // Issues the run. `without`: the edge to omit, 1 to 5; 0: none.
  void issue(EventScheme use, int without = 0) const {
    if (use == EventScheme::kThree || use == EventScheme::kTwo) issue_three(use == EventScheme::kTwo, without);
    else issue_at_once(use == EventScheme::kOneWaitAtOnce);
  }
  std::vector<StreamRef> streams() const { return {compute_, load_}; }
  bool ok() const;  // REQUIRES: the device is synchronised

 private:
  void issue_three(bool shared, int without) const;
  void issue_at_once(bool shared) const;
  void add(std::size_t layer) const;
  void load(std::size_t weight) const;

  Device device_;
  Work add_;
  StreamRef compute_;
  Stream load_;
  std::vector<Buffer> host_;  // weights
  std::array<Buffer, 2> slots_, data_;
  Buffer input_, output_;
};

// Measures the program on a device of its own.
struct SlotsRun {
  Run run;
  bool ok = false;
};
SlotsRun run_two_slots(const Bench& bench, EventScheme use, std::size_t bytes, const Work& add);

// Number of wrong results in `seeds` random orders of the four-layer program without the edge.
int wrong_without_edge(int seeds, int edge);

}  // namespace slip::cli
