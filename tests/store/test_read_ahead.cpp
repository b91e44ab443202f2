// Ranges that are read ahead: each is right or fails when it is read, and the memory of ranges that will not be read is
// not written any more.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <random>

#include "store/numbered_file.hpp"
#include "support/errors.hpp"

namespace slip::test_read_ahead {
namespace {

using test::fails;
using test::NumberedFile;
using test::wrong_place;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kFileBytes = 24 * kMiB + 4321;
constexpr std::byte kGuard{0xA5};

// Requests one behind the other, each with memory of its own; those up to `offered` are given as the reader asks.
class Series {
 public:
  explicit Series(const store::File& file) : file_(file) {}

  void add(std::uint64_t offset, std::size_t bytes) {
    memory_.emplace_back(store::BlockReader::room(file_, offset, bytes) + file_.direct_alignment(), kGuard);
    requests_.push_back({&file_, offset, bytes, {memory_.back().data(), memory_.back().size()}});
  }
  std::size_t size() const { return requests_.size(); }
  std::size_t asked() const { return asked_; }
  const store::ReadRequest& operator[](std::size_t index) const { return requests_[index]; }
  std::vector<std::byte>& memory(std::size_t index) { return memory_[index]; }

  std::size_t offered = SIZE_MAX;
  // Must come in their order.
  const std::byte* read(store::BlockReader& reader, std::size_t index) {
    asked_ = std::max(asked_, index + 1);
    return reader.read(requests_[index], [this]() -> std::optional<store::ReadRequest> {
      if (asked_ >= std::min(offered, requests_.size())) return std::nullopt;
      return requests_[asked_++];
    });
  }
  std::string wrong(store::BlockReader& reader, std::size_t index) {
    const store::ReadRequest& request = requests_[index];
    return wrong_place(read(reader, index), request.offset, request.bytes);
  }

 private:
  const store::File& file_;
  std::vector<store::ReadRequest> requests_;
  std::vector<std::vector<std::byte>> memory_;
  std::size_t asked_ = 0;
};

class ReadAhead : public testing::Test {
 protected:
  ReadAhead() : content_(kFileBytes), file_(store::File::open(content_.path())) { content_.forget(0, kFileBytes); }
  void SetUp() override {
    if (!test::has_ring() || file_.direct_descriptor() < 0) GTEST_SKIP() << "no io_uring or no direct I/O here";
  }
  // From the disk alone, few blocks at a time.
  static store::ReaderOptions from_disk(unsigned in_flight = 8) {
    store::ReaderOptions options;
    options.cache = store::ReaderOptions::Cache::kNever;
    options.in_flight = in_flight;
    options.threads = 1;
    options.block_bytes = kMiB / 2;
    return options;
  }
  Series pieces(std::size_t count, std::size_t bytes) const {
    Series series(file_);
    for (std::size_t i = 0; i < count; ++i) series.add(i * bytes + 7, bytes);
    return series;
  }

  const NumberedFile content_;
  const store::File file_;
};

TEST_F(ReadAhead, RandomSeriesAreRight) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 12; ++round) {
    store::ReaderOptions options = from_disk(1 + static_cast<unsigned>(random() % 16));
    if (round % 2 == 0) options.cache = store::ReaderOptions::Cache::kFirst;
    content_.forget(random() % kFileBytes, random() % kFileBytes);
    store::BlockReader reader(options);
    Series series(file_);
    for (int i = 0; i < 12; ++i) {
      const std::size_t bytes = random() % (std::size_t{1} << (1 + random() % 22));
      series.add(random() % (kFileBytes - bytes + 1), bytes);
    }
    for (std::size_t i = 0; i < series.size(); ++i) ASSERT_EQ(series.wrong(reader, i), "right") << round << ", " << i;
  }
}

