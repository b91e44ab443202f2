// Reports of steps: from given times, from steps in virtual time, and compared with predictions.
#include <gtest/gtest.h>

#include <random>

#include "flow/gradients/gradient_times.hpp"
#include "slip/gradients.hpp"
#include "slip/plan.hpp"
#include "support/errors.hpp"

namespace slip::test_gradient_report {
namespace {

using test::fails;

constexpr Picos kUs = 1'000'000;
constexpr std::uint64_t kCompute = 1, kSide = 2;

// Three gradients written by the stream `kCompute` at 10, 20 and 30 us; call i reduces gradient i. There are no waits
// yet.
flow::GradientTimes three(std::vector<Picos> starts, std::vector<Picos> ends) {
  flow::GradientTimes times;
  times.arrivals = {0, 20 * kUs, 30 * kUs};
  times.sources = {kCompute, kCompute, kCompute};
  times.starts = std::move(starts);
  times.ends = std::move(ends);
  return times;
}

GradientReport report_of_three(const flow::GradientTimes& times) {
  static const std::vector<std::uint32_t> kCalls = {0, 1, 2};
  const BucketPlan plan{{{0, 64}, {64, 64}, {128, 64}}};
  return flow::report_of(
      times, [](std::uint32_t parameter) { return std::span(kCalls).subspan(parameter, 1); }, plan,
      ReduceCost{{{64, 10 * kUs}}});
}

TEST(GradientReports, WorkStandsStillUntilTheCallHasEnded) {
  flow::GradientTimes times = three({0, 20 * kUs, 30 * kUs}, {10 * kUs, 30 * kUs, 45 * kUs});
  // The first two calls have ended when the stream waits for them: its late continuation is not counted as a stall.
  times.waits = {
      {0, 0, kCompute, 30 * kUs, 33 * kUs}, {1, 1, kCompute, 34 * kUs, 36 * kUs}, {2, 2, kCompute, 40 * kUs, 48 * kUs}};
  const GradientReport report = report_of_three(times);
  EXPECT_EQ(report.exposed, 5 * kUs);
  EXPECT_EQ(report.buckets[0].exposed, 0);
  EXPECT_EQ(report.buckets[1].exposed, 0);
  EXPECT_EQ(report.buckets[2].exposed, 5 * kUs);
  EXPECT_EQ(report.communication, 35 * kUs);
  EXPECT_EQ(report.used, 48 * kUs);
  EXPECT_EQ(report.time, 48 * kUs);
  EXPECT_EQ(report.bound, 43 * kUs);
  EXPECT_NEAR(report.overlapped(), 100.0 * 30 / 35, 1e-9);
  EXPECT_EQ(report.buckets[2].ready, 30 * kUs);

  flow::StepAnalysis needs;
  flow::analyze_step(times, needs);
  EXPECT_EQ(needs.backward_end, 30 * kUs);
  // Without the stall the last gradient would have been needed at this time.
  EXPECT_EQ(needs.needed, (std::vector<Picos>{30 * kUs, 34 * kUs, 40 * kUs}));
}

TEST(GradientReports, TheNextStepEndsIt) {
  flow::GradientTimes times = three({0, 20 * kUs, 30 * kUs}, {10 * kUs, 30 * kUs, 45 * kUs});
  times.waits = {{2, 2, kCompute, 30 * kUs, 45 * kUs}};
  times.next_step = 100 * kUs;
  const GradientReport report = report_of_three(times);
  EXPECT_EQ(report.time, 100 * kUs);
  EXPECT_EQ(report.exposed, 15 * kUs);
  EXPECT_EQ(report.bound, 85 * kUs);
  EXPECT_NEAR(report.of_bound(), 100.0 / 85, 1e-9);
}

// Two streams wait for the same calls: the time counts once.
TEST(GradientReports, StreamsSideBySideAreCountedOnce) {
  flow::GradientTimes times = three({0, 20 * kUs, 30 * kUs}, {10 * kUs, 30 * kUs, 45 * kUs});
  times.waits = {{2, 2, kSide, 35 * kUs, 45 * kUs}, {2, 2, kCompute, 32 * kUs, 45 * kUs}};
  const GradientReport report = report_of_three(times);
  EXPECT_EQ(report.exposed, 13 * kUs);
  EXPECT_EQ(report.buckets[2].exposed, 13 * kUs);
}

// A wait in the stream of the backward pass is exposed; a wait in another stream during the backward pass is not.
TEST(GradientReports, OnlyTheBackwardPassLosesTimeInIt) {
  flow::GradientTimes times = three({0, 20 * kUs, 30 * kUs}, {10 * kUs, 28 * kUs, 40 * kUs});
  times.waits = {
      {0, 0, kCompute, 0, 10 * kUs}, {1, 1, kCompute, 20 * kUs, 28 * kUs}, {2, 2, kCompute, 30 * kUs, 40 * kUs}};
  EXPECT_EQ(report_of_three(times).exposed, 28 * kUs);
  for (flow::GradientTimes::WaitTimes& wait : times.waits) wait.stream = kSide;
  const GradientReport beside = report_of_three(times);
  EXPECT_EQ(beside.exposed, 10 * kUs);
  EXPECT_EQ(beside.buckets[0].exposed, 0);
}

TEST(GradientReports, ClippingNeedsAll) {
  flow::GradientTimes times = three({0, 20 * kUs, 30 * kUs}, {10 * kUs, 30 * kUs, 45 * kUs});
  times.waits = {{flow::GradientTimes::kAll, 2, kCompute, 31 * kUs, 46 * kUs}, {0, 0, kCompute, 50 * kUs, 50 * kUs}};
  flow::StepAnalysis needs;
  flow::analyze_step(times, needs);
  EXPECT_EQ(needs.needed, (std::vector<Picos>(3, 31 * kUs)));
  EXPECT_EQ(needs.exposed, 14 * kUs);
}

TEST(GradientReports, SayWhy) {
  flow::GradientTimes times = three({0, 20 * kUs, 41 * kUs}, {10 * kUs, 41 * kUs, 51 * kUs});
  times.waits = {{1, 1, kCompute, 30 * kUs, 41 * kUs}, {2, 2, kCompute, 41 * kUs, 51 * kUs}};
  GradientReport report = report_of_three(times);
  EXPECT_NE(report.buckets[1].cause.find("slower than measured alone"), std::string::npos) << report.text();
  EXPECT_EQ(report.buckets[2].cause, "its own transfer");
  times.waits = {{2, 2, kCompute, 30 * kUs, 51 * kUs}};
  report = report_of_three(times);
  EXPECT_EQ(report.buckets[2].cause, "behind the calls before it");
  times = three({0, 20 * kUs, 30 * kUs}, {10 * kUs, 30 * kUs, 40 * kUs});
  times.waits = {{2, 2, kCompute, 30 * kUs, 40 * kUs}};
  report = report_of_three(times);
  EXPECT_EQ(report.buckets[2].cause, "its gradients came last");
  EXPECT_NE(report.text().find("exposed 0.010 ms: its gradients came last"), std::string::npos) << report.text();
}

// A device without overheads: each op takes exactly the time in its cost.
constexpr const char* kPlain =
    R"(sim:{"name": "step", "memory": "1 GB", "queues": 32,
       "compute": {"flops": "1 TFLOP/s", "bandwidth": "1 TB/s", "launch": "0 us"},
       "copies": {"engines": 2, "in": "1 GB/s", "out": "1 GB/s", "latency": "0 us"}})";

