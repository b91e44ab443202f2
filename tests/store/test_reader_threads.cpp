// Many readers at once, and many threads with one reader.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "store/numbered_file.hpp"

namespace slip::test_reader_threads {
namespace {

using test::NumberedFile;
using test::wrong_place;

// Random ranges by this reader; "right", or what is wrong first.
std::string read_around(store::BlockReader& reader, const store::File& file, unsigned seed) {
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

void expect_right_by_threads(const store::ReaderOptions& options, bool one_reader) {
  const NumberedFile content(std::size_t{8} << 20);
  const store::File file = store::File::open(content.path());
  content.forget(0, std::size_t{4} << 20);
  constexpr std::size_t kThreads = 4;
  std::vector<std::unique_ptr<store::BlockReader>> readers;
  for (std::size_t i = 0; i < (one_reader ? 1 : kThreads); ++i)
    readers.push_back(std::make_unique<store::BlockReader>(options));
  std::vector<std::string> found(kThreads);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i)
    threads.emplace_back(
        [&, i] { found[i] = read_around(*readers[i % readers.size()], file, static_cast<unsigned>(i)); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& each : found) EXPECT_EQ(each, "right");
}

TEST(ReaderThreads, ShareOne) {
  for (const store::ReaderOptions::Disk disk : {store::ReaderOptions::Disk::kBest, store::ReaderOptions::Disk::kThreads,
                                                store::ReaderOptions::Disk::kBuffered}) {
    for (const store::ReaderOptions::Cache cache :
         {store::ReaderOptions::Cache::kFirst, store::ReaderOptions::Cache::kNever}) {
      store::ReaderOptions options;
      options.disk = disk;
      options.cache = cache;
      expect_right_by_threads(options, true);
    }
  }
}

TEST(ReaderThreads, HaveOneEach) {
  for (const store::ReaderOptions::Disk disk :
       {store::ReaderOptions::Disk::kBest, store::ReaderOptions::Disk::kThreads}) {
    store::ReaderOptions options;
    options.disk = disk;
    expect_right_by_threads(options, false);
  }
}

}  // namespace
}  // namespace slip::test_reader_threads
