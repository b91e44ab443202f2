// Ranks as threads of the test, and the result of each of them.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "slip/error.hpp"
#include "transport/bootstrap/bootstrap.hpp"

namespace slip::test {

// The result of one rank.
struct Met {
  std::optional<ErrorCode> code;  // of the error; kOk: an exception that is no Error; none: the rank succeeded
  std::string text;
  bool first = false;  // this error was the first one of all ranks
};

// Runs the body once for each rank, all at the same time, and waits for all of them. If a rank throws, or returns with
// a fatal failure of the test, its thread calls `on_failure` at once. That function should abort the other ranks, which
// would otherwise wait for this rank until their deadline.
inline std::vector<Met> as_ranks(int count, const std::function<void(int rank)>& body,
                                 const std::function<void(int rank)>& on_failure = {}) {
  std::atomic<bool> failed{false};
  std::vector<Met> met(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      Met& mine = met[static_cast<std::size_t>(rank)];
      try {
        body(rank);
      } catch (const Error& error) {
        mine = {error.code(), error.what(), !failed.exchange(true)};
      } catch (const std::exception& error) {
        mine = {ErrorCode::kOk, error.what(), !failed.exchange(true)};
      }
      if (on_failure && (mine.code || testing::Test::HasFatalFailure())) on_failure(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return met;
}

inline void expect_no_errors(const std::vector<Met>& met) {
  for (const Met& one : met) EXPECT_FALSE(one.code) << (one.first ? "the first error: " : "") << one.text;
}

inline UniqueId local_id(const std::string& host = "127.0.0.1") {
  UniqueId::Options options;
  options.host = host;
  options.lifetime = std::chrono::seconds(30);
  return UniqueId::create(options);
}

inline transport::BootstrapOptions within(std::chrono::milliseconds timeout) {
  transport::BootstrapOptions options;
  options.timeout = timeout;
  return options;
}

inline std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }
inline std::string as_text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace slip::test
