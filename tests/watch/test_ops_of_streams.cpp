// OpsOfStreams: the ops on both sides of a wait.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "watch/trace/trace_data.hpp"

namespace slip::test::test_ops_of_streams {
namespace {

TEST(OpsOfStreams, FindsOpsNearAndFarFromTheLastResult) {
  constexpr std::uint64_t kStream = 7, kOps = 200;
  std::vector<TraceRecord> records(kOps);
  std::vector<TraceSpan> spans(kOps);
  for (std::uint64_t i = 0; i < kOps; ++i) {
    records[i].sequence = i + 1;
    spans[i].submit = &records[i];
    spans[i].stream = kStream;
    spans[i].position = i + 1;
  }
  const watch::OpsOfStreams ops(spans, watch::SpanChoice::kSubmitted);
  for (const std::uint64_t at : {150, 151, 140, 3, 0, 1, 199, 200, 300, 16, 33, 17, 100, 84, 116, 99}) {
    const std::uint64_t before = std::min(at, kOps);
    EXPECT_EQ(ops.last_until(kStream, at), before == 0 ? nullptr : &spans[before - 1]) << at;
    EXPECT_EQ(ops.first_after(kStream, at), at < kOps ? &spans[at] : nullptr) << at;
  }
  EXPECT_EQ(ops.last_until(kStream + 1, 5), nullptr);
  EXPECT_EQ(ops.first_after(kStream + 1, 5), nullptr);
}

}  // namespace
}  // namespace slip::test::test_ops_of_streams
