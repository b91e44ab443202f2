// Steps of two ranks on two hosts. The hosts are network namespaces. Their link is so slow that communication takes
// about as long as the compute. One run alternates three ways: the reduction in the compute stream, by DDP's rule, and
// planned.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "models.hpp"
#include "slip/gradients.hpp"
#include "support/process.hpp"

namespace slip::bench {
namespace {

constexpr const char* kRankWord = "--link-rank";
constexpr std::size_t kLayers = 48;

// What a rank sends and receives in a second takes about 2.5 % of a core at the first rate, and 10 % at the second.
struct Rate {
  int megabits;
  std::size_t layer_bytes;  // so that a step takes as long at both
};
constexpr Rate kSlow{100, 320 << 10}, kFast{400, 1280 << 10};
constexpr int kWarmUps = 13;               // steps; the last early look at times leads to a plan by then
constexpr double kForwardShare = 1.0 / 3;  // of a layer's compute; the rest is its backward pass

// Arithmetic that fits the first cache: what communication takes of the core makes it longer.
const Kernel kWork{"work", [](const Args& args) {
                     float values[64];
                     for (std::size_t i = 0; i < 64; ++i) values[i] = static_cast<float>(i);
                     const auto turns = args.scalar<std::uint64_t>(0);
                     for (std::uint64_t turn = 0; turn < turns; ++turn) {
                       for (float& value : values) value = value * 0.999F + 0.5F;
                       asm volatile("" : : "r"(values) : "memory");
                     }
                     args.out<float>(0)[0] = values[0];
                   }};

// One rank's training loop.
class Trainer {
 public:
  explicit Trainer(std::size_t layer_bytes)
      : layer_bytes_(layer_bytes),
        device_(Device::open("cpu", {.compute_workers = 2})),
        comm_(Communicator::init(device_)),
        compute_(device_.stream(StreamFlags::kNonBlocking)),
        plain_(device_.alloc(kLayers * layer_bytes_, MemoryKind::kPinned, "gradients")),
        planned_(make(BucketRule::kPlanned)),
        ddp_(make(BucketRule::kDdp)) {}

  int rank() const { return comm_.rank(); }

  // So that compute takes as long as communication does.
  void calibrate() {
    communication_ns_ = timed(3, [&] { comm_.all_reduce(plain_, plain_, DataType::kF32, ReduceOp::kAvg, compute_); });
    turns_ = 2000;
    for (int i = 0; i < 3; ++i) {
      const double ns = timed(1, [&] { compute_only(); });
      turns_ = static_cast<std::uint64_t>(static_cast<double>(turns_) * agreed(communication_ns_) / agreed(ns));
    }
    compute_ns_ = timed(3, [&] { compute_only(); });
  }
  double compute_ns() { return agreed(compute_ns_); }
  double communication_ns() { return agreed(communication_ns_); }

  double blocking_ns(int steps) {
    return agreed(timed(steps, [&] {
      for (std::size_t layer = kLayers; layer-- > 0;) {
        const Range gradient = plain_.slice(layer * layer_bytes_, layer_bytes_);
        backward(gradient);
        comm_.all_reduce(gradient, gradient, DataType::kF32, ReduceOp::kAvg, compute_);
      }
      for (std::size_t layer = 0; layer < kLayers; ++layer) forward(plain_.slice(layer * layer_bytes_, layer_bytes_));
    }));
  }

  double ddp_ns(int steps) {
    return agreed(timed(steps, [&] {
      pass_back(ddp_);
      for (std::size_t layer = 0; layer < kLayers; ++layer) ddp_.wait(ParameterId(layer), compute_);
      for (std::size_t layer = 0; layer < kLayers; ++layer) forward(ddp_.view(ParameterId(layer)));
      ddp_.step_end();
    }));
  }

  double planned_ns(int steps) {
    return agreed(timed(steps, [&] {
      pass_back(planned_);
      for (std::size_t layer = 0; layer < kLayers; ++layer) {
        planned_.wait(ParameterId(layer), compute_);
        forward(planned_.view(ParameterId(layer)));
      }
      planned_.step_end();
    }));
  }

  const Gradients& planned() const { return planned_; }

