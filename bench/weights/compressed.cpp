// Compressed weights on a GPU: a 7B-shaped stack with weights from a normal distribution, with and without compression
// in one run, and the raw rate of the link.
#include <fmt/format.h>

#include <map>

#include "case.hpp"
#include "raw_link.hpp"

namespace slip::bench {
namespace {

constexpr int kSteps = 3, kRounds = 5;

struct Compared {
  std::vector<double> plain, compressed, resident, link;  // ns, ns, ns, bytes/s: by round, in turn
  WeightsPlan plan;                                       // the compressed one
  Picos predicted = 0;
  bool equal = false;
};

class CompressedCases {
 public:
  explicit CompressedCases(std::string costs_file) : costs_file_(std::move(costs_file)) {}
  std::string why_not() const { return why_no_gpu_cases(costs_file_); }
  // `share`: of gpu_options().
  const Compared& at(std::uint64_t tokens, double share) {
    const auto key = std::pair(tokens, share);
    if (!done_.contains(key)) done_[key] = measure(tokens, share);
    return done_.at(key);
  }

 private:
  Compared measure(std::uint64_t tokens, double share) {
    if (!weights_) {
      host_ = Device::open(kGpu);
      weights_ = std::make_unique<StackWeights>(*host_, gpu_stack(1), StackWeights::Values::kNormal);
      packed_ = WeightSource::compressed(*host_, model::stack_graph(gpu_stack(1)), weights_->source());
    }
    const Costs costs = read_costs(costs_file_);
    const Graph graph = model::stack_graph(gpu_stack(tokens));
    WeightsOptions wanted = gpu_options(graph, share);
    Compared result;
    const WeightsPlan plain = plan_weights(graph, costs, wanted);
    wanted.compressed = packed_.compressed_bytes(graph);
    result.plan = plan_weights(graph, costs, wanted);
    result.predicted = predict_weights(result.plan, graph, costs).step;
    RunningPlan resident(kGpu, graph, plan_weights(graph, costs), weights_->source());
    RunningPlan streamed(kGpu, graph, plain, weights_->source());
    RunningPlan compressed(kGpu, graph, result.plan, packed_);
    for (int round = 0; round < kRounds; ++round) {
      result.link.push_back(
          raw_upload_rate(weights_->memory().native(), weights_->memory().bytes(), kLinkPiece, 8ULL << 30));
      result.resident.push_back(resident.step_ns(kSteps));
      result.plain.push_back(streamed.step_ns(kSteps));
      result.compressed.push_back(compressed.step_ns(kSteps));
    }
    result.equal = resident.output() == compressed.output();
    return result;
  }

  std::string costs_file_;
  std::optional<Device> host_;
  std::unique_ptr<StackWeights> weights_;
  WeightSource packed_;
  std::map<std::pair<std::uint64_t, double>, Compared> done_;
};

void note(Context& context, const Compared& found) {
  if (!found.equal) throw std::runtime_error("the outputs are not those of the resident run");
  std::size_t streamed = 0, resident = 0;
  for (const WeightGroup& group : found.plan.groups) {
    if (group.compressed_bytes > 0) ++(group.resident ? resident : streamed);
  }
  const double step = median(found.compressed);
  context.note(fmt::format(
      "{:.1f} ms a step (predicted {:.1f}), not compressed {:.1f}, resident {:.1f}; of {} groups {} "
      "streamed and {} resident ones compressed; {:.2f} GB of weights a step in {:.2f} GB",
      step / 1e6, static_cast<double>(found.predicted) / 1e9, median(found.plain) / 1e6, median(found.resident) / 1e6,
      found.plan.groups.size(), streamed, resident, static_cast<double>(found.plan.streamed_bytes) / 1e9,
      static_cast<double>(found.plan.link_bytes()) / 1e9));
}

}  // namespace

void add_compressed_bars(Harness& harness, std::string costs_file) {
  const auto cases = std::make_shared<CompressedCases>(std::move(costs_file));
  Bar rate;
  rate.name = "h200_t1_compressed_rate_vs_raw_copies";
  rate.unit = Unit::kBytesPerSecond;
  rate.better = Better::kHigher;
  rate.target = 1.38;
  add_gpu_bar<CompressedCases>(harness, cases, std::move(rate), [](Context& context, CompressedCases& all) {
    const Compared& found = all.at(1, 0);
    note(context, found);
    std::vector<double> rates;
    for (const double ns : found.compressed) rates.push_back(static_cast<double>(found.plan.streamed_bytes) / ns * 1e9);
    return Recorded{series("ours", rates), {series("raw", found.link)}};
  });
  Bar half;
  half.name = "h200_t1_half_of_the_weights_compressed_vs_not";
  half.unit = Unit::kNanoseconds;
  half.target = 1.8;
  add_gpu_bar<CompressedCases>(harness, cases, std::move(half), [](Context& context, CompressedCases& all) {
    const Compared& found = all.at(1, 0.5);
    note(context, found);
    return Recorded{series("ours", found.compressed), {series("not compressed", found.plain)}};
  });
  Bar hidden;
  hidden.name = "h200_t16384_compressed_vs_resident";
  hidden.unit = Unit::kPercent;
  hidden.limit = 103;
  add_gpu_bar<CompressedCases>(harness, cases, std::move(hidden), [](Context& context, CompressedCases& all) {
    const Compared& found = all.at(16384, 0);
    note(context, found);
    std::vector<double> ratios;
    for (std::size_t i = 0; i < found.compressed.size(); ++i)
      ratios.push_back(100 * found.compressed[i] / found.resident[i]);
    return Recorded{series("ours", ratios),
                    {series("step_ns", found.compressed), series("resident_ns", found.resident)}};
  });
}

}  // namespace slip::bench
