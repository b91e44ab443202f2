// The collectives of SlipGroup: checks, staging, and the calls of the communicator.
#include "group.hpp"

namespace slip::distributed {
namespace {

using c10d::OpType;

// One block of a tensor for each rank: `splits` rows of its first dimension, or equal parts if `splits` is empty.
std::vector<Range> blocks(Range all, const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int size) {
  const char* const call = "all_to_all";
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  std::vector<std::int64_t> counts = splits;
  if (counts.empty()) {
    TORCH_CHECK(rows % size == 0, "slip ", call, ": a tensor of ", rows, " rows cannot be split equally among ", size,
                " ranks");
    counts.assign(static_cast<std::size_t>(size), rows / size);
  }
  TORCH_CHECK(static_cast<int>(counts.size()) == size, "slip ", call, ": ", counts.size(), " split sizes; expected ",
              size, ", one for each rank");
  const std::size_t row_bytes = rows == 0 ? 0 : all.bytes / static_cast<std::size_t>(rows);
  std::vector<Range> result;
  std::int64_t begin = 0;
  for (const std::int64_t count : counts) {
    TORCH_CHECK(count >= 0 && count <= rows - begin, "slip ", call, ": the split sizes exceed the ", rows,
                " rows of the tensor");
    result.push_back(
        all.slice(static_cast<std::size_t>(begin) * row_bytes, static_cast<std::size_t>(count) * row_bytes));
    begin += count;
  }
  TORCH_CHECK(begin == rows, "slip ", call, ": the split sizes have the sum ", begin, "; the tensor has ", rows,
              " rows");
  return result;
}

void require_same_type(const at::Tensor& a, const at::Tensor& b, const char* call) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "slip ", call, ": tensors of the types ", a.scalar_type(), " and ",
              b.scalar_type(), "; they must have one type");
}

// Throws unless both have the same type and `whole` has `size` times as many elements as `part`.
void require_parts(const at::Tensor& whole, const at::Tensor& part, int size, const char* call) {
  require_host_tensor(whole, call);
  require_host_tensor(part, call);
  require_same_type(whole, part, call);
  TORCH_CHECK(whole.numel() == part.numel() * size, "slip ", call, ": tensors of ", whole.numel(), " and ",
              part.numel(), " elements; expected a ratio of ", size, ", the number of ranks");
}

void require_pairs(std::size_t outputs, std::size_t inputs, const char* call) {
  TORCH_CHECK(outputs == inputs && outputs > 0, "slip ", call, ": ", inputs, " inputs and ", outputs, " outputs");
}

}  // namespace

int SlipGroup::require_root(std::int64_t root, const char* call) const {
  TORCH_CHECK(root >= 0 && root < getSize(), "slip ", call, ": root ", root, " is not a rank of the group, which has ",
              getSize(), " ranks");
  return static_cast<int>(root);
}

WorkPtr SlipGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = require_one(tensors, "broadcast");
  const int root = require_root(options.rootRank, "broadcast");
  const Staged memory = stage(tensor, root == getRank() ? Access::kRead : Access::kWrite);
  return start({OpType::BROADCAST, "slip:broadcast", tensors, tensors, {}, options.timeout, {}}, {memory},
               [&](StreamRef stream) { comm_->broadcast(range(memory), range(memory), root, stream, {}); });
}

WorkPtr SlipGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = require_one(tensors, "all_reduce");
  const DataType type = reduced_type(tensor, "all_reduce");
  const ReduceOp op = reduce_op(options.reduceOp, "all_reduce");
  const Staged memory = stage(tensor, Access::kReadWrite);
  return start({OpType::ALLREDUCE, "slip:all_reduce", tensors, tensors, {}, options.timeout, {}}, {memory},
               [&](StreamRef stream) { comm_->all_reduce(range(memory), range(memory), type, op, stream, {}); });
}

WorkPtr SlipGroup::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const ReduceOp op = reduce_op(options.reduceOp, "all_reduce");
  std::vector<Staged> staged;
  std::vector<DataType> types;
  for (const at::Tensor& tensor : tensors) {
    require_host_tensor(tensor, "all_reduce");
    types.push_back(reduced_type(tensor, "all_reduce"));
  }
  for (const at::Tensor& tensor : tensors) staged.push_back(stage(tensor, Access::kReadWrite));
  return start({OpType::ALLREDUCE_COALESCED, "slip:all_reduce_coalesced", tensors, tensors, {}, options.timeout, {}},
               staged, [&](StreamRef stream) {
                 for (std::size_t i = 0; i < staged.size(); ++i)
                   comm_->all_reduce(range(staged[i]), range(staged[i]), types[i], op, stream, {});
               });
}

