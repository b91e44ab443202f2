// Random programs of streams as data. A program is a list of steps in one global order; each step belongs to a host
// thread, which makes its own steps in that order. Conflicting accesses are ordered, earlier step before later one, so
// that every execution that keeps the rules gives what the reference gives by running the steps one after the other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "slip/device.hpp"

namespace slip::stress {

inline constexpr int kPages = 4;  // of a buffer: the unit of accesses
inline constexpr int kPageWords = 16;
inline constexpr int kPageBytes = kPageWords * 4;

enum class Kind : std::uint8_t {
  kOpen,          // opens the stream
  kDestroy,       // and goes, perhaps with work pending
  kKernel,        // writes[i] <- mixed with all reads
  kCopy,          // writes[0] <- reads[0]
  kFill,          // writes[0] <- value
  kHostFunction,  // as kKernel, on pinned memory, by a host function
  kAlloc,         // writes[0]: a buffer in stream order
  kFree,          // the same
  kLaunch,        // a plan
  kRecord,
  kWait,
  kQuery,
  kQueryEvent,
  kSync,
  kSyncEvent,
  kSyncDevice,
  kHostRead,   // by the host thread, seen in Result::seen
  kHostWrite,  // as kKernel, by the host thread
  kPublish,    // makes what this thread has done and issued visible to the thread that takes it
  kTake,
};

// Some pages of a buffer.
struct Span {
  int buffer = 0, page = 0, pages = 1;
};

struct Step {
  Kind kind = Kind::kKernel;
  int thread = 0;
  int stream = -1;
  int device = -1;  // kSyncDevice
  int event = -1;
  int plan = -1;
  int handoff = -1;
  std::vector<Span> reads = {};
  std::vector<Span> writes = {};
  std::uint32_t value = 0;
  bool edge = false;  // a wait that was added because a later access needs it
};

struct StreamSpec {
  enum class Form : std::uint8_t { kCreated, kLegacy, kPerThread };
  Form form = Form::kCreated;
  int thread = 0;  // whose it is; the legacy stream has an entry for each thread that uses it
  int device = 0;
  StreamFlags flags = StreamFlags::kBlocking;
  int priority = 0;
  bool blocking() const {
    return form == Form::kPerThread || (form == Form::kCreated && flags == StreamFlags::kBlocking);
  }
};

struct BufferSpec {
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
  bool dynamic = false;  // comes and goes by kAlloc and kFree
};

// A captured plan: nodes on two branches (Step::stream is 0 or 1; Step::edge: first wait for the other branch).
struct PlanSpec {
  int device = 0;
  std::vector<Step> nodes;
};

struct Program {
  std::uint64_t seed = 0;
  int devices = 1;
  int threads = 1;
  int events = 0;
  int handoffs = 0;
  std::vector<StreamSpec> streams;
  std::vector<BufferSpec> buffers;
  std::vector<PlanSpec> plans;
  std::vector<Step> steps;

  std::string listing() const;
};

// What a run of a program leaves behind.
struct Result {
  std::vector<std::vector<std::uint32_t>> buffers;  // by buffer; empty: not alive at the end
  std::vector<std::uint32_t> seen;                  // by step: what kHostRead saw
  std::string error;                                // of the run itself
};

// The one computation: each word of `out` is mixed with the words of all inputs and with the value.
struct Words {
  std::uint32_t* data;
  std::size_t count;
};
void mix_words(const std::vector<Words>& out, const std::vector<Words>& in, std::uint32_t value);
std::uint32_t digest(const std::uint32_t* data, std::size_t count);
std::uint32_t initial_word(int buffer, int index);

// Runs the steps one after the other on plain arrays.
Result reference(const Program& program);

// Empty, or where the results differ first.
std::string difference(const Program& program, const Result& expected, const Result& actual);

}  // namespace slip::stress
