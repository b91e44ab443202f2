#include "comm/options.hpp"

#include <fmt/format.h>

#include <limits>

#include "comm/primitive.hpp"

namespace slip {
namespace {

struct Beat {
  std::int64_t heartbeat_ms = 0, silence_ms = 0;
  friend bool operator==(const Beat&, const Beat&) = default;
};

}  // namespace

void check_options(const CommunicatorOptions& options, int nranks, Here here) {
  const auto positive = [&](std::chrono::milliseconds time, const char* name) {
    if (time.count() <= 0)
      throw Error(Code::kInvalidValue,
                  fmt::format("{} of a communicator is {} ms: it must be positive", name, time.count()), here);
  };
  positive(options.timeout, "timeout");
  positive(options.init_timeout, "init_timeout");
  positive(options.heartbeat, "heartbeat");
  if (options.silence <= options.heartbeat)
    throw Error(Code::kInvalidValue,
                fmt::format("silence of a communicator is {} ms and heartbeat {} ms: a rank is lost after a silence, "
                            "which must be longer",
                            options.silence.count(), options.heartbeat.count()),
                here);
  constexpr int kMost = std::numeric_limits<decltype(Place::rank)>::max();
  if (nranks > kMost)
    throw Error(Code::kUnsupported, fmt::format("a communicator of {} ranks: at most {} are possible", nranks, kMost),
                here);
}

BootstrapOptions bootstrap_options(const CommunicatorOptions& options, std::shared_ptr<AbortFlag> abort) {
  BootstrapOptions result;
  result.timeout = options.init_timeout;
  result.heartbeat = {options.heartbeat, options.silence};
  result.abort = std::move(abort);
  return result;
}

void require_same_heartbeat(Bootstrap& bootstrap, const CommunicatorOptions& options, Here here) {
  const std::vector<Beat> beats = bootstrap.all_gather(Beat{options.heartbeat.count(), options.silence.count()});
  for (std::size_t rank = 1; rank < beats.size(); ++rank) {
    if (beats[rank] == beats[0]) continue;
    throw Error(
        Code::kMismatch,
        fmt::format("rank 0 has a heartbeat of {} ms and a silence of {} ms, rank {} of {} ms and {} ms: all "
                    "ranks must have the same",
                    beats[0].heartbeat_ms, beats[0].silence_ms, rank, beats[rank].heartbeat_ms, beats[rank].silence_ms),
        here);
  }
}

}  // namespace slip
