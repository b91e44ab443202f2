// Communicator::State, as far as it sends and receives for its user.
#include <fmt/format.h>

#include <cstring>

#include "comm/api/communicator_state.hpp"
#include "comm/plan/message_program.hpp"
#include "runtime/core.hpp"

namespace slip {
namespace {

const Name& message_name() {
  static const Name kName(collective_name(Collective::kMessage));
  return kName;
}

// A kernel, for copies between host buffers hold the host (rule 36).
const Kernel& own_message() {
  static const Kernel kKernel{"message to itself", [](const Args& args) {
                                const std::span<const std::byte> from = args.in<std::byte>(0);
                                std::memmove(args.out<std::byte>(0).data(), from.data(), from.size());
                              }};
  return kKernel;
}

// The first send goes to the first receive, and so on.
void require_pairs(int rank, std::span<const Range> out, std::span<const Range> in, Here here) {
  if (out.size() != in.size())
    throw Error(Code::kInvalidValue,
                fmt::format("rank {} sends {} messages to itself and receives {}: a group must have both", rank,
                            out.size(), in.size()),
                here);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (out[i].bytes != in[i].bytes)
      throw Error(Code::kInvalidValue,
                  fmt::format("rank {} sends {} bytes to itself and receives {}", rank, out[i].bytes, in[i].bytes),
                  here);
  }
}

}  // namespace

// Fills in `sent`, `received` and `parcels`; throws if a message cannot be sent or received.
Communicator::State::OwnLetters Communicator::State::sort_letters(std::span<const Letter> letters, StreamState& state) {
  static const Name kSend("send"), kRecv("recv");
  const int rank = bootstrap.rank(), nranks = bootstrap.nranks();
  const Here here = letters.front().here;
  OwnLetters own;
  sent.clear();
  received.clear();
  parcels.clear();
  for (const Letter& letter : letters) {
    const Name name = letter.out ? kSend : kRecv;
    if (letter.rank < 0 || letter.rank >= nranks)
      throw Error(Code::kInvalidValue, fmt::format("{}: rank {} of {} ranks", name.text(), letter.rank, nranks),
                  letter.here);
    if (letter.range.bytes > 0) require_kernel_range(*state.core, letter.range, name, letter.here);
    if (letter.rank == rank) {
      (letter.out ? own.out : own.in).push_back(letter.range);
      continue;
    }
    if (letter.range.bytes > 0) (letter.out ? sent : received).push_back(letter.range);
    parcels.push_back({letter.out, letter.rank, nullptr, letter.range.bytes});
  }
  require_apart(sent, received, sorted, here);
  require_pairs(rank, own.out, own.in, here);
  return own;
}

StreamState& Communicator::State::require_stream_for(std::span<const Letter> letters, StreamRef stream) const {
  const Here here = letters.front().here;
  require_usable(here);
  StreamState& state = *stream.state(here);
  if (state.core->info.world != world) [[unlikely]]
    require_device(*state.core, message_name().text(), here);
  return state;
}

void Communicator::State::check_letters(std::span<const Letter> letters, StreamRef stream) {
  StreamState& state = require_stream_for(letters, stream);
  for (const Letter& letter : letters) require_stream(*letter.stream.state(letter.here), letter.here);
  const std::lock_guard lock(mutex);
  static_cast<void>(sort_letters(letters, state));
}

// Those to itself are copies.
void Communicator::State::issue_letters(std::span<const Letter> letters, StreamRef stream) {
  StreamState& state = require_stream_for(letters, stream);
  const Here here = letters.front().here;
  const std::lock_guard lock(mutex);
  const OwnLetters own = sort_letters(letters, state);
  for (std::size_t i = 0; i < own.in.size(); ++i) {
    const std::uint64_t bytes = own.in[i].bytes;
    if (bytes > 0)
      stream.launch(own_message(), {.reads = {own.out[i]}, .writes = {own.in[i]}}, {.bytes = 2 * bytes}, here);
  }
  if (parcels.empty()) return;
  std::uint64_t bytes = 0;
  for (const UserMessage& parcel : parcels) bytes += parcel.bytes;
  Op op{.kind = OpKind::kExchange,
        .engine = Engine::kCommunication,
        .name = message_name(),
        .here = here,
        .reads = sent,
        .writes = received,
        .cost = {.bytes = bytes}};
  if (state.capture.load(std::memory_order_relaxed)) return capture(state, op, {.kind = Collective::kMessage}, parcels);
  SharedRun& run = take_run();
  std::swap(run.parcels, parcels);
  start_letters(run, op, state, issue);
}

}  // namespace slip
