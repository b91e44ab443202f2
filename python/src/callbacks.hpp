// Python functions as kernels and host functions.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "objects.hpp"

namespace slip::python {

// A Python function with its operands, for one launch or one op of a plan. Reference-counted: an op that waits to run
// holds one reference and releases it after its run. If the op never runs, because its stream has failed, the Call is
// leaked. Releasing the last reference takes the GIL.
class Call {
 public:
  Call(py::object function, std::vector<std::shared_ptr<BufferObject>> operands, std::vector<bool> reals)
      : function_(function.release().ptr()), operands_(std::move(operands)), reals_(std::move(reals)) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void retain() { users_.fetch_add(1, std::memory_order_relaxed); }  // relaxed: the caller has a reference
  void release();
  void run(const Args& args) const;  // takes the GIL; an exception becomes a std::runtime_error with its text
  void run() const;
  bool real(std::size_t scalar) const { return reals_.at(scalar); }
  std::size_t scalars() const { return reals_.size(); }

 private:
  ~Call() = default;
  template <class Body>
  void guarded(const Body& body) const;

  PyObject* const function_;
  const std::vector<std::shared_ptr<BufferObject>> operands_;  // of the reads, then of the writes
  const std::vector<bool> reals_;                              // of the scalars: true for float, false for int
  std::atomic<int> users_{1};
};

// The kernel of this name that runs the Call in its first scalar. Never destroyed: ops refer to it.
const Kernel& python_kernel(Name name);
// A kernel without a function, for simulations.
const Kernel& modelled_kernel(Name name);
Call* call_of(const PlanNode& node);  // null: not a Python kernel

}  // namespace slip::python
