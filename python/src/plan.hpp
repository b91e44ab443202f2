// PlanObject: a plan and the buffers that it uses. CaptureRefs: keeps the operands of a capture alive.
#pragma once

#include "objects.hpp"

namespace slip::python {

// A plan with the buffers that its ops use. Each op of a Python kernel holds a reference to its Call.
struct PlanObject {
  std::optional<Plan> plan;  // empty: not captured yet
  bool broken_off = false;   // an exception has ended the capture: the plan has only a part of the ops
  std::vector<std::shared_ptr<BufferObject>> buffers;

  ~PlanObject();
  Plan& get();  // throws if nothing was captured
};

// Keeps the operands of an op until the capture that the op belongs to becomes a plan. Does nothing if the stream does
// not capture.
class CaptureRefs {
 public:
  CaptureRefs(const StreamRef& stream, const std::vector<RangeObject>& reads, const std::vector<RangeObject>& writes);
};

}  // namespace slip::python
