#include "transport/job/agent_channel.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace slip::transport {
namespace {

// Frames have this layout; hosts of one job have the same byte order (frame.hpp).
struct Header {
  std::uint32_t bytes = 0;  // of the body
  std::uint16_t kind = 0;
  std::uint16_t exited = 0;
  std::int32_t rank = 0, value = 0;
};
static_assert(sizeof(Header) == 16);

constexpr std::size_t kMaxAgentBody = std::size_t{16} << 20;
constexpr int kReadsAtOnce = 16;
constexpr std::size_t kMaxNoise = 4096;
// No text of a login shell contains it by chance.
constexpr std::string_view kAgentMark("\0slip agent 1:7c1f0e55\n", 23);

void set_non_blocking(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
}

// A socket whose other end is gone must not raise SIGPIPE. Other descriptors are the agent's, which blocks the signal.
ssize_t write_some(int descriptor, const std::string& bytes) {
  const ssize_t count = ::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return count < 0 && errno == ENOTSOCK ? ::write(descriptor, bytes.data(), bytes.size()) : count;
}

bool is_kind(std::uint16_t kind) {
  return kind >= static_cast<std::uint16_t>(AgentFrameKind::kReady) &&
         kind <= static_cast<std::uint16_t>(AgentFrameKind::kAlive);
}

}  // namespace

AgentChannel::AgentChannel(Side side, OwnedDescriptor in, OwnedDescriptor out)
    : in_(std::move(in)), out_(std::move(out)), marked_(side == Side::kAgent) {
  set_non_blocking(in_.number());
  if (out_.number() >= 0) set_non_blocking(out_.number());
  if (side == Side::kAgent) outgoing_ = kAgentMark;
}

void AgentChannel::send(const AgentFrame& frame) {
  const Header header{static_cast<std::uint32_t>(frame.body.size()), static_cast<std::uint16_t>(frame.kind),
                      static_cast<std::uint16_t>(frame.exited ? 1 : 0), frame.rank, frame.value};
  outgoing_.append(reinterpret_cast<const char*>(&header), sizeof(header));
  outgoing_ += frame.body;
  flush();
}

void AgentChannel::flush() {
  if (ended_) outgoing_.clear();  // otherwise an agent whose launcher is gone would poll for room that always exists
  while (!outgoing_.empty() && !ended_) {
    const ssize_t count = write_some(out(), outgoing_);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count < 0) {  // the other end is closed: drops the output; pump() can still read what arrived before
      outgoing_.clear();
      return;
    }
    outgoing_.erase(0, static_cast<std::size_t>(count));
  }
}