WorkPtr SlipGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = require_one(tensors, "reduce");
  const int root = require_root(options.rootRank, "reduce");
  const DataType type = reduced_type(tensor, "reduce");
  const ReduceOp op = reduce_op(options.reduceOp, "reduce");
  const Staged memory = stage(tensor, root == getRank() ? Access::kReadWrite : Access::kRead);
  return start({OpType::REDUCE, "slip:reduce", tensors, tensors, {}, options.timeout, {}}, {memory},
               [&](StreamRef stream) { comm_->reduce(range(memory), range(memory), type, op, root, stream, {}); });
}

WorkPtr SlipGroup::gather_parts(std::vector<Staged> outputs, std::vector<Staged> inputs, SlipWork::Call call) {
  std::vector<Staged> staged = outputs;
  staged.insert(staged.end(), inputs.begin(), inputs.end());
  return start(std::move(call), std::move(staged), [&](StreamRef stream) {
    for (std::size_t i = 0; i < inputs.size(); ++i) comm_->all_gather(range(outputs[i]), range(inputs[i]), stream, {});
  });
}

WorkPtr SlipGroup::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  require_one(inputs, "all_gather");
  require_one(outputs, "all_gather");
  return allgather_coalesced(outputs, inputs, options);
}

WorkPtr SlipGroup::allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  require_pairs(outputs.size(), inputs.size(), "all_gather");
  std::vector<Staged> from, to;
  Tensors results;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    require_host_tensor(inputs[i], "all_gather");
    require_alike(outputs[i], inputs[i], getSize(), "all_gather");
    from.push_back(stage(inputs[i], Access::kRead));
    to.push_back(stage(outputs[i], Access::kWrite));
    results.insert(results.end(), outputs[i].begin(), outputs[i].end());
  }
  return gather_parts(std::move(to), std::move(from),
                      {OpType::ALLGATHER, "slip:all_gather", inputs, std::move(results), {}, options.timeout, {}});
}

WorkPtr SlipGroup::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  require_parts(output, input, getSize(), "all_gather_into_tensor");
  return gather_parts(
      {stage(output, Access::kWrite)}, {stage(input, Access::kRead)},
      {OpType::_ALLGATHER_BASE, "slip:all_gather_into_tensor", {input}, {output}, {}, options.timeout, {}});
}

WorkPtr SlipGroup::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const at::Tensor& input = require_one(inputs, "gather");
  const int root = require_root(options.rootRank, "gather");
  std::vector<Staged> staged{stage(input, Access::kRead)};
  Tensors results;
  if (root == getRank()) {
    results = require_one(outputs, "gather");
    require_alike(results, input, getSize(), "gather");
    staged.push_back(stage(results, Access::kWrite));
  } else {
    TORCH_CHECK(outputs.empty(), "slip gather: only the root, rank ", root, ", passes outputs");
  }
  return start({OpType::GATHER, "slip:gather", inputs, std::move(results), {}, options.timeout, {}}, staged,
               [&](StreamRef stream) {
                 comm_->gather(staged.size() > 1 ? range(staged[1]) : Range{}, range(staged[0]), root, stream, {});
               });
}

WorkPtr SlipGroup::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  const at::Tensor& output = require_one(outputs, "scatter");
  const int root = require_root(options.rootRank, "scatter");
  std::vector<Staged> staged{stage(output, Access::kWrite)};
  Tensors parts;
  if (root == getRank()) {
    parts = require_one(inputs, "scatter");
    require_alike(parts, output, getSize(), "scatter");
    staged.push_back(stage(parts, Access::kRead));
  } else {
    TORCH_CHECK(inputs.empty(), "slip scatter: only the root, rank ", root, ", passes inputs");
  }
  return start({OpType::SCATTER, "slip:scatter", std::move(parts), outputs, {}, options.timeout, {}}, staged,
               [&](StreamRef stream) {
                 comm_->scatter(range(staged[0]), staged.size() > 1 ? range(staged[1]) : Range{}, root, stream, {});
               });
}

WorkPtr SlipGroup::reduce_parts(std::vector<Staged> outputs, std::vector<Staged> inputs, const c10d::ReduceOp& op,
                                SlipWork::Call call) {
  const ReduceOp how = reduce_op(op, "reduce_scatter");
  std::vector<DataType> types;
  for (const Staged& output : outputs) types.push_back(reduced_type(output.memory, "reduce_scatter"));
  std::vector<Staged> staged = outputs;
  staged.insert(staged.end(), inputs.begin(), inputs.end());
  return start(std::move(call), std::move(staged), [&](StreamRef stream) {
    for (std::size_t i = 0; i < outputs.size(); ++i)
      comm_->reduce_scatter(range(outputs[i]), range(inputs[i]), types[i], how, stream, {});
  });
}

