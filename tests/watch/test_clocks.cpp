// The race checker's memory stays bounded: slots serve one stream after another, segments are joined.
#include <gtest/gtest.h>

#include "watch/race/clocks.hpp"
#include "watch/race/shadow.hpp"

namespace slip::test_clocks {
namespace {

TEST(Clocks, ASlotServesAnotherStreamOnceTheHostSawTheEnd) {
  watch::Clocks clocks;
  const watch::Clocks::StreamSlot first = clocks.slot_of(1, 7);
  clocks.submit(first.slot, first.at(5).position);
  clocks.close(1, 7);
  const watch::Clocks::StreamSlot unseen = clocks.slot_of(2, 7);
  EXPECT_NE(unseen.slot, first.slot) << "its work may still be running";
  clocks.host_wait(first.at(5));
  EXPECT_NE(clocks.slot_of(3, 8).slot, first.slot) << "another device's";
  const watch::Clocks::StreamSlot second = clocks.slot_of(4, 7);
  EXPECT_EQ(second.slot, first.slot);
  EXPECT_GT(second.at(1).position, first.at(5).position);
  EXPECT_EQ(clocks.slot_of(4, 7).base, second.base);
  EXPECT_EQ(clocks.slot_of(1).base, first.base) << "events of the first one still mean its own points";
}

TEST(Clocks, ANewStreamInAnOldSlotKnowsWhatTheHostKnows) {
  watch::Clocks clocks;
  const watch::Clocks::StreamSlot other = clocks.slot_of(9, 7), first = clocks.slot_of(1, 7);
  clocks.submit(other.slot, 3);
  clocks.submit(first.slot, 1);
  clocks.host_wait(first.at(1));
  clocks.wait(first.slot, other.at(3));  // with no op behind it
  clocks.close(1, 7);
  const watch::Clocks::StreamSlot second = clocks.slot_of(2, 7);
  ASSERT_EQ(second.slot, first.slot);
  EXPECT_FALSE(clocks.before(other.at(3), second.slot)) << "that wait was the first stream's";
}

TEST(Shadow, ReadsOfPiecesAreJoinedByAReadOfTheWhole) {
  watch::Shadow shadow;
  const auto look = [](std::uint64_t, std::uint64_t, const watch::Shadow::Segment&) {};
  const auto read = [&](std::uint32_t slot, std::uint64_t position, std::uint64_t offset, std::uint64_t bytes,
                        bool ordered) {
    shadow.access(offset, bytes, false, {{slot, position}, {}}, look,
                  [ordered](const watch::Access&) { return ordered; });
  };
  for (std::uint64_t i = 0; i < 1000; ++i) read(1, i + 1, i, 1, false);
  EXPECT_GE(shadow.segments(), 1000U);
  read(2, 1, 0, 1000, false);
  EXPECT_GE(shadow.segments(), 1000U) << "the first stream's reads are still to be waited for";
  read(2, 2, 0, 1000, true);
  EXPECT_LE(shadow.segments(), 3U);
}

}  // namespace
}  // namespace slip::test_clocks