const Kernel kWork{"work", [](const Args&) {}}, kTransfer{"transfer", [](const Args&) {}};

// One rank in virtual time, with a hook that takes the time in `cost`. A layer, in the order of the forward pass, has
// its bytes, the time of its backward pass, and the time of the use of its gradient.
struct Layer {
  std::uint64_t bytes = 0;
  Picos backward = 0, use = 0;
};
class VirtualTraining {
 public:
  VirtualTraining(std::vector<Layer> layers, ReduceCost cost, BucketRule rule, bool norm = false)
      : layers_(std::move(layers)),
        device_(Device::open(kPlain)),
        comm_(std::move(Communicator::init_all({&device_, 1}).front())),
        compute_(device_.stream(StreamFlags::kNonBlocking)),
        gradients_(comm_, device_,
                   {.buckets = rule,
                    .hook =
                        [cost](const GradientCall& call) {
                          call.stream.launch(kTransfer, {.reads = {call.data}, .writes = {call.data}},
                                             {.width = 0.25, .time = cost.time(call.data.bytes)});
                        },
                    .cost = cost,
                    .check_every = 0,
                    .measure = true,
                    .norm = norm}) {
    for (std::size_t i = 0; i < layers_.size(); ++i)
      ids_.push_back(gradients_.add("layer " + std::to_string(i), layers_[i].bytes, DataType::kF32));
    gradients_.seal();
  }

