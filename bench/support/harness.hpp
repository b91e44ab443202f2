// Side-by-side measurement. A `Bar` is a measured figure with a target: Slipstream's figure (`ours`) against that of
// the best of some peers, or against an absolute limit. The harness measures the sides alternately, compares medians
// and prints
//   BAR area name ours peer ratio target ok|missed|skipped
// and NOTE rows with what a reader needs to judge the figure.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "machine.hpp"
#include "options.hpp"
#include "timing.hpp"
#include "units.hpp"

namespace slip::bench {

enum class Better { kLower, kHigher };
enum class Verdict { kOk, kMissed, kSkipped };

const char* verdict_name(Verdict verdict);

// Handed to every measurement.
class Context {
 public:
  explicit Context(const Options& options) : options_(options) {}

  bool quick() const { return options_.quick; }
  int repeat() const { return options_.repeat; }
  std::size_t iterations(std::size_t full) const;

  // Adds a line that is printed below the bar. Equal texts are kept once, so every repetition may call it.
  void note(std::string text);

  // `return context.skip("no GPU");` says why a side has no number.
  std::nullopt_t skip(std::string reason);

  const std::vector<std::string>& notes() const { return notes_; }
  std::string take_skip_reason();

 private:
  const Options& options_;
  std::vector<std::string> notes_;
  std::string skip_reason_;
};

// Takes one sample, in the unit of the bar. No value: the side is not available here. An exception: it failed.
using Measure = std::function<std::optional<double>(Context&)>;

struct Peer {
  std::string name;
  Measure measure;
  std::string missing = "not available in this build";  // the reason if `measure` returns no value and gives none
};

struct Series {
  std::string name;
  std::vector<double> samples;
  std::string unavailable;  // why the series takes no part in the comparison; empty: it does

  bool usable() const { return unavailable.empty() && !samples.empty(); }
};

struct Recorded {
  Series ours;
  std::vector<Series> peers;
};

struct Bar {
  std::string area;
  std::string name;
  Unit unit = Unit::kNanoseconds;
  Better better = Better::kLower;
  Measure ours = {};
  std::vector<Peer> peers = {};      // the best of them is compared
  std::optional<double> limit = {};  // instead of peers: a maximum (Better::kLower) or a minimum (Better::kHigher)
  double target = 1.0;               // how many times better than the peer `ours` must be
  // Takes all samples of both sides itself, if they cannot be taken one by one. Replaces `ours` and `peers`.
  std::function<Recorded(Context&)> record = {};
  bool beside_busy = false;  // all sides run beside one busy process per core (busy.hpp)
  int warmups = 1;           // samples that are not kept; 0 if only a first run counts
  int max_repeat = 0;        // limits the number of samples of a slow bar; 0: as --repeat says
  // Pause between two sides: worker threads of the side before spin for a while, and must not take cores from the next.
  std::chrono::milliseconds settle{20};
};

struct BarResult {
  Series ours;
  std::vector<Series> peers;
  std::optional<std::size_t> best_peer;
  std::optional<double> ours_value;  // medians
  std::optional<double> peer_value;  // the best peer's, or the limit
  std::optional<double> ratio;
  Verdict verdict = Verdict::kSkipped;
  std::vector<std::string> notes;
};

double median(std::vector<double> values);

// Compares samples that were taken before. Prints nothing.
BarResult judge(const Bar& bar, Recorded recorded, std::vector<std::string> notes);

// The BAR row without its newline.
std::string bar_row(const Bar& bar, const BarResult& result);
std::string target_text(const Bar& bar);

class Harness {
 public:
  // Throws std::invalid_argument for a bar that could not be printed or compared: that is a mistake in the
  // benchmark program, not in how it was called.
  void add(Bar bar);

  // Parses the command line, runs what it selects and returns the exit status of the program.
  int run(int argc, const char* const* argv);

 private:
  struct Outcome {
    const Bar* bar;
    BarResult result;
  };

  BarResult run_bar(const Bar& bar, const Options& options) const;
  bool write_json(const Options& options, const MachineInfo& machine, const std::vector<Outcome>& outcomes) const;

  std::vector<Bar> bars_;
};

}  // namespace slip::bench
