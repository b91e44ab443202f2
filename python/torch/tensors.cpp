#include "tensors.hpp"

#include <ATen/MemoryOverlap.h>

#include <optional>

namespace slip::distributed {
namespace {

std::optional<DataType> data_type(at::ScalarType type) {
  switch (type) {
    case at::kByte: return DataType::kU8;
    case at::kChar: return DataType::kI8;
    case at::kInt: return DataType::kI32;
    case at::kLong: return DataType::kI64;
    case at::kHalf: return DataType::kF16;
    case at::kBFloat16: return DataType::kBF16;
    case at::kFloat: return DataType::kF32;
    case at::kDouble: return DataType::kF64;
    default: return std::nullopt;
  }
}

// Whether the tensors lie one after the other in memory, so that they are dense memory themselves.
bool are_adjacent(const Tensors& tensors) {
  const auto* next = static_cast<const char*>(tensors.front().data_ptr());
  for (const at::Tensor& tensor : tensors) {
    // Within one storage: two allocations that touch by chance are not one piece of memory for other ranks.
    if (!tensor.is_contiguous() || tensor.data_ptr() != next || !tensor.is_alias_of(tensors.front())) return false;
    next += tensor.nbytes();
  }
  return true;
}

// A one-dimensional tensor over the memory of adjacent tensors.
at::Tensor join(const Tensors& tensors) {
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return tensors.front().detach().as_strided({elements}, {1});
}

}  // namespace

DataType reduced_type(const at::Tensor& tensor, const char* call) {
  const std::optional<DataType> type = data_type(tensor.scalar_type());
  TORCH_CHECK(
      type, "slip ", call, ": elements of type ", tensor.scalar_type(),
      " cannot be reduced; convert them to one of float16, bfloat16, float32, float64, int8, uint8, int32, int64");
  return *type;
}

ReduceOp reduce_op(const c10d::ReduceOp& op, const char* call) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM: return ReduceOp::kSum;
    case c10d::ReduceOp::AVG: return ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::kProd;
    case c10d::ReduceOp::MIN: return ReduceOp::kMin;
    case c10d::ReduceOp::MAX: return ReduceOp::kMax;
    case c10d::ReduceOp::BAND: TORCH_CHECK(false, "slip ", call, ": the operator BAND is not supported");
    case c10d::ReduceOp::BOR: TORCH_CHECK(false, "slip ", call, ": the operator BOR is not supported");
    case c10d::ReduceOp::BXOR: TORCH_CHECK(false, "slip ", call, ": the operator BXOR is not supported");
    default: TORCH_CHECK(false, "slip ", call, ": only SUM, AVG, PRODUCT, MIN and MAX are supported");
  }
}

void require_host_tensor(const at::Tensor& tensor, const char* call) {
  TORCH_CHECK(tensor.defined(), "slip ", call, ": a tensor is undefined");
  TORCH_CHECK(tensor.layout() == at::kStrided, "slip ", call, ": a tensor has the layout ", tensor.layout(),
              "; only dense tensors are supported");
  TORCH_CHECK(tensor.device().is_cpu(), "slip ", call, ": a tensor is on ", tensor.device(),
              "; the backend slip works on cpu tensors");
}

const at::Tensor& require_one(const Tensors& tensors, const char* call) {
  TORCH_CHECK(tensors.size() == 1, "slip ", call, ": ", tensors.size(), " tensors; expected 1");
  require_host_tensor(tensors.front(), call);
  return tensors.front();
}

const Tensors& require_one(const TensorLists& lists, const char* call) {
  TORCH_CHECK(lists.size() == 1, "slip ", call, ": ", lists.size(), " lists of tensors; expected 1");
  return lists.front();
}

void require_alike(const Tensors& tensors, const at::Tensor& like, int count, const char* call) {
  TORCH_CHECK(static_cast<int>(tensors.size()) == count, "slip ", call, ": a list of ", tensors.size(),
              " tensors; expected ", count, ", one for each rank");
  for (const at::Tensor& tensor : tensors) {
    require_host_tensor(tensor, call);
    TORCH_CHECK(tensor.scalar_type() == like.scalar_type() && tensor.numel() == like.numel(), "slip ", call,
                ": a tensor of ", tensor.numel(), " elements of type ", tensor.scalar_type(), "; expected ",
                like.numel(), " of type ", like.scalar_type());
  }
}

void Staged::copy_back() const {
  const at::NoGradGuard no_grad;
  std::int64_t begin = 0;
  const at::Tensor flat = memory.view({-1});
  for (const at::Tensor& result : results) {
    result.copy_(flat.narrow(0, begin, result.numel()).view(result.sizes()));
    begin += result.numel();
  }
}

Staged stage(const at::Tensor& tensor, Access access) {
  if (tensor.is_contiguous()) return {tensor};
  if (access != Access::kRead) at::assert_no_internal_overlap(tensor);  // expand(): the copy of the result would fail
  const at::NoGradGuard no_grad;
  at::Tensor memory = access == Access::kWrite ? at::empty(tensor.sizes(), tensor.options()) : tensor.contiguous();
  if (access == Access::kRead) return {std::move(memory)};
  return {std::move(memory), {tensor}};
}

Staged stage(const Tensors& tensors, Access access) {
  if (tensors.size() == 1) return stage(tensors.front(), access);
  const at::NoGradGuard no_grad;
  if (are_adjacent(tensors)) return {join(tensors)};
  Tensors flat;
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) {
    elements += tensor.numel();
    if (access != Access::kRead) at::assert_no_internal_overlap(tensor);
    if (access != Access::kWrite) flat.push_back(tensor.reshape({-1}));
  }
  at::Tensor memory = access == Access::kWrite ? at::empty({elements}, tensors.front().options()) : at::cat(flat);
  if (access == Access::kRead) return {std::move(memory)};
  return {std::move(memory), tensors};
}

}  // namespace slip::distributed