WorkPtr SlipGroup::reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = require_one(outputs, "reduce_scatter");
  const Tensors& parts = require_one(inputs, "reduce_scatter");
  require_alike(parts, output, getSize(), "reduce_scatter");
  return reduce_parts({stage(output, Access::kWrite)}, {stage(parts, Access::kRead)}, options.reduceOp,
                      {OpType::REDUCE_SCATTER, "slip:reduce_scatter", parts, outputs, {}, options.timeout, {}});
}

WorkPtr SlipGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                        const c10d::ReduceScatterOptions& options) {
  require_parts(input, output, getSize(), "reduce_scatter_tensor");
  return reduce_parts(
      {stage(output, Access::kWrite)}, {stage(input, Access::kRead)}, options.reduceOp,
      {OpType::_REDUCE_SCATTER_BASE, "slip:reduce_scatter_tensor", {input}, {output}, {}, options.timeout, {}});
}

WorkPtr SlipGroup::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                                 std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  require_host_tensor(output, "all_to_all");
  require_host_tensor(input, "all_to_all");
  require_same_type(output, input, "all_to_all");
  const Staged to = stage(output, Access::kWrite), from = stage(input, Access::kRead);
  const std::vector<Range> received = blocks(range(to), output, output_splits, getSize());
  const std::vector<Range> sent = blocks(range(from), input, input_splits, getSize());
  const bool equal = output_splits.empty() && input_splits.empty();
  return start({OpType::ALLTOALL_BASE, "slip:all_to_all_single", {input}, {output}, {}, options.timeout, {}},
               {to, from}, [&](StreamRef stream) {
                 if (equal) comm_->all_to_all(range(to), range(from), stream, {});
                 else comm_->all_to_all_v(received, sent, stream, {});
               });
}

WorkPtr SlipGroup::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  TORCH_CHECK(static_cast<int>(outputs.size()) == getSize() && static_cast<int>(inputs.size()) == getSize(),
              "slip all_to_all: ", inputs.size(), " inputs and ", outputs.size(), " outputs; expected ", getSize(),
              " of each, one for each rank");
  std::vector<Staged> staged;
  std::vector<Range> received, sent;
  for (const at::Tensor& output : outputs) {
    require_host_tensor(output, "all_to_all");
    received.push_back(range(staged.emplace_back(stage(output, Access::kWrite))));
  }
  for (const at::Tensor& input : inputs) {
    require_host_tensor(input, "all_to_all");
    require_same_type(input, outputs.front(), "all_to_all");
    sent.push_back(range(staged.emplace_back(stage(input, Access::kRead))));
  }
  return start({OpType::ALLTOALL, "slip:all_to_all", inputs, outputs, {}, options.timeout, {}}, std::move(staged),
               [&](StreamRef stream) { comm_->all_to_all_v(received, sent, stream, {}); });
}

WorkPtr SlipGroup::barrier(const c10d::BarrierOptions& options) {
  return start({OpType::BARRIER, "slip:barrier", {}, {}, {}, options.timeout, {}}, {},
               [&](StreamRef stream) { comm_->barrier(stream, {}); });
}

#if TORCH_VERSION_MAJOR >= 2
WorkPtr SlipGroup::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                   const c10d::AllgatherOptions& options) {
  require_pairs(outputs.size(), inputs.size(), "all_gather_into_tensor");
  std::vector<Staged> to, from;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    require_parts(outputs[i], inputs[i], getSize(), "all_gather_into_tensor");
    to.push_back(stage(outputs[i], Access::kWrite));
    from.push_back(stage(inputs[i], Access::kRead));
  }
  return gather_parts(std::move(to), std::move(from),
                      {OpType::COALESCED, "slip:all_gather_into_tensor", inputs, outputs, {}, options.timeout, {}});
}

WorkPtr SlipGroup::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                   const c10d::ReduceScatterOptions& options) {
  require_pairs(outputs.size(), inputs.size(), "reduce_scatter_tensor");
  std::vector<Staged> to, from;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    require_parts(inputs[i], outputs[i], getSize(), "reduce_scatter_tensor");
    to.push_back(stage(outputs[i], Access::kWrite));
    from.push_back(stage(inputs[i], Access::kRead));
  }
  return reduce_parts(std::move(to), std::move(from), options.reduceOp,
                      {OpType::COALESCED, "slip:reduce_scatter_tensor", inputs, outputs, {}, options.timeout, {}});
}
#endif

}  // namespace slip::distributed
