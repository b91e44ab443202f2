#include "flow/streamed_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace slip::test {
namespace {

constexpr std::size_t kColumns = 64;  // elements of the value

void mix_in(std::span<const std::uint32_t> weight, std::span<std::uint32_t> value) {
  std::uint32_t sum = 0;
  for (const std::uint32_t word : weight) sum = sum * 31 + word;
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = value[i] * 3 + sum + static_cast<std::uint32_t>(i);
}
const Kernel kMixIn{"mix in", [](const Args& args) { mix_in(args.in<std::uint32_t>(0), args.out<std::uint32_t>(0)); }};

}  // namespace

Weights random_groups(std::uint64_t seed, std::size_t groups, std::uint64_t max_words) {
  std::mt19937_64 random(seed);
  Weights weights(groups);
  for (std::vector<std::uint32_t>& words : weights) {
    words.resize(1 + random() % max_words);
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
  }
  return weights;
}

std::string group_name(std::size_t group) { return fmt::format("g{}", group); }

std::vector<StreamedGroup> from_callback(const Weights& weights) {
  std::vector<StreamedGroup> groups;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto fill = [&words = weights[i]](std::uint64_t offset, std::span<std::byte> into) {
      std::memcpy(into.data(), std::as_bytes(std::span(words)).data() + offset, into.size());
    };
    groups.push_back({group_name(i), GroupSource::callback(weights[i].size() * 4, fill)});
  }
  return groups;
}

std::uint64_t bytes_of(const Weights& weights) {
  std::uint64_t bytes = 0;
  for (const auto& words : weights) bytes += (words.size() * 4 + 255) / 256 * 256;
  return bytes;
}

std::uint64_t largest_of(const Weights& weights) {
  std::uint64_t max = 0;
  for (const auto& words : weights) max = std::max<std::uint64_t>(max, (words.size() * 4 + 255) / 256 * 256);
  return max;
}

Order in_order(std::size_t groups) {
  Order order(groups);
  std::iota(order.begin(), order.end(), 0U);
  return order;
}

std::vector<GroupUse> uses_of(const Order& order, Picos time) {
  std::vector<GroupUse> uses;
  for (const std::uint32_t group : order) uses.push_back({group_name(group), time});
  return uses;
}

StreamedProgram::StreamedProgram(const Device& device, const Weights& weights, std::size_t streams)
    : device_(device),
      weights_(weights),
      value_(device.alloc(kColumns * 4, MemoryKind::kDevice, "value")),
      host_(device.alloc(kColumns * 4, MemoryKind::kPinned, "host")),
      expected_(kColumns, 0) {
  for (std::size_t i = 0; i < streams; ++i) streams_.push_back(device.stream(StreamFlags::kNonBlocking));
  streams_.front().fill(value_, 0);
  done_ = streams_.front().record();
}

void StreamedProgram::mix(Range weights, std::uint32_t group, std::size_t number) {
  const StreamRef on = stream(number);
  if (number % streams_.size() != last_) on.wait(done_);
  const Range reads[] = {weights}, writes[] = {value_};
  on.launch(
      kMixIn,
      {.reads = std::span<const Range>(reads), .writes = std::span<const Range>(writes), .scalars = {}, .name = {}},
      {.time = 1'000'000});
  on.record(done_);
  last_ = number % streams_.size();
  mix_in(weights_[group], expected_);
}

void StreamedProgram::use(WeightStreamer& streamer, std::uint32_t group, std::size_t number) {
  mix(streamer.acquire(group, stream(number)), group, number);
  streamer.release(group, stream(number));
}

void StreamedProgram::step(WeightStreamer& streamer, WeightPass pass, const Order& order) {
  streamer.begin(pass);
  for (const std::uint32_t group : order) use(streamer, group);
}

bool StreamedProgram::right() {
  stream(last_).copy(host_, value_);
  stream(last_).sync();
  return std::ranges::equal(host_.host_read<std::uint32_t>(), expected_);
}

}  // namespace slip::test
