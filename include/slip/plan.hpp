// Plan: ops per stream with the events between them, as data. Captured from streams or built by a planner; printed,
// launched again with other bindings, verified and simulated. A launch is ordered as one op of the stream it is
// launched in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "slip/op.hpp"

namespace slip {

class ExchangeSource;  // of a captured call of a communicator
class StreamRef;

// One op of a plan, owning its lists. `waits` name ops of other streams (by index into Plan::nodes) that must end
// first.
struct PlanNode {
  std::uint32_t stream = 0;  // 0 is the origin
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
  std::shared_ptr<const ExchangeSource> exchange = {};  // a captured call of a communicator
  std::vector<std::uint32_t> waits = {};
};

// Replacements for one launch: buffers of the plan by other buffers of at least the size used, and scalars by op name
// and index. They reach the ranges that ops declare, those of host functions too, but no pointer inside a captured host
// function: it runs as it was captured.
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
  std::uint32_t add(PlanNode node);  // returns its index; waits must name earlier nodes
  std::string describe() const;      // one line an op, with its waits

 private:
  friend class StreamRef;
  struct Launches;  // the streams it runs on, and its last launch
  struct Bound;     // one launch, with its bindings in place
  Bound bind(StreamState& main, const Bindings& bindings, Here here);
  void run(StreamRef origin, const Bindings* bindings, Here here);
  bool run_compiled(StreamState& main, const Bindings* bindings, Here here);
  void run_op_by_op(StreamState& main, Bound bound, Here here);

  std::vector<PlanNode> nodes_;
  std::uint32_t streams_ = 1;
  std::unique_ptr<Launches> launches_;
};

}  // namespace slip
