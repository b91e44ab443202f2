// Profiles of PyTorch: launches linked with kernels, annotations, compressed files.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "slip/analysis.hpp"
#include "slip/figures.hpp"
#include "slip/page.hpp"
#include "watch/support.hpp"
#include "watch/trace/trace_data.hpp"
#include "watch/trace/trace_reader.hpp"

namespace slip::test_profiles {
namespace {

using watch_test::contents;
using watch_test::Folder;

// One complete event ("ph":"X"); `more` are further fields.
std::string event(const char* category, const char* name, const char* track, double ts, double dur,
                  const std::string& more = {}) {
  return fmt::format(R"({{"ph":"X","cat":"{}","name":"{}",{},"ts":{},"dur":{}{}}})", category, name, track, ts, dur,
                     more);
}
constexpr const char* kHost = R"("pid":100,"tid":1)";
constexpr const char* kGpu = R"("pid":0,"tid":7)";
std::string correlation(int id) { return fmt::format(R"(,"args":{{"correlation":{}}})", id); }

std::string profile(const std::vector<std::string>& events) {
  return fmt::format(R"({{"traceEvents":[{}]}})", fmt::join(events, ","));
}

const TraceSpan& find(const std::vector<TraceSpan>& spans, std::string_view name) {
  const auto found = std::ranges::find(spans, name, &TraceSpan::name);
  EXPECT_NE(found, spans.end()) << name;
  return found == spans.end() ? spans.front() : *found;
}

// A step: two kernels launched one after the other, and an all_reduce beside the second.
std::vector<std::string> step() {
  return {event("user_annotation", "ProfilerStep#7", kHost, 0, 1000),
          event("gpu_user_annotation", "ProfilerStep#7", kGpu, 30, 960),
          event("cpu_op", "aten::linear", kHost, 5, 60),
          event("cuda_runtime", "cudaLaunchKernel", kHost, 10, 8, correlation(1)),
          event("cuda_runtime", "cudaLaunchKernel", kHost, 40, 8, correlation(2)),
          event("cuda_runtime", "cudaLaunchKernel", kHost, 50, 8, correlation(3)),
          event("kernel", "gemm", kGpu, 30, 100, correlation(1)),
          event("kernel", "relu", kGpu, 130, 50, correlation(2)),
          event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", R"("pid":0,"tid":9)", 140, 100, correlation(3))};
}

TEST(Profile, LaunchesAreLinkedWithKernelsByCorrelation) {
  const TraceData data = watch::parse_trace(profile(step()), "t");
  const auto spans = data.spans();
  const TraceSpan &gemm = find(spans, "gemm"), &relu = find(spans, "relu");
  ASSERT_NE(gemm.submit, nullptr);
  ASSERT_NE(relu.submit, nullptr);
  EXPECT_EQ(gemm.queued, 10'000'000);
  EXPECT_EQ(relu.queued, 40'000'000);
  // The arrows of the page: from each call to its kernel.
  const auto drawn = watch::arrows(data, spans);
  ASSERT_EQ(drawn.size(), 3U);
  for (const watch::Arrow& arrow : drawn) EXPECT_EQ(spans[arrow.from].name, "cudaLaunchKernel");
  // The causes: the first kernel waited for its launch, the second for the first.
  const Analysis analysis = analyse(data, spans);
  const auto start_of = [&](const TraceSpan& span) {
    return analysis.starts[static_cast<std::size_t>(&span - spans.data())];
  };
  EXPECT_EQ(start_of(gemm).cause, StartCause::kHost);
  EXPECT_EQ(start_of(relu).cause, StartCause::kDependency);
  EXPECT_EQ(spans[start_of(relu).after].name, "gemm");
}

TEST(Profile, NcclKernelsAreCommunication) {
  const TraceData data = watch::parse_trace(profile(step()), "t");
  const Figures figures = slip::figures(data.spans());
  EXPECT_EQ(figures.communication, 100'000'000);
  EXPECT_EQ(figures.communication_overlapped, 40'000'000);
}

TEST(Profile, AnnotationsAreNeitherWorkNorCritical) {
  const TraceData data = watch::parse_trace(profile(step()), "t");
  const auto spans = data.spans();
  const Figures figures = slip::figures(spans);
  EXPECT_EQ(figures.ops, 7U) << "the steps are not among them";
  EXPECT_EQ(figures.total, 235'000'000) << "from aten::linear to the end of the all_reduce";
  const Analysis analysis = analyse(data, spans);
  ASSERT_FALSE(analysis.critical.empty());
  for (const std::uint32_t op : analysis.critical) EXPECT_FALSE(spans[op].annotation) << spans[op].name;
  EXPECT_TRUE(spans[analysis.critical.back()].name.starts_with("nccl"));
}

TEST(Profile, FlowArrowsLinkWhatHasNoCorrelation) {
  const auto arrow = [](const char* phase, int id, const char* track, double ts, const char* category = "ac2g") {
    return fmt::format(R"({{"ph":"{}","id":{},{},"ts":{},"cat":"{}","name":"x"{}}})", phase, id, track, ts, category,
                       *phase == 'f' ? R"(,"bp":"e")" : "");
  };
  const TraceData data = watch::parse_trace(
      profile({arrow("s", 5, kHost, 12), event("cuda_runtime", "cudaLaunchKernel", kHost, 10, 8),
               event("cpu_op", "forward", kHost, 60, 5), event("kernel", "linked", kGpu, 30, 100),
               event("kernel", "not linked", kGpu, 200, 10), arrow("f", 5, kGpu, 30),
               // An arrow of another category with the same id, and one to a thread where nothing ran.
               arrow("s", 5, kHost, 61, "fwdbwd"), arrow("f", 6, kGpu, 200), arrow("f", 5, R"("pid":9,"tid":9)", 1)}),
      "t");
  const auto spans = data.spans();
  ASSERT_NE(find(spans, "linked").submit, nullptr);
  EXPECT_EQ(find(spans, "linked").queued, 10'000'000);
  EXPECT_EQ(find(spans, "not linked").submit, nullptr);
  EXPECT_EQ(data.streams().size(), 2U) << "an arrow alone makes no track";
}

// Nested calls of the host: the inner one does not wait for the end of the outer one.
TEST(Profile, NestedCallsFollowWhatCameBefore) {
  const TraceData data =
      watch::parse_trace(profile({event("cpu_op", "before", kHost, 0, 10), event("cpu_op", "outer", kHost, 10, 100),
                                  event("cpu_op", "inner", kHost, 11, 5)}),
                         "t");
  const auto spans = data.spans();
  const Analysis analysis = analyse(data, spans);
  const auto index = [&](std::string_view name) { return static_cast<std::size_t>(&find(spans, name) - spans.data()); };
  EXPECT_EQ(analysis.starts[index("inner")].after, index("before"));
}

TEST(Profile, AnnotationsAndLinksAreWrittenAndReadBack) {
  const TraceData data = watch::parse_trace(profile(step()), "t");
  const Folder folder;
  write_trace(data, folder.file("t.json"));
  watch_test::expect_same(data, read_trace(folder.file("t.json")));
}

TEST(Profile, GzipIsUnpacked) {
  const Folder folder;
  std::ofstream(folder.file("t.json")) << profile(step());
  ASSERT_EQ(std::system(fmt::format("gzip -k {} && cat {}.gz {}.gz > {}", folder.file("t.json"), folder.file("t.json"),
                                    folder.file("t.json"), folder.file("two.gz"))
                            .c_str()),
            0);
  try {
    static_cast<void>(read_trace(folder.file("t.json.gz")));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kUnsupported) GTEST_SKIP() << error.what();
    throw;
  }
  watch_test::expect_same(read_trace(folder.file("t.json")), read_trace(folder.file("t.json.gz")));
  const std::string packed = contents(folder.file("t.json.gz"));
  watch_test::expect_same(read_trace(folder.file("t.json")), watch::parse_trace(packed, "t"));
  EXPECT_THROW(read_trace(folder.file("two.gz")), Error) << "two documents";
  for (const std::string& damaged : {packed.substr(0, packed.size() / 2), packed.substr(0, 2), packed.substr(0, 9),
                                     packed.substr(0, 30) + std::string(40, 'x') + packed.substr(70)}) {
    try {
      static_cast<void>(watch::parse_trace(damaged, "t.json.gz"));
      ADD_FAILURE() << damaged.size() << " bytes were read";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("t.json.gz"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace slip::test_profiles
