#include "harness.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "busy.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kQuickDivisor = 10;

bool is_better(double a, double b, Better better) { return better == Better::kLower ? a < b : a > b; }

// How many times better `ours` is. A difference such as the growth of the RSS can be zero or negative: such a cost is
// infinitely better than a positive one, and equal to another such cost.
double peer_ratio(double ours, double peer, Better better) {
  const double over = better == Better::kLower ? peer : ours;
  const double under = better == Better::kLower ? ours : peer;
  if (under > 0) return std::max(over, 0.0) / under;
  return over > 0 ? std::numeric_limits<double>::infinity() : 1.0;
}

double limit_ratio(double ours, double limit) {
  if (limit != 0) return ours / limit;
  if (ours == 0) return 0;
  return std::copysign(std::numeric_limits<double>::infinity(), ours);
}

Rounding pessimistic(const Bar& bar) {
  return bar.limit && bar.better == Better::kLower ? Rounding::kUp : Rounding::kDown;
}

// Adds one sample. False: this side gives no more samples.
bool take_sample(const Measure& measure, const std::string& missing, Context& context, Series& series, bool keep) {
  try {
    const std::optional<double> value = measure(context);
    if (!value) {
      const std::string reason = context.take_skip_reason();
      series.unavailable = reason.empty() ? missing : reason;
      return false;
    }
    if (!std::isfinite(*value)) throw std::runtime_error("a sample is not a finite number");
    if (keep) series.samples.push_back(*value);
    return true;
  } catch (const std::exception& error) {
    series.unavailable = fmt::format("failed: {}", error.what());
    return false;
  }
}

bool has_failed(const Series& series) { return series.unavailable.rfind("failed: ", 0) == 0; }

Recorded record_all(const Bar& bar, Context& context) {
  Recorded recorded;
  try {
    recorded = bar.record(context);
    if (std::string reason = context.take_skip_reason(); !reason.empty()) {
      recorded.ours.unavailable = std::move(reason);
    }
  } catch (const std::exception& error) {
    recorded.ours.unavailable = fmt::format("failed: {}", error.what());
  }
  if (recorded.ours.name.empty()) recorded.ours.name = "ours";
  return recorded;
}

// Takes one sample of every side that still gives samples. Odd turns go in reverse order, so that no side always runs
// after the same other side.
void take_turn(const Bar& bar, int turn, Context& context, Recorded& recorded) {
  const bool keep = turn >= bar.warmups;
  const std::size_t sides = bar.peers.size() + 1;
  for (std::size_t k = 0; k < sides; ++k) {
    const std::size_t side = turn % 2 == 0 ? k : sides - 1 - k;
    Series& series = side == 0 ? recorded.ours : recorded.peers[side - 1];
    if (!series.unavailable.empty()) continue;
    std::this_thread::sleep_for(bar.settle);
    if (side > 0) {
      const Peer& peer = bar.peers[side - 1];
      take_sample(peer.measure, peer.missing, context, series, keep);
    } else if (!take_sample(bar.ours, "not available here", context, series, keep)) {
      return;  // without `ours` the other samples have no use
    }
  }
}

Recorded measure_all(const Bar& bar, Context& context) {
  Recorded recorded;
  recorded.ours.name = "ours";
  for (const Peer& peer : bar.peers) recorded.peers.push_back({peer.name, {}, {}});
  const int turns = bar.warmups + context.repeat();
  for (int turn = 0; turn < turns && recorded.ours.unavailable.empty(); ++turn) {
    take_turn(bar, turn, context, recorded);
  }
  return recorded;
}

bool is_word(const std::string& text) {
  return !text.empty() && std::none_of(text.begin(), text.end(), [](unsigned char c) { return c <= ' '; });
}

void progress(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::fflush(stderr);
}

// A note of several lines would otherwise make rows without a row name.
void print_notes(const Bar& bar, const BarResult& result) {
  for (std::string note : result.notes) {
    std::replace(note.begin(), note.end(), '\n', ' ');
    fmt::print("NOTE {} {} {}\n", bar.area, bar.name, note);
  }
}

void add_peer_notes(const Bar& bar, BarResult& result) {
  for (const Series& peer : result.peers) {
    if (peer.usable()) continue;
    const std::string reason = peer.unavailable.empty() ? "no samples" : peer.unavailable;
    result.notes.push_back(fmt::format("peer {} not measured: {}", peer.name, reason));
  }
  if (result.peers.size() < 2 || !result.best_peer) return;
  std::string text = fmt::format("best peer {}; all:", result.peers[*result.best_peer].name);
  for (const Series& peer : result.peers) {
    if (peer.usable()) text += fmt::format(" {}={}", peer.name, format_value(median(peer.samples), bar.unit));
  }
  result.notes.push_back(std::move(text));
}

void select_best_peer(const Bar& bar, BarResult& result) {
  for (std::size_t i = 0; i < result.peers.size(); ++i) {
    if (!result.peers[i].usable()) continue;
    const double value = median(result.peers[i].samples);
    if (result.peer_value && !is_better(value, *result.peer_value, bar.better)) continue;
    result.best_peer = i;
    result.peer_value = value;
  }
}

}  // namespace

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk: return "ok";
    case Verdict::kMissed: return "missed";
    case Verdict::kSkipped: return "skipped";
  }
  return "unknown";
}

std::size_t Context::iterations(std::size_t full) const {
  return quick() ? std::max<std::size_t>(1, full / kQuickDivisor) : full;
}

void Context::note(std::string text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(std::move(text));
}

std::nullopt_t Context::skip(std::string reason) {
  skip_reason_ = std::move(reason);
  return std::nullopt;
}

std::string Context::take_skip_reason() { return std::exchange(skip_reason_, {}); }

