// Every enumerator has a name in the trace file, and the name gives the enumerator back. How streams are named.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/stream_text.hpp"
#include "watch/trace/trace_data.hpp"

namespace slip::test_names {
namespace {

// `count` must be the number of enumerators: if it were too low, the name of the last one could not be read.
template <class Enum>
void expect_words(std::size_t count, const char* (*name)(Enum), std::optional<Enum> (*find)(std::string_view)) {
  std::set<std::string> words;
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<Enum>(i);
    EXPECT_STRNE(name(value), "unknown") << i;
    EXPECT_TRUE(words.insert(name(value)).second) << name(value) << " stands for two";
    const std::optional<Enum> found = find(name(value));
    ASSERT_TRUE(found) << name(value);
    EXPECT_EQ(*found, value);
  }
  EXPECT_STREQ(name(static_cast<Enum>(count)), "unknown") << "there are more than " << count;
  EXPECT_FALSE(find("unknown"));
  EXPECT_FALSE(find(""));
}

TEST(TraceWords, OfEveryKindOfOp) { expect_words(kOpKinds, op_kind_name, watch::op_kind_of); }
TEST(TraceWords, OfEveryEngine) { expect_words(kEngines, engine_name, watch::engine_of); }
TEST(TraceWords, OfEveryKindOfRecord) {
  expect_words(watch::kRecordKinds, watch::record_kind_name, watch::record_kind_of);
}
TEST(TraceWords, OfEveryKindOfMemory) { expect_words(watch::kMemoryKinds, memory_kind_name, watch::memory_kind_of); }

// Observers get "stream N" for a stream without a name. A merged trace has other numbers than its parts.
TEST(StreamNames, ADefaultNameIsNotShown) {
  EXPECT_EQ(base::stream_text(5, "loads"), "stream 5 'loads'");
  EXPECT_EQ(base::stream_text(5, ""), "stream 5");
  EXPECT_EQ(base::stream_text(5, "stream 5"), "stream 5");
  EXPECT_EQ(base::stream_text(15, "stream 5"), "stream 15");
  EXPECT_EQ(base::stream_text(5, "stream "), "stream 5 'stream '");
  EXPECT_EQ(base::stream_text(5, "stream 5b"), "stream 5 'stream 5b'");
  EXPECT_EQ(base::stream_number(5, "loads"), "5 'loads'");
  EXPECT_EQ(base::stream_number(5, ""), "5");
}

// A program may open and close streams for days under the race checker.
TEST(StreamNames, OnlyTheLastClosedStreamsAreKept) {
  watch::StreamNames names;
  names.open(1, "old");
  names.open(2, "open");
  names.close(1);
  EXPECT_EQ(names.of(1), "old");
  for (std::uint64_t stream = 3; stream < 3 + watch::StreamNames::kMaxClosed; ++stream) {
    names.open(stream, "short");
    names.close(stream);
  }
  EXPECT_EQ(names.of(1), "");
  EXPECT_EQ(names.of(2), "open");
  EXPECT_EQ(names.of(3), "short");
}

}  // namespace
}  // namespace slip::test_names