  enum class Waits { kByNeed, kInBackward };
  void step(Waits waits = Waits::kByNeed, double norm = 0) {
    for (std::size_t i = layers_.size(); i-- > 0;) {
      work(layers_[i].backward);
      gradients_.ready(ids_[i], compute_);
      if (waits == Waits::kInBackward) gradients_.wait(ids_[i], compute_);
    }
    if (norm > 0) gradients_.clip_norm(norm, compute_);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (waits == Waits::kByNeed) gradients_.wait(ids_[i], compute_);
      work(layers_[i].use);
    }
    gradients_.step_end();
    compute_.sync();
  }

  void accumulate() {  // a step that is not reduced
    const Gradients::NoSync pause(gradients_);
    step();
  }
  void capture() {
    compute_.begin_capture();
    for (std::size_t i = layers_.size(); i-- > 0;) gradients_.ready(ids_[i], compute_);
    for (const ParameterId id : ids_) gradients_.wait(id, compute_);
    gradients_.step_end();
    static_cast<void>(compute_.end_capture());
  }

  GradientReport report() const { return gradients_.report().value(); }
  const Gradients& gradients() const { return gradients_; }

 private:
  void work(Picos time) { compute_.launch(kWork, {}, {.width = 0.5, .time = time}); }

  const std::vector<Layer> layers_;
  Device device_;
  Communicator comm_;
  Stream compute_;
  Gradients gradients_;
  std::vector<ParameterId> ids_;
};

const std::vector<Layer> kLayers = {{64, 10 * kUs, 5 * kUs}, {128, 20 * kUs, 5 * kUs}, {256, 30 * kUs, 5 * kUs}};
// Calls of 8, 16 and 32 us for these layers.
const ReduceCost kCost{{{64, 8 * kUs}, {256, 32 * kUs}}};

// Gradients arrive at 0, 20 and 30 us; calls run from 0 to 32, 32 to 48 and 48 to 56 us. Layer 0 is needed first, at 30
// us.
TEST(GradientReports, AreExactInVirtualTime) {
  VirtualTraining training(kLayers, kCost, BucketRule::kEach);
  for (int step = 0; step < 3; ++step) training.step();
  const GradientReport report = training.report();
  ASSERT_EQ(report.buckets.size(), 3U);
  EXPECT_EQ(report.communication, 56 * kUs);
  EXPECT_EQ(report.exposed, 26 * kUs);
  EXPECT_EQ(report.buckets[2].exposed, 26 * kUs);
  EXPECT_EQ(report.buckets[2].cause, "behind the calls before it");
  EXPECT_EQ(report.buckets[0].ready, 0);
  EXPECT_EQ(report.buckets[1].start, 32 * kUs);
  EXPECT_EQ(report.buckets[2].end, 56 * kUs);
  EXPECT_EQ(report.used, 66 * kUs);
  EXPECT_EQ(report.time, 101 * kUs);  // the next backward pass begins with 30 us
  EXPECT_EQ(report.bound, 75 * kUs);
  EXPECT_NE(report.buckets[0].gradients.find("'layer 2'"), std::string::npos);
}