double median(std::vector<double> values) {
  if (values.empty()) throw std::invalid_argument("median of no values");
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

BarResult judge(const Bar& bar, Recorded recorded, std::vector<std::string> notes) {
  BarResult result;
  result.ours = std::move(recorded.ours);
  result.peers = std::move(recorded.peers);
  result.notes = std::move(notes);
  if (bar.limit) result.peer_value = bar.limit;
  else select_best_peer(bar, result);
  add_peer_notes(bar, result);
  if (!result.ours.usable()) {
    // A side that is not available skips the bar. A side that failed misses it.
    result.verdict = has_failed(result.ours) ? Verdict::kMissed : Verdict::kSkipped;
    const std::string reason = result.ours.unavailable.empty() ? "no samples" : result.ours.unavailable;
    result.notes.push_back(fmt::format("ours not measured: {}", reason));
    return result;
  }
  result.ours_value = median(result.ours.samples);
  if (!result.peer_value) return result;
  bool reached = false;
  if (bar.limit) {
    result.ratio = limit_ratio(*result.ours_value, *bar.limit);
    reached = !is_better(*bar.limit, *result.ours_value, bar.better);
  } else {
    result.ratio = peer_ratio(*result.ours_value, *result.peer_value, bar.better);
    reached = *result.ratio >= bar.target;
  }
  result.verdict = reached ? Verdict::kOk : Verdict::kMissed;
  return result;
}

std::string target_text(const Bar& bar) {
  if (!bar.limit) return fmt::format(">={:g}x", bar.target);
  return bar.better == Better::kLower ? "<=1x" : ">=1x";
}

std::string bar_row(const Bar& bar, const BarResult& result) {
  const auto value_text = [&](const std::optional<double>& value) {
    return value ? format_value(*value, bar.unit) : std::string("-");
  };
  const std::string ratio = result.ratio ? format_ratio(*result.ratio, pessimistic(bar)) : "-";
  return fmt::format("BAR {} {} {} {} {} {} {}", bar.area, bar.name, value_text(result.ours_value),
                     value_text(result.peer_value), ratio, target_text(bar), verdict_name(result.verdict));
}

void Harness::add(Bar bar) {
  const std::string label = bar.area + "." + bar.name;
  if (!is_word(bar.area) || !is_word(bar.name)) {
    throw std::invalid_argument("area and name of a bar must be single words: " + label);
  }
  for (const Bar& other : bars_) {
    if (other.area != bar.area || other.name != bar.name) continue;
    throw std::invalid_argument("bar added twice: " + label);
  }
  if (!bar.ours && !bar.record) throw std::invalid_argument("bar without a measurement: " + label);
  if (bar.record && (bar.ours || !bar.peers.empty())) {
    throw std::invalid_argument("bar with both record and ours or peers: " + label);
  }
  if (bar.limit && !bar.peers.empty()) throw std::invalid_argument("bar with both peers and limit: " + label);
  if (!bar.limit && bar.peers.empty() && !bar.record) {
    throw std::invalid_argument("bar with neither peers nor limit: " + label);
  }
  for (const Peer& peer : bar.peers) {
    if (!peer.measure) throw std::invalid_argument("peer without a measurement: " + label);
  }
  bars_.push_back(std::move(bar));
}

BarResult Harness::run_bar(const Bar& bar, const Options& options) const {
  Options bar_options = options;
  if (bar.max_repeat > 0) bar_options.repeat = std::min(options.repeat, bar.max_repeat);
  Context context(bar_options);
  std::optional<BusyProcesses> busy;
  if (bar.beside_busy) {
    busy.emplace();
    context.note(fmt::format("beside {} busy processes, one on each core, at the same priority", busy->count()));
  }
  Recorded recorded = bar.record ? record_all(bar, context) : measure_all(bar, context);
  return judge(bar, std::move(recorded), context.notes());
}

int Harness::run(int argc, const char* const* argv) {
  const std::string program = argc > 0 ? argv[0] : "bench";
  Options options;
  try {
    options = parse_options(argc, argv);
  } catch (const std::invalid_argument& error) {
    progress(fmt::format("{}: {}\n{}", program, error.what(), usage_text(program)));
    return 2;
  }
  if (options.help) {
    fmt::print("{}", usage_text(program));
    return 0;
  }
  // Checked before the run, which may be long. Opening the file to append keeps an older result until there is a new
  // one.
  if (!options.json_file.empty() && !std::ofstream(options.json_file, std::ios::app)) {
    progress(fmt::format("{}: cannot write {}", program, options.json_file));
    return 2;
  }
  std::vector<const Bar*> selected;
  for (const Bar& bar : bars_) {
    if ((bar.area + "." + bar.name).find(options.filter) != std::string::npos) selected.push_back(&bar);
  }
  // A run that measures nothing must not succeed.
  if (selected.empty()) {
    progress(fmt::format("{}: no bar matches '{}'", program, options.filter));
    return 2;
  }
  const MachineInfo machine = read_machine_info();
  std::vector<Outcome> outcomes;
  bool any_missed = false;
  for (const Bar* bar : selected) {
    progress(fmt::format("[{}/{}] {} {}", outcomes.size() + 1, selected.size(), bar->area, bar->name));
    outcomes.push_back({bar, run_bar(*bar, options)});
    const BarResult& result = outcomes.back().result;
    any_missed |= result.verdict == Verdict::kMissed;
    fmt::print("{}\n", bar_row(*bar, result));
    print_notes(*bar, result);
    std::fflush(stdout);
  }
  if (!options.json_file.empty() && !write_json(options, machine, outcomes)) {
    progress(fmt::format("{}: writing {} failed", program, options.json_file));
    return 2;
  }
  return any_missed ? 1 : 0;
}

}  // namespace slip::bench
