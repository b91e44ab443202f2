// Ranges of a file by every method of reading and at every alignment: the right bytes, and no others are written.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <random>

#include "store/file.hpp"
#include "store/numbered_file.hpp"
#include "support/errors.hpp"

namespace slip::test_reader {
namespace {

using test::fails;
using test::NumberedFile;
using test::wrong_place;
using Cache = store::ReaderOptions::Cache;
using Disk = store::ReaderOptions::Disk;

constexpr std::size_t kFileBytes = (std::size_t{30} << 20) + 1234;
constexpr std::byte kGuard{0xA5};

struct Way {
  const char* name;
  Cache cache;
  Disk disk;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

store::ReaderOptions options_of(const Way& way) {
  store::ReaderOptions options;
  options.cache = way.cache;
  options.disk = way.disk;
  return options;
}

bool ring_is_missing(const Way& way) { return way.disk == Disk::kRing && !test::has_ring(); }

class Ways : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (ring_is_missing(GetParam())) GTEST_SKIP() << "no io_uring here";
  }
  // Reads into the middle of guarded memory and looks at every byte.
  static void read_and_look(store::BlockReader& reader, const store::File& file, std::uint64_t offset,
                            std::size_t bytes, std::size_t shift, std::size_t slack) {
    std::vector<std::byte> memory(shift + bytes + slack + 64, kGuard);
    const store::Destination destination{memory.data() + shift, bytes + slack};
    const std::byte* found = reader.read(file, offset, bytes, destination);
    ASSERT_GE(found, destination.memory);
    ASSERT_LE(found + bytes, destination.memory + destination.capacity);
    ASSERT_EQ(wrong_place(found, offset, bytes), "right")
        << bytes << " at " << offset << ", " << shift << ", " << slack;
    for (std::size_t i = 0; i < shift; ++i) ASSERT_EQ(memory[i], kGuard) << "before the destination";
    for (std::size_t i = shift + bytes + slack; i < memory.size(); ++i) ASSERT_EQ(memory[i], kGuard) << "behind it";
  }
};

INSTANTIATE_TEST_SUITE_P(Reader, Ways,
                         testing::Values(Way{"best", Cache::kFirst, Disk::kBest},
                                         Way{"ring", Cache::kNever, Disk::kRing},
                                         Way{"threads", Cache::kNever, Disk::kThreads},
                                         Way{"buffered", Cache::kNever, Disk::kBuffered},
                                         Way{"cache_and_buffered", Cache::kFirst, Disk::kBuffered}),
                         [](const auto& way) { return way.param.name; });

TEST_P(Ways, RandomRangesAreRight) {
  const NumberedFile content(kFileBytes);
  const store::File file = store::File::open(content.path());
  store::BlockReader reader(options_of(GetParam()));
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uint64_t sum = 0;
  for (int turn = 0; turn < 60; ++turn) {
    const std::size_t max = std::size_t{1} << (1 + random() % 23);
    const std::size_t bytes = random() % max;
    const std::uint64_t offset = random() % (kFileBytes - bytes + 1);
    if (turn % 4 == 0) content.forget(random() % kFileBytes, std::size_t{8} << 20);
    ASSERT_NO_FATAL_FAILURE(read_and_look(reader, file, offset, bytes, random() % 600, random() % 1200));
    sum += bytes;
  }
  const store::ReadCounts counts = reader.counts();
  EXPECT_EQ(counts.cached + counts.direct + counts.buffered, sum);
  if (GetParam().cache == Cache::kNever) {
    EXPECT_EQ(counts.cached, 0U);
  }
  if (GetParam().disk == Disk::kBuffered) {
    EXPECT_EQ(counts.direct, 0U);
  } else if (file.direct_descriptor() >= 0) {
    EXPECT_EQ(counts.buffered, 0U);
  }
}

TEST_P(Ways, EveryAlignmentIsRight) {
  const NumberedFile content(std::size_t{1} << 20);
  const store::File file = store::File::open(content.path());
  store::BlockReader reader(options_of(GetParam()));
  const std::size_t step = file.direct_alignment();
  for (std::size_t shift : {0, 1, 3, 255, 511, 513, 4095}) {
    for (std::size_t by : {1, 2, 7, 511, 512, 513, 1023, 4097}) {
      for (std::size_t bytes : {std::size_t{1}, std::size_t{511}, step - 1, step, step + 1, 3 * step + 5})
        ASSERT_NO_FATAL_FAILURE(read_and_look(reader, file, step + by, bytes, shift, shift / 2));
    }
  }
}

TEST_P(Ways, TheEndOfTheFile) {
  const NumberedFile content(kFileBytes);
  const store::File file = store::File::open(content.path());
  store::BlockReader reader(options_of(GetParam()));
  for (const std::size_t bytes : {1, 2, 511, 1233, 1234, 1235, 1 << 20, 3'000'001})
    ASSERT_NO_FATAL_FAILURE(read_and_look(reader, file, kFileBytes - bytes, bytes, 8, 8192));
  ASSERT_NO_FATAL_FAILURE(read_and_look(reader, file, kFileBytes, 0, 0, 0));
  std::vector<std::byte> memory(100);
  EXPECT_TRUE(fails(
      [&] {
        reader.read(file, kFileBytes - 50, 51, {memory.data(), 100});
      },
      ErrorCode::kInvalidValue, {content.path(), "51 bytes", std::to_string(kFileBytes)}));
  EXPECT_TRUE(fails([&] { reader.read(file, ~std::uint64_t{0}, 2, {memory.data(), 100}); }, ErrorCode::kInvalidValue));
  EXPECT_TRUE(fails(
      [&] {
        reader.read(file, 0, 101, {memory.data(), 100});
      },
      ErrorCode::kInvalidValue, {"101", "100"}));
}

TEST_P(Ways, AFileCutShortIsNoticed) {
  const NumberedFile content(kFileBytes);
  const store::File file = store::File::open(content.path());
  store::BlockReader reader(options_of(GetParam()));
  std::vector<std::byte> memory(std::size_t{8} << 20);
  for (const std::uint64_t left : {std::uint64_t{20'000'001}, std::uint64_t{16} << 20}) {
    std::filesystem::resize_file(content.path(), left);
    EXPECT_TRUE(fails(
        [&] {
          reader.read(file, left - 5'000'000, memory.size(), {memory.data(), memory.size()});
        },
        ErrorCode::kIo, {content.path(), "cut short", std::to_string(kFileBytes)}));
    EXPECT_TRUE(fails(
        [&] {
          reader.read(file, left + 1'000'000, 1000, {memory.data(), memory.size()});
        },
        ErrorCode::kIo, {content.path(), "1000 bytes", "got 0"}));
    EXPECT_TRUE(fails(
        [&] {
          reader.read(file, 0, 1000, {memory.data(), memory.size()});
        },
        ErrorCode::kIo, {content.path(), "changed"}));
  }
}

TEST_P(Ways, AFileWrittenToIsNoticed) {
  const NumberedFile content(100'000);
  std::filesystem::last_write_time(content.path(),
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  const store::File file = store::File::open(content.path());
  store::BlockReader reader(options_of(GetParam()));
  ASSERT_NO_FATAL_FAILURE(read_and_look(reader, file, 0, 100'000, 0, 0));
  std::fstream(content.path(), std::ios::in | std::ios::out | std::ios::binary).put('!');
  std::vector<std::byte> memory(10);
  EXPECT_TRUE(fails([&] { reader.read(file, 50'000, 10, {memory.data(), 10}); }, ErrorCode::kIo, {"changed"}));
}

TEST_P(Ways, AFileWrittenToIsNoticedThoughItsTimeWasSetBack) {
  const NumberedFile content(100'000);
  const auto written = std::filesystem::last_write_time(content.path());
  const store::File file = store::File::open(content.path());
  store::BlockReader reader(options_of(GetParam()));
  struct stat before {
  }, after{};
  ASSERT_EQ(::stat(content.path().c_str(), &before), 0);
  // The clock of file systems moves every few milliseconds.
  do {
    std::fstream(content.path(), std::ios::in | std::ios::out | std::ios::binary).put('!');
    std::filesystem::last_write_time(content.path(), written);
    ASSERT_EQ(::stat(content.path().c_str(), &after), 0);
  } while (before.st_ctim.tv_sec == after.st_ctim.tv_sec && before.st_ctim.tv_nsec == after.st_ctim.tv_nsec);
  ASSERT_EQ(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
  std::vector<std::byte> memory(10);
  EXPECT_TRUE(fails(
      [&] {
        reader.read(file, 50'000, 10, {memory.data(), 10});
      },
      ErrorCode::kIo, {"changed", "100000"}));
}

// The open file still has its bytes.
TEST_P(Ways, AFileThatAnotherOneReplacedIsReadOn) {
  const NumberedFile content(100'000);
  const store::File file = store::File::open(content.path());
  store::BlockReader reader(options_of(GetParam()));
  const std::string other = content.path() + "-other";
  std::ofstream(other) << std::string(100'000, '!');
  std::filesystem::rename(other, content.path());
  ASSERT_NO_FATAL_FAILURE(read_and_look(reader, file, 0, 100'000, 0, 0));
}

// Errors of a read reach the caller with their place, and the reader serves on.
TEST_P(Ways, AnErrorOfAReadIsReported) {
  const NumberedFile content(kFileBytes);
  const store::File file = store::File::open(content.path());
  store::ReaderOptions options = options_of(GetParam());
  options.cache = Cache::kNever;
  store::BlockReader reader(options);
  constexpr std::size_t kBytes = std::size_t{20} << 20;
  std::vector<std::byte> memory(kBytes + 2 * store::kMaxDirectAlignment);
  const auto read = [&] { return reader.read(file, 99, kBytes, {memory.data(), memory.size()}); };
  // The failed block is the eighth. Blocks of a direct read begin at the aligned byte before the range.
  const bool direct = options.disk != Disk::kBuffered && file.direct_descriptor() >= 0;
  const std::uint64_t first = direct ? 0 : 99;
  for (int turn = 0; turn < 3; ++turn) {
    const test::UnwritablePage page(memory.data() + (std::size_t{7} << 20) + (std::size_t{512} << 10));
    EXPECT_TRUE(fails([&] { static_cast<void>(read()); }, ErrorCode::kIo,
                      {content.path(), "Bad address", " at " + std::to_string(first + (7 << 20)) + " of"}));
  }
  EXPECT_EQ(wrong_place(read(), 99, kBytes), "right");
}

// A range of a file, and memory for it that no direct read can write to.
struct RangeOfBlocks {
  static constexpr std::uint64_t kOffset = 12'345;
  static constexpr std::size_t kBytes = 3'000'001, kBlockBytes = std::size_t{1} << 20;

  RangeOfBlocks(const store::File& file, bool direct)
      : memory(kBytes),
        bounce(static_cast<std::byte*>(std::aligned_alloc(store::kMaxDirectAlignment, kBlockBytes)), &std::free) {
    range.file = &file;
    range.offset = kOffset;
    range.bytes = kBytes;
    range.destination = {memory.data(), memory.size()};
    range.descriptor = direct ? file.direct_descriptor() : file.descriptor();
    range.alignment = direct ? file.direct_alignment() : 1;
    range.target = memory.data();
  }
  store::ReadBlock block(std::uint64_t index) const {
    store::ReadBlock result(range, index, kBlockBytes);
    result.prepare_disk_read(range, bounce.get());
    return result;
  }

  std::vector<std::byte> memory;
  std::unique_ptr<std::byte, decltype(&std::free)> bounce;
  store::ReadRange range;
};

TEST(ReadBlocks, ReadsThatGiveLessAreContinued) {
  const NumberedFile content(4'000'000);
  const store::File file = store::File::open(content.path());
  for (const bool direct : {false, true}) {
    if (direct && file.direct_descriptor() < 0) continue;
    SCOPED_TRACE(direct ? "direct" : "buffered");
    const RangeOfBlocks all(file, direct);
    const store::ReadRange& range = all.range;
    unsigned calls = 0;
    const auto result_of = [&](const store::ReadBlock& block) -> std::int64_t {
      std::size_t bytes = block.next_bytes();
      switch (calls++ % 4) {
        case 0: return -EINTR;
        case 1: bytes = std::min(bytes, bytes / 3 + 4096); break;
        case 2: bytes = std::min(bytes, std::size_t{70'001}); break;
        default: break;
      }
      bytes = (bytes + range.alignment - 1) / range.alignment * range.alignment;
      return ::pread(range.descriptor, block.next_into(), bytes, static_cast<off_t>(block.next_offset()));
    };
    ASSERT_EQ(range.blocks(RangeOfBlocks::kBlockBytes), 3U);
    for (std::uint64_t index = 0; index < 3; ++index) {
      store::ReadBlock block = all.block(index);
      store::ReadFault fault;
      store::ReadBlock::Step step = store::ReadBlock::Step::kAgain;
      while (step == store::ReadBlock::Step::kAgain) step = block.advance(range, result_of(block), fault);
      ASSERT_EQ(step, store::ReadBlock::Step::kDone);
    }
    EXPECT_EQ(calls, 12U);
    EXPECT_EQ(wrong_place(all.memory.data(), RangeOfBlocks::kOffset, RangeOfBlocks::kBytes), "right");
  }
}

TEST(ReadBlocks, DirectReadsThatAreRefusedGoThroughTheCache) {
  const NumberedFile content(4'000'000);
  const store::File file = store::File::open(content.path());
  if (file.direct_descriptor() < 0) GTEST_SKIP() << "no direct I/O here";
  const RangeOfBlocks all(file, true);
  for (std::uint64_t index = 0; index < 3; ++index) {
    store::ReadBlock block = all.block(index);
    store::ReadFault fault;
    ASSERT_EQ(block.advance(all.range, -EINVAL, fault), store::ReadBlock::Step::kDone);
  }
  EXPECT_EQ(wrong_place(all.memory.data(), RangeOfBlocks::kOffset, RangeOfBlocks::kBytes), "right");
}

TEST(Reader, WithRoomNothingIsCopied) {
  const NumberedFile content(kFileBytes);
  const store::File file = store::File::open(content.path());
  if (file.direct_descriptor() < 0) GTEST_SKIP() << "no direct I/O here";
  for (const Disk disk : {Disk::kBest, Disk::kThreads}) {
    store::ReaderOptions options;
    options.cache = Cache::kNever;
    options.disk = disk;
    store::BlockReader reader(options);
    for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1'234'567}}) {
      const std::size_t bytes = 6'543'210;
      const std::size_t alignment = file.direct_alignment(), room = store::BlockReader::room(file, offset, bytes);
      std::vector<std::byte> memory(room + alignment);
      auto* aligned =
          memory.data() + (alignment - reinterpret_cast<std::uintptr_t>(memory.data()) % alignment) % alignment;
      const std::byte* found = reader.read(file, offset, bytes, {aligned, room});
      EXPECT_EQ(found, aligned + store::BlockReader::lead(file, offset));
      EXPECT_EQ(wrong_place(found, offset, bytes), "right");
    }
    EXPECT_EQ(reader.counts().bounced, 0U);
    EXPECT_EQ(reader.counts().direct, 3U * 6'543'210);
  }
}

TEST(Reader, WhatIsCachedComesFromThereAndTheRestStaysOut) {
  const NumberedFile content(std::size_t{16} << 20);
  const store::File file = store::File::open(content.path());
  constexpr std::size_t kHalf = std::size_t{8} << 20;
  content.forget(kHalf, kHalf);
  if (file.direct_descriptor() < 0 || !store::all_cached(file, 0, kHalf) || store::all_cached(file, kHalf, kHalf))
    GTEST_SKIP() << "no direct I/O, or nobody says what is cached";
  store::BlockReader reader;
  std::vector<std::byte> memory(2 * kHalf);
  EXPECT_EQ(wrong_place(reader.read(file, 0, 2 * kHalf, {memory.data(), memory.size()}), 0, 2 * kHalf), "right");
  EXPECT_EQ(reader.counts().cached, kHalf);
  EXPECT_EQ(reader.counts().direct, kHalf);
  for (std::uint64_t page = kHalf; page < 2 * kHalf; page += 4096)
    ASSERT_FALSE(store::all_cached(file, page, 4096)) << "the page at " << page << " was brought into the cache";
}

TEST(Reader, OptionsThatCannotBeAreRefused) {
  const auto make = [](std::size_t block, unsigned in_flight, unsigned threads) {
    store::ReaderOptions options;
    options.block_bytes = block;
    options.in_flight = in_flight;
    options.threads = threads;
    store::BlockReader reader(options);
  };
  EXPECT_TRUE(fails([&] { make(0, 1, 1); }, ErrorCode::kInvalidValue));
  EXPECT_TRUE(fails([&] { make(1, 0, 1); }, ErrorCode::kInvalidValue));
  EXPECT_TRUE(fails([&] { make(1, 5000, 1); }, ErrorCode::kInvalidValue, {"5000"}));
  EXPECT_TRUE(fails([&] { make(1, 1, 0); }, ErrorCode::kInvalidValue));
  EXPECT_NO_THROW(make(1, 1, 1));
}

}  // namespace
}  // namespace slip::test_reader
