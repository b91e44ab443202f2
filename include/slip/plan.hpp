// Plan: ops of several streams and the waits between them, as data. It is captured from streams or built by a planner.
// It can be printed, verified, simulated, and launched repeatedly with other bindings. Stream order treats a launch as
// one op of the stream that launches it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "slip/op.hpp"

namespace slip::runtime {
class ExchangeSource;  // makes the work of a captured communicator call, once per launch
}  // namespace slip::runtime

namespace slip {

class StreamRef;

// One op of a plan; it owns its lists. `waits` are indices into Plan::nodes: ops of other streams that must end first.
struct PlanNode {
  std::uint32_t stream = 0;  // 0: the origin stream
  OpKind kind = OpKind::kKernel;
  Engine engine = Engine::kNone;
  bool opaque = false;
  std::uint32_t value = 0;
  const Kernel* kernel = nullptr;
  Name name = {};
  Here here = {};
  std::vector<Range> reads = {};
  std::vector<Range> writes = {};
  std::vector<Scalar> scalars = {};
  Cost cost = {};
  std::function<void()> host = {};
  std::shared_ptr<const runtime::ExchangeSource> exchange = {};  // a captured call of a communicator
  std::vector<std::uint32_t> waits = {};
};

// Replacements for one launch: other buffers, at least as large as the used part, and other scalars by op name and
// index. They apply to declared ranges, also those of host functions. A captured host function itself does not change:
// pointers inside it stay as captured.
class Bindings {
 public:
  Bindings& buffer(Range planned, Range actual);
  Bindings& scalar(Name op, std::size_t index, Scalar value);

 private:
  friend class Plan;
  struct BufferBinding {
    Range planned, actual;
  };
  struct ScalarBinding {
    Name op;
    std::size_t index;
    Scalar value;
  };
  std::vector<BufferBinding> buffers_;
  std::vector<ScalarBinding> scalars_;
};

class Plan {
 public:
  Plan();
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;
  ~Plan();

  const std::vector<PlanNode>& nodes() const { return nodes_; }
  std::uint32_t streams() const { return streams_; }
  Name stream_name(std::uint32_t stream) const;  // of the captured stream; empty: it had no name
  std::uint32_t add(PlanNode node);              // returns its index; `waits` must refer to earlier nodes
  std::string describe() const;                  // one line per op, with its waits

 private:
  friend class StreamRef;
  struct Launches;  // the streams that it runs on, and its last launch
  struct Bound;     // one launch with its bindings applied
  Bound bind(runtime::StreamState& main, const Bindings* bindings, Here here);
  void run(StreamRef origin, const Bindings* bindings, Here here);
  bool run_compiled(runtime::StreamState& main, const Bindings* bindings, Here here);
  void run_op_by_op(runtime::StreamState& main, Bound bound, Here here);

  std::vector<PlanNode> nodes_;
  std::uint32_t streams_ = 1;
  std::unique_ptr<Launches> launches_;
};

}  // namespace slip
