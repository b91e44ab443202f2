// The ops that work row by row, on the cpu. A task is a run of whole rows, or of elements if the op treats each element
// alone. So no result depends on the thread that computes it.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/team.hpp"
#include "model/cpu/types.hpp"
#include "model/kernels.hpp"

namespace slip::model::cpu {
namespace {

// Elements in one task. Such a task takes some microseconds, so the cost of claiming it is negligible.
constexpr std::size_t kElements = 16384;

// Calls function(x, ...) for each element, with that element of the inputs kInput.
template <std::size_t... kInput, class Function>
void map(const Args& args, Function function) {
  const model::RowSizes sizes = model::RowSizes::of(args);
  with_type(sizes.type, [&]<class T>(T) {
    const std::array x = {args.in<T>(kInput).data()...};
    T* y = args.out<T>(0).data();
    base::for_each_run(sizes.rows * sizes.columns, kElements, [=](std::size_t from, std::size_t to) {
      for (std::size_t i = from; i < to; ++i) y[i] = base::from_float<T>(function(base::to_float(x[kInput][i])...));
    });
  });
}

// Calls function(x, y, columns) for each row.
template <class T, class Function>
void map_rows(const Args& args, const model::RowSizes& sizes, Function function) {
  const T* x = args.in<T>(0).data();
  T* y = args.out<T>(0).data();
  const std::size_t columns = sizes.columns;
  base::for_each_run(sizes.rows, std::max<std::size_t>(kElements / columns, 1), [=](std::size_t from, std::size_t to) {
    for (std::size_t row = from; row < to; ++row) function(x + row * columns, y + row * columns, columns);
  });
}

// The sum of term(i), as eight partial sums: the compiler can vectorise it, and long rows lose few digits.
template <class Term>
float sum_of(std::size_t count, Term term) {
  constexpr std::size_t kStrands = 8;
  float strands[kStrands] = {};
  std::size_t i = 0;
  for (; i + kStrands <= count; i += kStrands) {
    for (std::size_t lane = 0; lane < kStrands; ++lane) strands[lane] += term(i + lane);
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) strands[lane] += term(i);
  float sum = 0;
  for (const float strand : strands) sum += strand;
  return sum;
}

}  // namespace

void add(const Args& args) {
  map<0, 1>(args, [](float a, float b) { return a + b; });
}

void multiply(const Args& args) {
  map<0, 1>(args, [](float a, float b) { return a * b; });
}

void relu(const Args& args) {
  map<0>(args, [](float x) { return x < 0 ? 0.0F : x; });  // a NaN stays a NaN
}

void gelu(const Args& args) {
  // erfc, since 1 + erf loses all digits for large negative x. The limit of -inf * 0 is 0.
  map<0>(args, [](float x) {
    if (x == -INFINITY) return 0.0F;
    return 0.5F * x *
           (x < 0 ? std::erfc(-x * static_cast<float>(M_SQRT1_2)) : 1 + std::erf(x * static_cast<float>(M_SQRT1_2)));
  });
}

void silu(const Args& args) {
  // Avoids exp(-x) for negative x: it overflows and gives 0 where the result is still a small number.
  map<0>(args, [](float x) {
    if (x == -INFINITY) return 0.0F;
    const float e = std::exp(x < 0 ? x : -x);
    return x < 0 ? x * e / (1 + e) : x / (1 + e);
  });
}

void bias(const Args& args) {
  const model::RowSizes sizes = model::RowSizes::of(args);
  with_type(sizes.type, [&]<class T>(T) {
    map_rows<T>(args, sizes, [b = args.in<T>(1).data()](const T* x, T* y, std::size_t columns) {
      for (std::size_t i = 0; i < columns; ++i) y[i] = base::from_float<T>(base::to_float(x[i]) + base::to_float(b[i]));
    });
  });
}

void rms_norm(const Args& args) {
  const model::RowSizes sizes = model::RowSizes::of(args);
  const auto epsilon = static_cast<float>(sizes.epsilon);
  with_type(sizes.type, [&]<class T>(T) {
    map_rows<T>(args, sizes, [epsilon, w = args.in<T>(1).data()](const T* x, T* y, std::size_t columns) {
      const float squares = sum_of(columns, [x](std::size_t i) { return base::to_float(x[i]) * base::to_float(x[i]); });
      const float scale = 1 / std::sqrt(squares / static_cast<float>(columns) + epsilon);
      for (std::size_t i = 0; i < columns; ++i)
        y[i] = base::from_float<T>(base::to_float(x[i]) * scale * base::to_float(w[i]));
    });
  });
}

void layer_norm(const Args& args) {
  const model::RowSizes sizes = model::RowSizes::of(args);
  const auto epsilon = static_cast<float>(sizes.epsilon);
  with_type(sizes.type, [&]<class T>(T) {
    const T* w = args.in<T>(1).data();
    const T* b = args.in<T>(2).data();
    map_rows<T>(args, sizes, [=](const T* x, T* y, std::size_t columns) {
      const float count = static_cast<float>(columns);
      const float mean = sum_of(columns, [x](std::size_t i) { return base::to_float(x[i]); }) / count;
      // Squares of x - mean: with a large mean, the mean of squares minus the square of the mean would have no digits.
      const float squares = sum_of(columns, [x, mean](std::size_t i) {
        const float off = base::to_float(x[i]) - mean;
        return off * off;
      });
      const float scale = 1 / std::sqrt(squares / count + epsilon);
      for (std::size_t i = 0; i < columns; ++i)
        y[i] = base::from_float<T>((base::to_float(x[i]) - mean) * scale * base::to_float(w[i]) + base::to_float(b[i]));
    });
  });
}

}  // namespace slip::model::cpu
