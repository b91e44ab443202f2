// A program with its own kernels, for tests of WeightStreamer: each use mixes all bytes of a group into a value, so
// that a byte which is not there changes the result.
#pragma once

#include <string>
#include <vector>

#include "flow/stacks.hpp"
#include "slip/weight_streamer.hpp"

namespace slip::test {

// Groups "g0", "g1", ... of random words; at most `max_words` each.
Weights random_groups(std::uint64_t seed, std::size_t groups, std::uint64_t max_words);
std::string group_name(std::size_t group);
std::vector<StreamedGroup> from_callback(const Weights& weights);
std::uint64_t bytes_of(const Weights& weights);
std::uint64_t largest_of(const Weights& weights);

using Order = std::vector<std::uint32_t>;  // groups
Order in_order(std::size_t groups);
std::vector<GroupUse> uses_of(const Order& order, Picos time = 0);

// Runs steps. The value passes from use to use, also from stream to stream.
class StreamedProgram {
 public:
  StreamedProgram(const Device& device, const Weights& weights, std::size_t streams = 1);

  StreamRef stream(std::size_t number = 0) const { return streams_[number % streams_.size()]; }
  // Issues one use in this stream, after the uses before.
  void use(WeightStreamer& streamer, std::uint32_t group, std::size_t stream = 0);
  void mix(Range weights, std::uint32_t group, std::size_t stream = 0);  // the kernel of a use
  void step(WeightStreamer& streamer, WeightPass pass, const Order& order);
  // Waits, and compares the value with the one computed on the host.
  bool right();

 private:
  const Device device_;
  const Weights& weights_;
  std::vector<Stream> streams_;
  Buffer value_, host_;
  Event done_;            // of the last use
  std::size_t last_ = 0;  // its stream
  std::vector<std::uint32_t> expected_;
};

}  // namespace slip::test
