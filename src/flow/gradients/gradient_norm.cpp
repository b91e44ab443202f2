#include "flow/gradients/gradient_norm.hpp"

#include <cmath>

#include "base/fail.hpp"
#include "base/small_floats.hpp"
#include "flow/gradients/cuda_gradients.hpp"

namespace slip::flow {
namespace {

template <class T>
double to_double(T value) {
  if constexpr (std::is_floating_point_v<T>) return static_cast<double>(value);
  else return static_cast<double>(base::to_float(value));
}

// Four independent sums, so that additions do not wait for each other. Their order is fixed, and so are the bits.
template <class T>
double sum_of_squares(std::span<const T> values) {
  double sums[4] = {};
  std::size_t i = 0;
  const auto square = [&](std::size_t at) { return to_double(values[at]) * to_double(values[at]); };
  for (; i + 4 <= values.size(); i += 4) {
    for (std::size_t k = 0; k < 4; ++k) sums[k] += square(i + k);
  }
  for (; i < values.size(); ++i) sums[0] += square(i);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class T>
void square(const Args& args) {
  args.out<double>(0)[0] = sum_of_squares(args.in<T>(0));
}

template <class T>
void scale(const Args& args) {
  const double factor = args.in<double>(0)[0];
  if (factor == 1) return;
  for (T& value : args.out<T>(0)) {
    if constexpr (std::is_floating_point_v<T>) value = static_cast<T>(to_double(value) * factor);
    else value = base::from_float<T>(static_cast<float>(to_double(value) * factor));
  }
}

struct NormKernels {
  Kernel square, scale;
};
template <class T>
NormKernels kernels(decltype(Kernel::cuda) square_on_gpu, decltype(Kernel::cuda) scale_on_gpu) {
  return {{"square of gradients", square<T>, square_on_gpu}, {"clip gradients", scale<T>, scale_on_gpu}};
}
const NormKernels kF32 = kernels<float>(cuda::square_f32, cuda::scale_f32),
                  kF64 = kernels<double>(cuda::square_f64, cuda::scale_f64),
                  kF16 = kernels<base::F16>(cuda::square_f16, cuda::scale_f16),
                  kBf16 = kernels<base::Bf16>(cuda::square_bf16, cuda::scale_bf16);

// Null if the type has no norm.
const NormKernels* kernels_of(DataType type) {
  switch (type) {
    case DataType::kF32: return &kF32;
    case DataType::kF64: return &kF64;
    case DataType::kF16: return &kF16;
    case DataType::kBF16: return &kBf16;
    default: return nullptr;
  }
}

// Scalars: the factor of the sum, and whether the sum is added to the total or replaces it.
const Kernel kTotal{"total of squares",
                    [](const Args& args) {
                      double sum = 0;
                      for (const double square : args.in<double>(0)) sum += square;
                      double& total = args.out<double>(0)[0];
                      sum *= args.scalar<double>(0);
                      total = args.scalar<int>(1) != 0 ? total + sum : sum;
                    },
                    cuda::total};

// out: the norm; the factor. A norm that is NaN scales nothing: the program sees it in norm().
const Kernel kFactor{"norm of gradients",
                     [](const Args& args) {
                       const double norm = std::sqrt(args.in<double>(0)[0]), max_norm = args.scalar<double>(0);
                       args.out<double>(0)[0] = norm;
                       args.out<double>(1)[0] = norm > max_norm ? max_norm / norm : 1;
                     },
                     cuda::factor};

}  // namespace

GradientNorm::GradientNorm(const Device& device, Stream stream, const ParameterList& parameters, Here here)
    : parameters_(parameters), stream_(std::move(stream)) {
  const auto take = [&](std::size_t doubles, MemoryKind kind, const char* name) {
    return device.alloc(doubles * sizeof(double), kind, name, here);
  };
  squares_ = take(parameters.size(), MemoryKind::kDevice, "squares of gradients");
  parts_ = take(cuda::kMaxPartialSums, MemoryKind::kDevice, "parts of a square");
  totals_ = take(2, MemoryKind::kDevice, "total of squares");
  norm_ = take(1, MemoryKind::kPinned, "norm of gradients");
  for (const Parameter& parameter : parameters) {
    if (!kernels_of(parameter.type))
      base::fail(ErrorCode::kInvalidValue, here,
                 "gradients: options.norm is set, and parameter {} is of a type without a norm", parameter.text());
  }
}

void GradientNorm::follow(const GradientStep& step, std::uint32_t first_call, std::uint32_t end_call, Here here) {
  if (first_call == end_call) return;
  // The previous step reads squares_ until scaled_ is reached, so this step must not overwrite them earlier. A captured
  // step has no previous step.
  if (first_call == 0 && !step.stream().capturing()) stream_.wait(scaled_, here);
  stream_.wait(step.done(end_call - 1), here);
  for (std::uint32_t parameter = 0; parameter < parameters_.size(); ++parameter) {
    const std::uint32_t last = step.last_call(parameter);
    if (last < first_call || last >= end_call) continue;
    const Range view = step.view(parameter);
    stream_.launch(kernels_of(parameters_[parameter].type)->square,
                   {.reads = {view}, .writes = {squares_.slice(parameter * sizeof(double), sizeof(double)), parts_}},
                   {.bytes = view.bytes}, here);
  }
}

void GradientNorm::await(const GradientStep& step, StreamRef stream, GradientClock& clock, Here here) {
  stream_.record(summed_, here);
  if (clock.records()) clock.reached(GradientTimes::kAll, static_cast<std::uint32_t>(step.calls() - 1), stream, here);
  stream.wait(summed_, here);
  if (clock.records()) clock.left(stream, here);
}

void GradientNorm::total(Range total, Total how, double share, StreamRef stream, Here here) {
  const int adds = how == Total::kAdd ? 1 : 0;
  if (adds != 0)
    stream.launch(kTotal, {.reads = {squares_, total}, .writes = {total}, .scalars = {share, adds}}, {}, here);
  else stream.launch(kTotal, {.reads = {squares_}, .writes = {total}, .scalars = {share, adds}}, {}, here);
}

void GradientNorm::scale(Range total, double max_norm, GradientStep& step, StreamRef stream, Here here) {
  const Range factor = totals_.slice(0, sizeof(double));
  stream.launch(kFactor, {.reads = {total}, .writes = {norm_, factor}, .scalars = {max_norm}}, {}, here);
  for (std::size_t call = 0; call < step.calls(); ++call) {
    const Range data = step.data(call);
    stream.launch(kernels_of(step.type(call))->scale, {.reads = {factor, data}, .writes = {data}},
                  {.bytes = 2 * data.bytes}, here);
  }
  stream.record(scaled_, here);
  step.set_done(scaled_);
}

}  // namespace slip::flow
