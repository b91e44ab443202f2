// Two network interfaces for each host against one: two ranks on two hosts, which are network namespaces joined by two
// veth pairs of a limited rate. The jobs with one and with two rails take turns.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "bars.hpp"
#include "slip/communicator.hpp"
#include "slip/stream.hpp"
#include "support/process.hpp"

namespace slip::bench {
namespace {

constexpr const char* kRankWord = "--rails-rank";
// Of each rail, in each direction: so slow that two cores are never the limit, also beside other jobs.
constexpr int kMegabits = 100;
constexpr std::size_t kBytes = std::size_t{16} << 20;

// One rank of a job. Prints the time of each call.
class RailsRank {
 public:
  RailsRank() : device_(Device::open("cpu", {.compute_workers = 2})), comm_(Communicator::init(device_)) {}

  void measure(const char* name, int samples, const std::function<void()>& call) {
    call();  // makes the connections
    for (int i = 0; i < samples; ++i) {
      comm_.barrier(stream_);
      stream_.sync();
      const Timer timer;
      call();
      stream_.sync();
      if (comm_.rank() == 0) fmt::print("sample {} {}\n", name, timer.elapsed_ns());
    }
  }

  void run(int samples) {
    const int other = 1 - comm_.rank();
    measure("all_reduce", samples, [&] { comm_.all_reduce(to_, from_, DataType::kF32, ReduceOp::kSum, stream_); });
    measure("all_to_all", samples, [&] { comm_.all_to_all(to_, from_, stream_); });
    measure("send_recv", samples, [&] {
      Group group;
      comm_.send(from_, other, stream_);
      comm_.recv(to_, other, stream_);
      group.end();
    });
    comm_.finalize();
  }

 private:
  Device device_;
  Communicator comm_;
  Stream stream_ = device_.stream();
  Buffer from_ = device_.alloc(kBytes, MemoryKind::kPinned), to_ = device_.alloc(kBytes, MemoryKind::kPinned);
};

// The two namespaces. They end with the object.
class TwoRails {
 public:
  TwoRails() {
    for (int i = 0; i < 2; ++i) names_[i] = fmt::format("slip-rails-{}-{}", ::getpid(), i);
    std::string setup = fmt::format("ip netns add {} && ip netns add {}", names_[0], names_[1]);
    for (int rail = 0; rail < 2; ++rail) {
      setup += fmt::format(" && ip -n {0} link add rail{2} type veth peer name rail{2} netns {1}", names_[0], names_[1],
                           rail);
      for (int i = 0; i < 2; ++i)
        setup += fmt::format(
            " && ip -n {0} addr add 10.89.{1}.{2}/24 dev rail{1} && ip -n {0} link set lo up && ip -n {0} link set "
            "rail{1} up && ip netns exec {0} tc qdisc add dev rail{1} root tbf rate {3}mbit burst 128kb limit 4mb",
            names_[i], rail, i + 1, kMegabits);
    }
    made_ = std::system(("(" + setup + ") >/dev/null 2>&1").c_str()) == 0;
  }
  ~TwoRails() {
    for (const std::string& name : names_)
      static_cast<void>(!std::system(fmt::format("ip netns del {} >/dev/null 2>&1", name).c_str()));
  }
  TwoRails(const TwoRails&) = delete;
  TwoRails& operator=(const TwoRails&) = delete;
  bool made() const { return made_; }

  // Runs this program as both ranks, and returns what they print. `variables`: "NAME=value" each.
  std::string run(const std::string& variables, int port, int samples) const {
    char self[4096] = {};
    if (::readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) return {};
    const auto rank = [&](int i) {
      return fmt::format("{} SLIP_ID=10.89.0.1:{} SLIP_RANK={} SLIP_NRANKS=2 timeout 100 ip netns exec {} '{}' {} {}",
                         variables, port, i, names_[i], self, kRankWord, samples);
    };
    return shell_text(fmt::format("{{ {} >/dev/null & {}; wait; }} 2>&1", rank(1), rank(0)));
  }

 private:
  std::string names_[2];
  bool made_ = false;
};

using Samples = std::map<std::string, std::vector<double>>;

struct Job {
  const char* name;
  const char* variables;
};
constexpr Job kJobs[] = {{"one_rail", "SLIP_SOCKET_IFNAME==rail0"},
                         {"two_rails", "SLIP_SOCKET_IFNAME=rail"},
                         {"a_channel_for_each", "SLIP_SOCKET_IFNAME=rail SLIP_ALGORITHM=ring SLIP_MIN_CHANNELS=2"}};

struct Run {
  std::map<std::string, Samples> bandwidths;  // bytes per second, by job and call
  std::string unavailable;
};

// Adds the best call of a job as one sample: other processes of the machine may have delayed the others.
void add_samples(const std::string& text, Samples& samples) {
  std::map<std::string, double> best;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    char name[64] = {};
    double ns = 0;
    if (std::sscanf(text.substr(at, end - at).c_str(), "sample %63s %lf", name, &ns) == 2)
      best[name] = std::max(best[name], static_cast<double>(kBytes) / ns * 1e9);
    at = end + 1;
  }
  for (const auto& [name, bandwidth] : best) samples[name].push_back(bandwidth);
}

Run measure(bool quick) {
  Run run;
  const TwoRails rails;
  if (!rails.made()) {
    run.unavailable = "network namespaces with a rate are not permitted here";
    return run;
  }
  int port = 7810;
  for (int round = 0; round < (quick ? 1 : 3); ++round) {
    for (const Job& job : kJobs) {
      const std::string text = rails.run(job.variables, port++, quick ? 2 : 4);
      Samples& samples = run.bandwidths[job.name];
      add_samples(text, samples);
      if (samples["send_recv"].empty()) run.unavailable = "the ranks failed: " + text.substr(0, 300);
    }
  }
  return run;
}

Series series(const Run& run, const std::string& job, const std::string& call) {
  if (!run.unavailable.empty()) return {job, {}, run.unavailable};
  return {job, run.bandwidths.at(job).at(call), ""};
}

Recorded two_against_one(Context& context, const std::string& call) {
  static const Run kRun = measure(context.quick());
  if (kRun.unavailable.empty()) {
    context.note(fmt::format("2 hosts, {} Mbit/s each rail and direction, {} a rank", kMegabits,
                             format_bytes(static_cast<double>(kBytes))));
    if (call == "all_reduce")
      context.note("two rings, each bound to one rail: " +
                   format_bytes_per_second(median(series(kRun, kJobs[2].name, call).samples)));
  }
  return {series(kRun, "two_rails", call), {series(kRun, "one_rail", call)}};
}

}  // namespace

bool is_rails_rank(int argc, char** argv) { return argc > 2 && std::strcmp(argv[1], kRankWord) == 0; }

int run_rails_rank(int, char** argv) {
  RailsRank().run(static_cast<int>(std::strtol(argv[2], nullptr, 10)));
  return 0;
}

void add_rails_bars(Harness& harness) {
  for (const char* const call : {"all_reduce", "all_to_all", "send_recv"})
    harness.add({.area = "collectives",
                 .name = fmt::format("two_rails_{}_16MiB", call),
                 .unit = Unit::kBytesPerSecond,
                 .better = Better::kHigher,
                 .target = 1.9,
                 .record = [call](Context& context) { return two_against_one(context, call); }});
}

}  // namespace slip::bench
