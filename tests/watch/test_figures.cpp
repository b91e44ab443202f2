#include "support.hpp"

namespace slip::test_figures {
namespace {

// Spans by hand.
class Drawing {
 public:
  Drawing& op(Engine engine, Picos started, Picos ended, std::uint32_t device = 1, Picos queued = 0) {
    runs_.push_back(std::make_unique<TraceRecord>());
    spans_.push_back({.submit = runs_.back().get(),
                      .run = runs_.back().get(),
                      .engine = engine,
                      .device = device,
                      .queued = queued,
                      .started = started,
                      .ended = ended});
    return *this;
  }
  Figures figures() const { return slip::figures(spans_); }
  std::vector<TraceSpan>& spans() { return spans_; }

 private:
  std::vector<std::unique_ptr<TraceRecord>> runs_;
  std::vector<TraceSpan> spans_;
};

TEST(Figures, NothingGivesZeros) {
  const Figures figures = Drawing().figures();
  EXPECT_EQ(figures.ops, 0U);
  EXPECT_EQ(figures.total, 0);
  EXPECT_EQ(figures.idle, 0);
  EXPECT_EQ(figures.overlap_percent(), 0.0);
}

TEST(Figures, OneAfterTheOtherHidesNothing) {
  const Figures figures = Drawing()
                              .op(Engine::kCopyIn, 100, 200, 1, 50)
                              .op(Engine::kCompute, 200, 500)
                              .op(Engine::kCopyOut, 510, 550)
                              .figures();
  EXPECT_EQ(figures.ops, 3U);
  EXPECT_EQ(figures.total, 450);
  EXPECT_EQ(figures.from_queued, 550);
  EXPECT_EQ(figures.idle, 10);
  EXPECT_EQ(figures.copy, 140);
  EXPECT_EQ(figures.overlapped, 0);
  EXPECT_EQ(figures.exposed, 140);
  EXPECT_EQ(figures.bound, 300);
}

TEST(Figures, PartlyHidden) {
  // copies 0-100 and 150-250, compute 60-200: hidden 40 + 50 of 200
  const Figures figures =
      Drawing().op(Engine::kCopyIn, 0, 100).op(Engine::kCopyIn, 150, 250).op(Engine::kCompute, 60, 200).figures();
  EXPECT_EQ(figures.copy, 200);
  EXPECT_EQ(figures.overlapped, 90);
  EXPECT_EQ(figures.exposed, 110);
  EXPECT_EQ(figures.overlap_percent(), 45.0);
  EXPECT_EQ(figures.bound, 200);
  EXPECT_EQ(figures.total, 250);
  EXPECT_EQ(figures.idle, 0);
}

// Copies of both directions at once are busy time once, and so are two kernels at once; sums count both.
TEST(Figures, SeveralAtOnceAreCountedOnceAsTime) {
  const Figures figures = Drawing()
                              .op(Engine::kCopyIn, 0, 100)
                              .op(Engine::kCopyOut, 50, 150)
                              .op(Engine::kCompute, 20, 80)
                              .op(Engine::kCompute, 40, 120)
                              .figures();
  EXPECT_EQ(figures.copy, 150);
  EXPECT_EQ(figures.overlapped, 100);
  EXPECT_EQ(figures.busy_of(Engine::kCompute), 100);
  EXPECT_EQ(figures.sum_of(Engine::kCompute), 140);
  EXPECT_EQ(figures.busy_of(Engine::kCopyIn), 100);
  EXPECT_EQ(figures.bound, 100) << "two kernels at once need 70";
}

TEST(Figures, TouchingSpansDoNotOverlapAndEmptyOnesCountAsOpsOnly) {
  const Figures figures = Drawing()
                              .op(Engine::kCopyIn, 0, 100)
                              .op(Engine::kCompute, 100, 200)
                              .op(Engine::kCompute, 50, 50)
                              .op(Engine::kNone, 70, 70)
                              .figures();
  EXPECT_EQ(figures.ops, 4U);
  EXPECT_EQ(figures.overlapped, 0);
  EXPECT_EQ(figures.busy_of(Engine::kCompute), 100);
}

TEST(Figures, CopiesHideBehindComputeOfTheirOwnDeviceOnly) {
  const Figures figures = Drawing().op(Engine::kCopyIn, 0, 100, 1).op(Engine::kCompute, 0, 100, 2).figures();
  EXPECT_EQ(figures.copy, 100);
  EXPECT_EQ(figures.overlapped, 0);
  EXPECT_EQ(figures.idle, 0);
  EXPECT_EQ(figures.bound, 100);
}

TEST(Figures, CommunicationIsAnEngineOfItsOwn) {
  const Figures figures =
      Drawing().op(Engine::kCompute, 0, 100).op(Engine::kCommunication, 60, 180).op(Engine::kCopyIn, 90, 110).figures();
  EXPECT_EQ(figures.communication, 120);
  EXPECT_EQ(figures.communication_overlapped, 40);
  EXPECT_EQ(figures.communication_exposed, 80);
  EXPECT_NEAR(figures.communication_percent(), 100.0 / 3, 1e-9);
  EXPECT_EQ(figures.busy_of(Engine::kCommunication), 120);
  EXPECT_EQ(figures.copy, 20) << "communication is no copy";
  EXPECT_EQ(figures.overlapped, 10);
  EXPECT_EQ(figures.bound, 100) << "the wait for other ranks bounds nothing";
  EXPECT_EQ(figures.idle, 0);
}

TEST(Figures, AnnotationsAreNoWork) {
  Drawing drawing;
  drawing.op(Engine::kCompute, 10, 20).op(Engine::kNone, 0, 100);
  drawing.spans()[1].annotation = true;
  EXPECT_EQ(drawing.figures().ops, 1U);
  EXPECT_EQ(drawing.figures().total, 10);
  EXPECT_EQ(drawing.figures().idle, 0);
}

TEST(Figures, OpsThatDidNotRunAreLeftOut) {
  Drawing drawing;
  drawing.op(Engine::kCompute, 10, 20).op(Engine::kCopyIn, 0, 0);
  drawing.spans()[1].run = nullptr;
  EXPECT_EQ(drawing.figures().ops, 1U);
  EXPECT_EQ(drawing.figures().total, 10);
}

// Compares with a count of every single picosecond.
TEST(Figures, RandomSpansMatchCounting) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Drawing drawing;
    constexpr int kLength = 300;
    std::vector<std::array<bool, kEngines>> running(kLength);
    Picos first = kLength, last = 0;
    for (int i = 0; i < 20; ++i) {
      const auto engine = random() % kEngines;
      const auto started = static_cast<Picos>(random() % 200), ended = started + static_cast<Picos>(random() % 60);
      drawing.op(static_cast<Engine>(engine), started, ended);
      for (Picos at = started; at < ended; ++at) running[static_cast<std::size_t>(at)][engine] = true;
      first = std::min(first, started);
      last = std::max(last, ended);
    }
    Picos copy = 0, overlapped = 0, idle = 0, communication = 0, hidden = 0;
    for (Picos at = first; at < last; ++at) {
      const auto& now = running[static_cast<std::size_t>(at)];
      const bool copies = now[2] || now[3];
      copy += copies;
      overlapped += copies && now[1];
      communication += now[5];
      hidden += now[5] && now[1];
      idle += std::ranges::none_of(now, [](bool busy) { return busy; });
    }
    const Figures figures = drawing.figures();
    EXPECT_EQ(figures.total, last - first);
    EXPECT_EQ(figures.copy, copy);
    EXPECT_EQ(figures.overlapped, overlapped);
    EXPECT_EQ(figures.exposed, copy - overlapped);
    EXPECT_EQ(figures.idle, idle);
    EXPECT_EQ(figures.communication, communication);
    EXPECT_EQ(figures.communication_overlapped, hidden);
  }
}

}  // namespace
}  // namespace slip::test_figures
