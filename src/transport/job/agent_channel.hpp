// AgentChannel: frames between the launcher of a job and its agent on another host. They pass through the standard
// input and output of the agent, usually an ssh connection. The agent's first bytes are a mark, because a login shell
// may write text before the agent starts.
//
//   launcher                                agent
//                                      <-   mark, kReady: the addresses of both ends of the connection
//   kJob: program and variables        ->
//                                      <-   kAccepted, or kRefused: why the job cannot run on this host
//   kReserve (first host only)         ->
//                                      <-   kAddress: where rank 0 will listen
//   kStart: the id of the job          ->
//                                      <-   kOutput, kNotStarted, kExit of its ranks; kDone: all have ended
//   kSignal, kKill, kPause, kResume    ->
//   kAlive: a heartbeat                <->  kAlive
//
// If the connection ends, the agent ends its ranks. One thread uses a channel; it never blocks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/socket/abort_flag.hpp"

namespace slip::transport {

inline constexpr std::uint32_t kAgentProtocol = 1;  // must be the same in the launcher and its agents
inline constexpr int kHeartbeatsPerSilence = 4;     // that each end sends within the limit for silence

enum class AgentFrameKind : std::uint16_t {
  kReady = 1,
  kJob,
  kAccepted,
  kRefused,
  kReserve,
  kAddress,
  kStart,
  kOutput,
  kNotStarted,
  kExit,
  kDone,
  kSignal,
  kKill,
  kPause,
  kResume,
  kAlive,
};

struct AgentFrame {
  AgentFrameKind kind{};
  std::int32_t rank = 0;
  // kAddress: the port. kOutput: 1 or 2, the stream. kNotStarted: the errno. kExit: the status, or the number of the
  // signal. kSignal: the number of the signal.
  std::int32_t value = 0;
  bool exited = false;  // kExit: the rank ended with a status, not by a signal
  std::string body = {};
};

class AgentChannel {
 public:
  enum class Side { kLauncher, kAgent };
  // Takes both descriptors and makes them non-blocking. If `out` is empty, `in` is a socket for both directions.
  AgentChannel(Side side, OwnedDescriptor in, OwnedDescriptor out);

  void send(const AgentFrame& frame);
  void flush();                          // writes as many bytes as the descriptor takes without blocking
  bool pump();                           // reads the bytes that have arrived; false: none
  std::optional<AgentFrame> next();      // the next frame, if all of it has arrived
  bool ended() const { return ended_; }  // the other side closed the connection, or broke the protocol
  // For errors: the text that arrived before the mark, or the reason why the bytes are not frames.
  const std::string& noise() const { return noise_; }

  std::size_t unsent() const { return outgoing_.size(); }
  int in() const { return in_.number(); }
  int out() const { return out_.number() >= 0 ? out_.number() : in_.number(); }

 private:
  bool skip_to_mark();

  OwnedDescriptor in_, out_;  // out_ is empty if in_ serves both directions
  bool marked_ = false;       // the mark has arrived; always true for the agent
  bool ended_ = false;
  std::string incoming_, outgoing_, noise_;
  std::size_t taken_ = 0;  // bytes of incoming_ that next() has returned
};

// Writes the body of a frame: numbers and texts in a fixed order.
class BodyWriter {
 public:
  BodyWriter& number(std::int64_t value);
  BodyWriter& text(std::string_view value);
  BodyWriter& texts(const std::vector<std::string>& values);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads the parts of a body in the same order. Past the end it returns zeros and empty texts. ok(): the body had
// exactly the parts that were read.
class BodyReader {
 public:
  explicit BodyReader(std::string_view bytes) : rest_(bytes) {}
  std::int64_t number();
  std::string text();
  std::vector<std::string> texts();
  bool ok() const { return whole_ && rest_.empty(); }

 private:
  std::string_view take(std::size_t bytes);

  std::string_view rest_;
  bool whole_ = true;
};

// The body of kReady.
struct AgentHello {
  std::uint32_t protocol = kAgentProtocol;
  std::string version = {};  // of the agent's slip
  // The addresses of the launcher and of this host in the ssh connection; empty without ssh.
  std::string from_host = {}, own_host = {};
  std::string body() const;
  static std::optional<AgentHello> parse(std::string_view body);
};

// The body of kJob.
struct AgentJob {
  std::vector<int> ranks = {};  // of this host; the index is the local rank
  int nranks = 1;
  std::string directory = {};
  std::vector<std::string> command = {};
  std::map<std::string, std::string> variables = {};
  std::int64_t grace_ns = 0;    // from the signal that asks a rank to end until it is killed
  std::int64_t silence_ns = 0;  // if the launcher sends nothing for this time, the agent ends its ranks
  bool nccl = false;            // preload Slipstream's libnccl.so.2
  std::string body() const;
  static std::optional<AgentJob> parse(std::string_view body);
};

}  // namespace slip::transport