// Blocking waits: each call is completely exposed.
TEST(GradientReports, OfABlockingStepCountEveryCall) {
  VirtualTraining training(kLayers, kCost, BucketRule::kEach);
  for (int step = 0; step < 3; ++step) training.step(VirtualTraining::Waits::kInBackward);
  const GradientReport report = training.report();
  EXPECT_EQ(report.exposed, 56 * kUs);
  EXPECT_EQ(report.communication, 56 * kUs);
  EXPECT_EQ(report.overlapped(), 0);
  EXPECT_EQ(report.time, (60 + 15 + 56) * kUs);
}

// Steps that are not reduced, or are captured, have no number and no report. The report is that of the reduced step
// before them, with its own number and times.
TEST(GradientReports, AreThoseOfReducedSteps) {
  VirtualTraining training(kLayers, kCost, BucketRule::kEach);
  const auto expect_step = [&](std::uint64_t step, Picos exposed, Picos time) {
    const GradientReport report = training.report();
    EXPECT_EQ(report.step, step);
    EXPECT_EQ(report.exposed, exposed);
    EXPECT_EQ(report.time, time);
  };
  training.step();
  for (int paused = 0; paused < 3; ++paused) {
    training.accumulate();
    expect_step(0, 26 * kUs, 66 * kUs);
  }
  training.step(VirtualTraining::Waits::kInBackward);
  training.accumulate();
  expect_step(1, 56 * kUs, 86 * kUs);  // until its last wait: the next step is not recorded
  training.capture();
  expect_step(1, 56 * kUs, 86 * kUs);
  EXPECT_EQ(training.gradients().steps(), 2U);
  training.step();
  training.step(VirtualTraining::Waits::kInBackward);
  expect_step(2, 26 * kUs, 101 * kUs);  // until the first gradient of step 3
  training.accumulate();
  expect_step(3, 56 * kUs, 86 * kUs);
}

// clip_norm() is the only wait, and waits for all calls.
TEST(GradientReports, SeeWhatClippingWaitsFor) {
  VirtualTraining training(kLayers, kCost, BucketRule::kEach, true);
  for (int step = 0; step < 3; ++step) training.step(VirtualTraining::Waits::kByNeed, 1.0);
  const GradientReport report = training.report();
  EXPECT_EQ(report.exposed, 26 * kUs);
  EXPECT_EQ(report.buckets[2].exposed, 26 * kUs);
}

// The whole chain: the times of a step, the plan made from them, its prediction, and a step with this plan.
TEST(GradientComparisons, OfStepsInVirtualTimeAreExact) {
  constexpr unsigned kSeed = 4711;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (int run = 0; run < 20; ++run) {
    std::vector<Layer> layers;
    for (std::size_t i = 0; i < 2 + random() % 10; ++i)
      layers.push_back({64 * (1 + random() % 500), static_cast<Picos>(1 + random() % 40) * kUs,
                        static_cast<Picos>(1 + random() % 20) * kUs});
    VirtualTraining training(layers, ReduceCost::of({.bytes_per_second = 1e9, .latency = 3 * kUs}),
                             BucketRule::kPlanned);
    for (int step = 0; step < 3; ++step) training.step();
    const Gradients& gradients = training.gradients();
    const Comparison seen =
        compare_steps(predict_report(gradients.profile(), gradients.cost(), gradients.plan()), training.report());
    // Times of a step are whole nanoseconds.
    const Picos slack = 1000 * static_cast<Picos>(layers.size() + 2);
    EXPECT_NEAR(static_cast<double>(seen.predicted), static_cast<double>(seen.measured), static_cast<double>(slack));
    EXPECT_NEAR(static_cast<double>(seen.predicted_exposed), static_cast<double>(seen.measured_exposed),
                static_cast<double>(slack));
    EXPECT_NEAR(static_cast<double>(seen.predicted_communication), static_cast<double>(seen.measured_communication),
                static_cast<double>(slack));
    for (const Comparison::Difference& one : seen.differences)
      EXPECT_NEAR(static_cast<double>(one.predicted), static_cast<double>(one.measured), 2000.0) << one.op;
  }
}

