// Many readers at once, and many threads with one reader.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "store/numbered_file.hpp"

namespace slip {
namespace {

using test::NumberedFile;
using test::wrong_place;

// Random ranges by this reader; "right", or what is wrong first.
std::string read_around(BlockReader& reader, const File& file, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> memory(3'000'000);
  for (int turn = 0; turn < 12; ++turn) {
    const std::size_t bytes = random() % memory.size();
    const std::uint64_t offset = random() % (file.size() - bytes + 1);
    const std::string found =
        wrong_place(reader.read(file, offset, bytes, {memory.data(), memory.size()}), offset, bytes);
    if (found != "right") return found;
  }
  return "right";
}

void read_by_threads(const ReaderOptions& options, bool one_reader) {
  const NumberedFile content(std::size_t{8} << 20);
  const File file = File::open(content.path());
  content.forget(0, std::size_t{4} << 20);
  constexpr std::size_t kThreads = 4;
  std::vector<std::unique_ptr<BlockReader>> readers;
  for (std::size_t i = 0; i < (one_reader ? 1 : kThreads); ++i)
    readers.push_back(std::make_unique<BlockReader>(options));
  std::vector<std::string> found(kThreads);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i)
    threads.emplace_back(
        [&, i] { found[i] = read_around(*readers[i % readers.size()], file, static_cast<unsigned>(i)); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& each : found) EXPECT_EQ(each, "right");
}

TEST(ReaderThreads, ShareOne) {
  for (const ReaderOptions::Disk disk :
       {ReaderOptions::Disk::kBest, ReaderOptions::Disk::kThreads, ReaderOptions::Disk::kBuffered}) {
    for (const ReaderOptions::Cache cache : {ReaderOptions::Cache::kFirst, ReaderOptions::Cache::kNever}) {
      ReaderOptions options;
      options.disk = disk;
      options.cache = cache;
      read_by_threads(options, true);
    }
  }
}

TEST(ReaderThreads, HaveOneEach) {
  for (const ReaderOptions::Disk disk : {ReaderOptions::Disk::kBest, ReaderOptions::Disk::kThreads}) {
    ReaderOptions options;
    options.disk = disk;
    read_by_threads(options, false);
  }
}

}  // namespace
}  // namespace slip