TEST_F(ReadAhead, AFaultIsReportedForItsRangeOnly) {
  for (int round = 0; round < 3; ++round) {
    store::BlockReader reader(from_disk());
    for (int turn = 0; turn < 2; ++turn) {  // a reader that has failed serves on
      Series series = pieces(12, kMiB);
      const test::UnwritablePage page(series.memory(5).data() + kMiB / 4 * 3);  // in the second block of range 5
      for (std::size_t i = 0; i < series.size(); ++i) {
        if (i != 5) {
          ASSERT_EQ(series.wrong(reader, i), "right") << i;
          continue;
        }
        EXPECT_GT(series.asked(), i) << "it was not read ahead: this tests nothing";
        EXPECT_TRUE(fails([&] { series.read(reader, i); }, ErrorCode::kIo,
                          {content_.path(), "Bad address", "524288 bytes at 5767168 of"}));
      }
    }
  }
}

TEST_F(ReadAhead, AFileCutShortWhileReadsAreAhead) {
  constexpr std::uint64_t kLeft = 6 * kMiB + 100;
  store::BlockReader reader(from_disk());
  Series series = pieces(20, kMiB);
  series.offered = kLeft / kMiB;  // what lies behind the cut has not begun before it
  ASSERT_EQ(series.wrong(reader, 0), "right");
  ASSERT_GT(series.asked(), 2U);
  std::filesystem::resize_file(content_.path(), kLeft);
  series.offered = series.size();
  for (std::size_t i = 1; i < series.size(); ++i) {
    // What came before the cut may be right to the byte; the file is another all the same.
    const bool cut = i >= kLeft / kMiB;
    EXPECT_TRUE(fails([&] { series.read(reader, i); }, ErrorCode::kIo,
                      {content_.path(), cut ? "cut short" : "was changed", std::to_string(kFileBytes)}))
        << i;
  }
}

// What is ahead when the first range is there: all of the series, a MiB a block. Its last range is the last to come.
class Abandoned : public ReadAhead {
 protected:
  static store::ReaderOptions all_at_once() {
    store::ReaderOptions options = from_disk(32);
    options.block_bytes = kMiB;
    options.cache = store::ReaderOptions::Cache::kFirst;
    return options;
  }
  static void begin(store::BlockReader& reader, Series& series) {
    ASSERT_EQ(series.wrong(reader, 0), "right");
    ASSERT_EQ(series.asked(), series.size());
  }
  // At once, before a block that is still under way could land; then as long as all of the file takes.
  void expect_left_alone(Series& series) const {
    std::vector<std::byte>& last = series.memory(series.size() - 1);
    std::ranges::fill(last, kGuard);
    std::vector<std::byte> all(kFileBytes);
    store::BlockReader(from_disk()).read(file_, 0, kFileBytes, {all.data(), all.size()});
    EXPECT_TRUE(std::ranges::all_of(last, [](std::byte byte) { return byte == kGuard; }));
  }
};

TEST_F(Abandoned, AReaderThatGoesLeavesMemoryAlone) {
  for (int round = 0; round < 4; ++round) {
    Series series = pieces(12, 2 * kMiB);
    auto reader = std::make_unique<store::BlockReader>(all_at_once());
    ASSERT_NO_FATAL_FAILURE(begin(*reader, series));
    reader.reset();
    expect_left_alone(series);
  }
}

TEST_F(Abandoned, AnotherReadInBetweenEndsWhatWasAhead) {
  store::BlockReader reader(all_at_once());
  constexpr std::uint64_t kTail = kFileBytes - 1000;  // behind the series
  for (const bool cached : {false, true, false, true}) {
    Series series = pieces(12, 2 * kMiB);
    std::vector<std::byte> other(1000);
    content_.forget(0, kFileBytes);
    if (cached) file_.read(kTail, other.data(), other.size());  // brings it to the page cache
    ASSERT_NO_FATAL_FAILURE(begin(reader, series));
    ASSERT_EQ(wrong_place(reader.read(file_, kTail, 1000, {other.data(), 1000}), kTail, 1000), "right");
    expect_left_alone(series);
    EXPECT_EQ(series.wrong(reader, 11), "right");  // read again
  }
}

}  // namespace
}  // namespace slip::test_read_ahead