TEST(GradientComparisons, NameTheLargestDifferences) {
  GradientReport predicted{.used = 60 * kUs, .communication = 40 * kUs, .exposed = 10 * kUs};
  predicted.buckets = {{.bucket = {0, 64}, .ready = 0, .start = 0, .end = 20 * kUs},
                       {.bucket = {64, 64}, .ready = 30 * kUs, .start = 30 * kUs, .end = 50 * kUs}};
  GradientReport measured = predicted;
  measured.used = 80 * kUs;
  measured.exposed = 25 * kUs;
  measured.communication = 55 * kUs;
  measured.buckets[0].gradients = "'first'";
  measured.buckets[1].gradients = "'second'";
  measured.buckets[1].ready = measured.buckets[1].start = 34 * kUs;
  measured.buckets[1].end = 69 * kUs;
  const Comparison seen = compare_steps(predicted, measured);
  EXPECT_EQ(seen.predicted, 60 * kUs);
  EXPECT_EQ(seen.measured, 80 * kUs);
  EXPECT_DOUBLE_EQ(seen.error(), 0.25);
  ASSERT_EQ(seen.differences.size(), 5U);
  EXPECT_EQ(seen.differences[0].op, "bucket 1, 'second'");
  EXPECT_EQ(seen.differences[0].predicted, 20 * kUs);
  EXPECT_EQ(seen.differences[0].measured, 35 * kUs);
  EXPECT_EQ(seen.differences[1].op, "backward until bucket 1, 'second' is ready");
  EXPECT_EQ(seen.differences[1].predicted, 30 * kUs);
  EXPECT_EQ(seen.differences[1].measured, 34 * kUs);
  EXPECT_EQ(seen.differences[2].op, "work after the backward pass");
  EXPECT_EQ(seen.differences[2].predicted, 20 * kUs);
  EXPECT_EQ(seen.differences[2].measured, 21 * kUs);
  const std::string text = seen.text(1);
  EXPECT_NE(text.find("predicted 60.0 us, measured 80.0 us, 25.0 % off"), std::string::npos) << text;
  EXPECT_NE(text.find("bucket 1, 'second': predicted 20.0 us, measured 35.0 us"), std::string::npos) << text;
  EXPECT_EQ(text.find("bucket 0"), std::string::npos) << text;

  measured.buckets[1].bucket.bytes = 128;
  EXPECT_TRUE(fails([&] { compare_steps(predicted, measured); }, ErrorCode::kMismatch, {"different buckets"}));
}

// predict_report() uses the definitions of measured reports, and agrees with predict_step().
TEST(GradientComparisons, ThePredictionIsThatOfTheStep) {
  GradientProfile profile;
  profile.gradients = {
      {1 << 20, 10 * kUs, 700 * kUs, 0}, {1 << 18, 200 * kUs, 650 * kUs, 0}, {1 << 20, 600 * kUs, 600 * kUs, 0}};
  profile.backward_end = 600 * kUs;
  const ReduceCost cost = ReduceCost::of({.bytes_per_second = 1e10, .latency = 20 * kUs});
  for (const BucketPlan& plan : {bucket_per_gradient(profile), ddp_buckets(profile), plan_buckets(profile, cost)}) {
    const GradientReport report = predict_report(profile, cost, plan);
    const Prediction step = predict_step(profile, cost, plan);
    EXPECT_NEAR(static_cast<double>(report.exposed), static_cast<double>(step.exposed), 2000.0);
    EXPECT_NEAR(static_cast<double>(report.used), static_cast<double>(step.step - 10 * kUs), 2000.0);
    ASSERT_EQ(report.buckets.size(), plan.buckets.size());
    EXPECT_EQ(step.compute(), profile.gradients.front().needed);  // the end of the last consumer without communication
    EXPECT_EQ(step.first_step, step.step);
    Picos calls = 0, kernels = 0;  // of the trace
    for (const TraceSpan& span : step.trace.spans())
      (span.stream == step.compute_stream ? kernels : calls) += span.ended - span.started;
    EXPECT_NEAR(static_cast<double>(calls), static_cast<double>(step.communication), 2000.0);
    EXPECT_NEAR(static_cast<double>(kernels), static_cast<double>(step.compute()), 2000.0);
  }
}

}  // namespace
}  // namespace slip::test_gradient_report
