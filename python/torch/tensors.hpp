// Tensors as memory for collectives: their checks, element types and staging.
//
// A collective works on dense memory. A contiguous tensor is used in place. Any other tensor, and most lists of
// tensors, are staged: the elements are copied into a dense tensor before the call and, if they are results, copied
// back after it.
#pragma once

#include "slip/data_type.hpp"
#include "slip/reduction.hpp"
#include "torch_api.hpp"

namespace slip::distributed {

// The element type of a reduction. If the torch type cannot be reduced, throws an error that names it.
DataType reduced_type(const at::Tensor& tensor, const char* call);
ReduceOp reduce_op(const c10d::ReduceOp& op, const char* call);

// Throws unless it is a dense tensor in host memory.
void require_host_tensor(const at::Tensor& tensor, const char* call);
const at::Tensor& require_one(const Tensors& tensors, const char* call);
const Tensors& require_one(const TensorLists& lists, const char* call);
// Throws unless there are `count` tensors, and each has as many elements as `like` and the same type.
void require_alike(const Tensors& tensors, const at::Tensor& like, int count, const char* call);

// The dense memory that a collective uses for a tensor or a list of tensors.
struct Staged {
  at::Tensor memory;     // contiguous; the tensor itself, or a copy
  Tensors results = {};  // if not empty: the tensors to which the parts of `memory` are copied after the call

  void copy_back() const;
};
enum class Access { kRead, kWrite, kReadWrite };
Staged stage(const at::Tensor& tensor, Access access);
// The memory of all tensors of the list, one after the other.
Staged stage(const Tensors& tensors, Access access);

}  // namespace slip::distributed