 private:
  Gradients make(BucketRule rule) {
    Gradients gradients(comm_, device_, {.buckets = rule, .measure = rule == BucketRule::kPlanned});
    for (std::size_t i = 0; i < kLayers; ++i) gradients.add(fmt::format("layer {}", i), layer_bytes_, DataType::kF32);
    gradients.seal();
    return gradients;
  }

  // The slower rank's time counts for both.
  double agreed(double ns) {
    Buffer time = device_.alloc(sizeof(double), MemoryKind::kPinned);
    time.host_write<double>()[0] = ns;
    comm_.all_reduce(time, time, DataType::kF64, ReduceOp::kMax, compute_);
    compute_.sync();
    return time.host_read<double>()[0];
  }

  // A step, of so many that are issued together; both ranks begin at once.
  template <class Step>
  double timed(int steps, const Step& step) {
    comm_.barrier(compute_);
    compute_.sync();
    const Timer timer;
    for (int i = 0; i < steps; ++i) step();
    compute_.sync();
    return timer.elapsed_ns() / steps;
  }

  void work(Range touches, double share) {
    compute_.launch(kWork, {.writes = {touches.slice(0, 64)},
                            .scalars = {static_cast<std::uint64_t>(static_cast<double>(turns_) * share)}});
  }
  void backward(Range gradient) { work(gradient, 1 - kForwardShare); }
  void forward(Range gradient) { work(gradient, kForwardShare); }
  void compute_only() {
    for (std::size_t layer = 0; layer < kLayers; ++layer) backward(plain_.slice(layer * layer_bytes_, layer_bytes_));
    for (std::size_t layer = 0; layer < kLayers; ++layer) forward(plain_.slice(layer * layer_bytes_, layer_bytes_));
  }
  void pass_back(Gradients& gradients) {
    for (std::size_t layer = kLayers; layer-- > 0;) {
      backward(gradients.view(ParameterId(layer)));
      gradients.ready(ParameterId(layer), compute_);
    }
  }

  const std::size_t layer_bytes_;
  Device device_;
  Communicator comm_;
  Stream compute_;
  Buffer plain_;
  std::uint64_t turns_ = 0;  // of a layer's compute
  double communication_ns_ = 0, compute_ns_ = 0;
  Gradients planned_, ddp_;
};

using Samples = std::map<std::string, std::vector<double>>;

struct LinkRun {
  Samples samples;
  std::string report, unavailable;
};

// Two network namespaces, and a veth pair with a limited rate. The destructor removes them. With a burst of 64 KiB the
// kernel would cut a piece that TCP sends at once into 44 packets. The compute of a step would then take 17 % longer
// while they are sent, instead of 10 %.
class SlowLink {
 public:
  explicit SlowLink(int megabits) {
    for (int i = 0; i < 2; ++i) names_[i] = fmt::format("slip-gradients-{}-{}", ::getpid(), i);
    std::string setup = fmt::format(
        "ip netns add {0} && ip netns add {1} && ip -n {0} link add wire type veth peer name wire netns {1}", names_[0],
        names_[1]);
    for (int i = 0; i < 2; ++i)
      setup += fmt::format(
          " && ip -n {0} addr add 10.79.0.{1}/24 dev wire && ip -n {0} link set lo up && ip -n {0} link set wire up"
          " && ip netns exec {0} tc qdisc add dev wire root tbf rate {2}mbit burst {3}kb limit 4mb",
          names_[i], i + 1, megabits, megabits > 100 ? 256 : 128);
    made_ = std::system(("(" + setup + ") >/dev/null 2>&1").c_str()) == 0;
  }
  ~SlowLink() {
    for (const std::string& name : names_)
      static_cast<void>(!std::system(fmt::format("ip netns del {} >/dev/null 2>&1", name).c_str()));
  }
  bool made() const { return made_; }
  // Runs this program as both ranks, and returns what rank 0 prints.
  std::string run(std::size_t layer_bytes, bool quick) const {
    char self[4096] = {};
    if (::readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) return {};
    const auto rank = [&](int i) {
      return fmt::format("SLIP_ID=10.79.0.1:7790 SLIP_RANK={} SLIP_NRANKS=2 timeout 150 ip netns exec {} '{}' {} {} {}",
                         i, names_[i], self, kRankWord, layer_bytes, quick ? "quick" : "full");
    };
    return shell_text(fmt::format("{{ {} >/dev/null & {}; wait; }} 2>&1", rank(1), rank(0)));
  }

