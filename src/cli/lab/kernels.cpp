// The kernels of the labs. Scalar 0 is always the pace.
#include "cli/lab/bench.hpp"
#include "cli/lab/cuda_kernels.hpp"

namespace slip::cli {
namespace {

void vector_add(const Args& args) {
  const Pace pace(args);
  const auto a = args.in<float>(0), b = args.in<float>(1);
  const auto out = args.out<float>(0);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = a[i] + b[i];
}

void saxpy(const Args& args) {
  const Pace pace(args);
  const auto x = args.in<float>(0), y = args.in<float>(1);
  const auto out = args.out<float>(0);
  const auto factor = args.scalar<float>(1);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = factor * x[i] + y[i];
}

void scale(const Args& args) {
  const Pace pace(args);
  const auto in = args.in<float>(0);
  const auto out = args.out<float>(0);
  const auto factor = args.scalar<float>(1), more = args.scalar<float>(2);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = factor * in[i] + more;
}

void busy(const Args& args) { const Pace pace(args); }

}  // namespace

const Kernel kVectorAdd{"vector_add", vector_add, cuda::vector_add};
const Kernel kSaxpy{"saxpy", saxpy, cuda::saxpy};
const Kernel kScale{"scale", scale, cuda::scale};
const Kernel kBusy{"busy", busy, cuda::busy};

}  // namespace slip::cli
