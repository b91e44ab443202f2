// Name, Error and Thread.
#include <pthread.h>

#include <csignal>
#include <set>
#include <thread>
#include <vector>

#include "backend/support.hpp"
#include "base/thread.hpp"
#include "slip/name.hpp"

namespace slip::test_words {
namespace {

TEST(Name, EqualTextsAreOneName) {
  const Name a("kernel");
  const Name b(std::string("ker") + "nel");
  EXPECT_TRUE(a == b);
  EXPECT_EQ(static_cast<const void*>(a.c_str()), static_cast<const void*>(b.c_str()));
  EXPECT_FALSE(a == Name("kernel2"));
}

TEST(Name, NothingIsEmpty) {
  EXPECT_FALSE(static_cast<bool>(Name()));
  EXPECT_FALSE(static_cast<bool>(Name("")));
  EXPECT_TRUE(Name() == Name(""));
  EXPECT_STREQ(Name().c_str(), "");
  EXPECT_EQ(Name().text(), "");
}

TEST(Name, KeepsBytesThatAreNoText) {
  const std::string odd("a\0b\xff", 4);
  EXPECT_EQ(Name(odd).text(), odd);
  EXPECT_FALSE(Name(odd) == Name("a"));
}

TEST(Name, StaysValidWhileTheTableGrows) {
  const Name first("grows 0");
  const char* text = first.c_str();
  for (int i = 0; i < test::rounds(20'000); ++i) Name(std::string("grows ") + std::to_string(i));
  EXPECT_EQ(Name("grows 0").c_str(), text);
  EXPECT_STREQ(text, "grows 0");
}

TEST(Name, ThreadsGetTheSameOnes) {
  constexpr int kThreads = 4;
  constexpr int kNames = 500;
  std::vector<std::vector<const char*>> seen(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&seen, t] {
      for (int i = 0; i < kNames; ++i)
        seen[static_cast<std::size_t>(t)].push_back(Name(std::string("shared ") + std::to_string(i)).c_str());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 1; t < kThreads; ++t) EXPECT_EQ(seen[static_cast<std::size_t>(t)], seen[0]);
}

TEST(Error, SaysCodeTextAndPlace) {
  const Error error(ErrorCode::kInvalidValue, "seven is odd", {"file.cpp", 12});
  EXPECT_STREQ(error.what(), "invalid value: seven is odd (file.cpp:12)");
  EXPECT_EQ(error.code(), ErrorCode::kInvalidValue);
  EXPECT_EQ(error.here().line, 12);
  EXPECT_STREQ(Error(ErrorCode::kTimeout, "late", {}).what(), "timeout: late");
}

TEST(Error, TakesTheCallersPlace) {
  const Error error(ErrorCode::kIo, "x");
  EXPECT_EQ(error.here().line, __LINE__ - 1);
  EXPECT_TRUE(test::contains(error.here().file, "test_words.cpp"));
}

TEST(Error, EveryCodeHasItsOwnName) {
  std::set<std::string> names;
  const int last = static_cast<int>(ErrorCode::kAborted);
  for (int code = 0; code <= last; ++code) names.insert(code_name(static_cast<ErrorCode>(code)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(last) + 1);
  EXPECT_EQ(names.count("unknown"), 0U);
  EXPECT_STREQ(code_name(static_cast<ErrorCode>(last + 1)), "unknown");
}

TEST(LastError, IsKeptUntilRead) {
  last_error();
  EXPECT_EQ(peek_last_error(), ErrorCode::kOk);
  const Error first(ErrorCode::kInvalidHandle, "a");
  const Error second(ErrorCode::kOutOfMemory, "b");
  EXPECT_EQ(peek_last_error(), ErrorCode::kOutOfMemory) << "the last one counts";
  EXPECT_EQ(peek_last_error(), ErrorCode::kOutOfMemory) << "peek does not clear";
  EXPECT_EQ(last_error(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(last_error(), ErrorCode::kOk);
}

TEST(LastError, DoesNotKeepNotReady) {
  last_error();
  const Error first(ErrorCode::kInvalidValue, "a");
  const Error second(ErrorCode::kNotReady, "b");
  EXPECT_EQ(last_error(), ErrorCode::kInvalidValue);
}

TEST(LastError, BelongsToItsThread) {
  last_error();
  std::thread([] {
    const Error error(ErrorCode::kParse, "there");
    EXPECT_EQ(peek_last_error(), ErrorCode::kParse);
  }).join();
  EXPECT_EQ(peek_last_error(), ErrorCode::kOk);
}

TEST(Thread, RunsItsBodyUnderItsName) {
  base::Thread thread;
  EXPECT_FALSE(thread.started());
  char name[32] = {};
  thread.start("a name longer than fifteen", [&] { pthread_getname_np(pthread_self(), name, sizeof(name)); });
  EXPECT_TRUE(thread.started());
  thread.join();
  EXPECT_FALSE(thread.started());
  EXPECT_STREQ(name, "a name longer t");
}

TEST(Thread, JoinWithoutStartAndTwiceDoNothing) {
  base::Thread thread;
  bool ran = false;
  thread.join();
  EXPECT_FALSE(thread.started());
  thread.start("twice", [&ran] { ran = true; });
  thread.join();
  EXPECT_TRUE(ran);
  EXPECT_FALSE(thread.started());
  thread.join();
}

TEST(Thread, LeavesSignalsToTheProgram) {
  sigset_t inside;
  sigset_t before;
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  base::Thread thread;
  thread.start("signals", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &inside); });
  thread.join();
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal : {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1}) {
    EXPECT_EQ(sigismember(&inside, signal), 1) << signal;
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << "the starter's own mask is as before";
  }
  for (int signal : {SIGSEGV, SIGBUS, SIGABRT}) EXPECT_EQ(sigismember(&inside, signal), 0) << signal;
}

// As in an exit handler of the main thread, which runs after the thread's objects were destroyed.
TEST(Thread, AThreadWideObjectIsMadeAgainAfterItsEnd) {
  struct Text {
    std::string value = "new";
  };
  static std::string found;
  struct Late {
    ~Late() { found = base::thread_wide<Text>().value; }
  };
  std::thread([] {
    static thread_local Late t_late;  // made before the object, so destroyed after it
    static_cast<void>(&t_late);
    base::thread_wide<Text>().value = "used by the thread, and long enough to be on the heap";
    EXPECT_EQ(&base::thread_wide<Text>(), &base::thread_wide<Text>());
  }).join();
  EXPECT_EQ(found, "new");
}

TEST(Thread, IndicesAreUniqueAndStay) {
  const std::uint64_t mine = base::thread_index();
  EXPECT_EQ(base::thread_index(), mine);
  std::set<std::uint64_t> seen{mine};
  for (int i = 0; i < 4; ++i) {
    std::thread([&] { seen.insert(base::thread_index()); }).join();
  }
  EXPECT_EQ(seen.size(), 5U);
  EXPECT_GE(base::core_count(), 1);
}

}  // namespace
}  // namespace slip::test_words