 private:
  std::string names_[2];
  bool made_ = false;
};

LinkRun measure(const Rate& rate, bool quick) {
  LinkRun run;
  const SlowLink link(rate.megabits);
  if (!link.made()) {
    run.unavailable = "network namespaces with a rate are not permitted here";
    return run;
  }
  const std::string text = link.run(rate.layer_bytes, quick);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    char name[64] = {};
    double value = 0;
    if (line.rfind("report ", 0) == 0) run.report = line.substr(7);
    else if (std::sscanf(line.c_str(), "sample %63s %lf", name, &value) == 2) run.samples[name].push_back(value);
  }
  if (run.samples["planned"].empty()) run.unavailable = "the ranks failed: " + text.substr(0, 300);
  return run;
}

const LinkRun& link_run(const Rate& rate, bool quick) {
  static std::map<int, LinkRun> runs;
  const auto known = runs.find(rate.megabits);
  return known != runs.end() ? known->second : runs.emplace(rate.megabits, measure(rate, quick)).first->second;
}

Series series(const LinkRun& run, const std::string& name) {
  const auto found = run.samples.find(name);
  return {name, found == run.samples.end() ? std::vector<double>{} : found->second, run.unavailable};
}

Recorded of_bound(Context& context, const Rate& rate) {
  const LinkRun& run = link_run(rate, context.quick());
  Series ours{"planned", {}, run.unavailable};
  if (run.unavailable.empty()) {
    const double compute = median(run.samples.at("compute")), communication = median(run.samples.at("communication"));
    for (const double one : run.samples.at("planned"))
      ours.samples.push_back(100 * one / std::max(compute, communication));
    context.note(fmt::format("compute alone {}, communication alone {}; {} layers of {} each, {} Mbit/s a direction",
                             format_ns(compute), format_ns(communication), kLayers, format_bytes(rate.layer_bytes),
                             rate.megabits));
    for (const char* const peer : {"ddp", "blocking"})
      context.note(fmt::format("{}: {:.1f} % of the bound", peer,
                               100 * median(run.samples.at(peer)) / std::max(compute, communication)));
    if (!run.report.empty()) context.note(run.report);
  }
  return {ours, {}};
}

Recorded against_others(Context& context) {
  const LinkRun& run = link_run(kSlow, context.quick());
  return {series(run, "planned"), {series(run, "ddp"), series(run, "blocking")}};
}

}  // namespace

bool is_link_rank(int argc, char** argv) { return argc > 3 && std::strcmp(argv[1], kRankWord) == 0; }

int run_link_rank(int, char** argv) {
  const bool quick = std::strcmp(argv[3], "quick") == 0;
  Trainer trainer(std::strtoul(argv[2], nullptr, 10));
  trainer.calibrate();
  const auto say = [&](const char* name, double ns) {
    if (trainer.rank() == 0) fmt::print("sample {} {}\n", name, ns);
  };
  say("compute", trainer.compute_ns());
  say("communication", trainer.communication_ns());
  for (int i = 0; i < kWarmUps; ++i) static_cast<void>(trainer.planned_ns(1));
  static_cast<void>(trainer.ddp_ns(1));
  for (int round = 0; round < (quick ? 2 : 4); ++round) {
    say("planned", trainer.planned_ns(2));
    say("ddp", trainer.ddp_ns(2));
    say("blocking", trainer.blocking_ns(1));
  }
  if (trainer.rank() == 0) {
    if (const auto report = trainer.planned().report()) fmt::print("report {}\n", report->line());
  }
  return 0;
}

void add_link_bars(Harness& harness) {
  for (const Rate& rate : {kSlow, kFast})
    harness.add({.area = "gradients",
                 .name = fmt::format("cpu_step_of_bound_{}mbit", rate.megabits),
                 .unit = Unit::kPercent,
                 .better = Better::kLower,
                 .limit = 110,
                 .record = [rate](Context& context) { return of_bound(context, rate); }});
  harness.add({.area = "gradients",
               .name = "cpu_step",
               .unit = Unit::kNanoseconds,
               .better = Better::kLower,
               .target = 1.0,
               .record = against_others});
}

}  // namespace slip::bench