bool AgentChannel::pump() {
  bool any = false;
  char bytes[32 << 10];
  incoming_.erase(0, std::exchange(taken_, 0));
  // A limit, so that a fast sender does not keep this thread from its other descriptors.
  for (int i = 0; i < kReadsAtOnce && !ended_; ++i) {
    const ssize_t count = ::read(in(), bytes, sizeof(bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    any = any || count > 0;
    if (count <= 0) ended_ = true;
    else incoming_.append(bytes, static_cast<std::size_t>(count));
  }
  return any;
}

// False: the mark has not arrived yet.
bool AgentChannel::skip_to_mark() {
  if (marked_) return true;
  const std::size_t at = incoming_.find(kAgentMark);
  marked_ = at != std::string::npos;
  // Without the mark, its first part may be at the end.
  const std::size_t noise = marked_ ? at : incoming_.size() - std::min(incoming_.size(), kAgentMark.size() - 1);
  noise_ += incoming_.substr(0, noise);
  if (noise_.size() > kMaxNoise) noise_.erase(0, noise_.size() - kMaxNoise);
  incoming_.erase(0, marked_ ? at + kAgentMark.size() : noise);
  if (ended_ && !marked_) noise_ += std::exchange(incoming_, {});
  return marked_;
}

std::optional<AgentFrame> AgentChannel::next() {
  Header header;
  if (!skip_to_mark() || incoming_.size() - taken_ < sizeof(header)) return std::nullopt;
  std::memcpy(&header, incoming_.data() + taken_, sizeof(header));
  if (header.bytes > kMaxAgentBody || !is_kind(header.kind)) {
    noise_ = "bytes that are no frame";
    incoming_.clear();
    taken_ = 0;
    ended_ = true;
    return std::nullopt;
  }
  if (incoming_.size() - taken_ < sizeof(header) + header.bytes) return std::nullopt;
  AgentFrame frame{static_cast<AgentFrameKind>(header.kind), header.rank, header.value, header.exited != 0,
                   incoming_.substr(taken_ + sizeof(header), header.bytes)};
  taken_ += sizeof(header) + header.bytes;
  return frame;
}

BodyWriter& BodyWriter::number(std::int64_t value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  return *this;
}

BodyWriter& BodyWriter::text(std::string_view value) {
  number(static_cast<std::int64_t>(value.size()));
  bytes_ += value;
  return *this;
}

BodyWriter& BodyWriter::texts(const std::vector<std::string>& values) {
  number(static_cast<std::int64_t>(values.size()));
  for (const std::string& value : values) text(value);
  return *this;
}

std::string_view BodyReader::take(std::size_t bytes) {
  if (bytes > rest_.size()) {
    whole_ = false;
    rest_ = {};
    return {};
  }
  const std::string_view part = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return part;
}

std::int64_t BodyReader::number() {
  std::int64_t value = 0;
  const std::string_view part = take(sizeof(value));
  if (!part.empty()) std::memcpy(&value, part.data(), sizeof(value));
  return value;
}

std::string BodyReader::text() {
  const std::int64_t bytes = number();
  return std::string(take(bytes < 0 ? std::string::npos : static_cast<std::size_t>(bytes)));
}

std::vector<std::string> BodyReader::texts() {
  std::vector<std::string> result;
  // Each text takes at least its length, so a body that ends early ends the loop.
  for (std::int64_t count = number(); count > 0 && whole_; --count) result.push_back(text());
  return result;
}

std::string AgentHello::body() const {
  return BodyWriter().number(protocol).text(version).text(from_host).text(own_host).take();
}

// A later protocol may have other parts behind the first two.
std::optional<AgentHello> AgentHello::parse(std::string_view body) {
  BodyReader reader(body);
  AgentHello hello;
  hello.protocol = static_cast<std::uint32_t>(reader.number());
  hello.version = reader.text();
  if (hello.protocol != kAgentProtocol) return hello;
  hello.from_host = reader.text();
  hello.own_host = reader.text();
  return reader.ok() ? std::optional(hello) : std::nullopt;
}

std::string AgentJob::body() const {
  BodyWriter writer;
  writer.number(nranks).number(grace_ns).number(silence_ns).number(nccl ? 1 : 0).text(directory).texts(command);
  writer.number(static_cast<std::int64_t>(ranks.size()));
  for (const int rank : ranks) writer.number(rank);
  writer.number(static_cast<std::int64_t>(variables.size()));
  for (const auto& [name, value] : variables) writer.text(name).text(value);
  return writer.take();
}

std::optional<AgentJob> AgentJob::parse(std::string_view body) {
  BodyReader reader(body);
  AgentJob job;
  job.nranks = static_cast<int>(reader.number());
  job.grace_ns = reader.number();
  job.silence_ns = reader.number();
  job.nccl = reader.number() != 0;
  job.directory = reader.text();
  job.command = reader.texts();
  for (std::int64_t count = reader.number(); count > 0 && body.size() >= static_cast<std::size_t>(count); --count)
    job.ranks.push_back(static_cast<int>(reader.number()));
  for (std::int64_t count = reader.number(); count > 0 && body.size() >= static_cast<std::size_t>(count); --count) {
    const std::string name = reader.text();
    job.variables[name] = reader.text();
  }
  if (!reader.ok() || job.command.empty() || job.ranks.empty()) return std::nullopt;
  return job;
}

}  // namespace slip::transport
