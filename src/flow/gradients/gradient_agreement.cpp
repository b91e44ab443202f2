#include "flow/gradients/gradient_agreement.hpp"

#include <algorithm>

#include "flow/gradients/bucket_plan.hpp"

namespace slip {

GradientAgreement::GradientAgreement(Communicator& comm, const Device& device, std::size_t parameters, Here here)
    : comm_(comm),
      arrivals_(device.alloc(parameters * sizeof(Picos), MemoryKind::kPinned, "arrival of gradients", here)),
      words_(device.alloc((1 + 2 * (parameters + kMaxSlices)) * sizeof(std::uint64_t), MemoryKind::kPinned,
                          "plan of gradients", here)) {}

void GradientAgreement::put_arrivals(std::span<const Picos> own, StreamRef stream, Here here) {
  std::copy(own.begin(), own.end(), arrivals_.host_write<Picos>(here).begin());
  comm_.all_reduce(arrivals_, arrivals_, DataType::kI64, ReduceOp::kMax, stream, here);
  stream.record(arrivals_there_, here);
}

std::span<const Picos> GradientAgreement::arrivals(Here here) {
  arrivals_there_.sync(here);
  return arrivals_.host_read<Picos>(here).span();
}

void GradientAgreement::put_plan(const BucketPlan* plan, StreamRef stream, Here here) {
  {
    const HostView<std::uint64_t> words = words_.host_write<std::uint64_t>(here);
    std::fill(words.begin(), words.end(), 0);
    words[0] = plan ? plan->buckets.size() : 0;
    for (std::size_t i = 0; i < words[0]; ++i) {
      words[1 + 2 * i] = plan->buckets[i].first;
      words[2 + 2 * i] = plan->buckets[i].bytes;
    }
  }
  comm_.broadcast(words_, words_, 0, stream, here);
  stream.record(plan_there_, here);
}

bool GradientAgreement::take_plan(BucketPlan& into, Here here) {
  plan_there_.sync(here);
  const HostView<const std::uint64_t> words = words_.host_read<std::uint64_t>(here);
  if (words[0] == 0) return false;
  into.buckets.clear();
  for (std::size_t i = 0; i < words[0]; ++i) into.buckets.push_back({words[1 + 2 * i], words[2 + 2 * i]});
  return true;
}

}  // namespace slip
