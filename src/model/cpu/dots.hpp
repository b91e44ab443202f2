// Products of a few rows with a few rows by dot products: what a linear is for few tokens, when reading the weight is
// all that counts, and, over tiles, where no BLAS is found.
#pragma once

#include <algorithm>
#include <cstddef>

#include "model/cpu/types.hpp"

namespace slip::cpu {

// A product y = x * w^T of rows that lie apart by these elements.
template <class T>
struct Product {
  const float* x = nullptr;
  const T* w = nullptr;
  T* y = nullptr;
  std::size_t in = 0, y_stride = 0;  // x and w are dense
};

// kRows rows of w with kTokens of x. Each sum is made in the same way whatever the two are: in four strands, which are
// added at the end.
template <std::size_t kRows, std::size_t kTokens, class T>
void dot_block(const Product<T>& product, std::size_t row, std::size_t token) {
  const T* w = product.w + row * product.in;
  const float* x = product.x + token * product.in;
  Floats sums[kRows][kTokens] = {};
  std::size_t i = 0;
  for (; i + 8 <= product.in; i += 8) {
    Eight from[kTokens];
    for (std::size_t t = 0; t < kTokens; ++t) from[t] = load(x + t * product.in + i);
    for (std::size_t r = 0; r < kRows; ++r) {
      const Eight weights = load(w + r * product.in + i);
      for (std::size_t t = 0; t < kTokens; ++t) sums[r][t] += weights.low * from[t].low;
      for (std::size_t t = 0; t < kTokens; ++t) sums[r][t] += weights.high * from[t].high;
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t t = 0; t < kTokens; ++t) {
      const Floats& sum = sums[r][t];
      float result = (sum[0] + sum[1]) + (sum[2] + sum[3]);
      for (std::size_t rest = i; rest < product.in; ++rest)
        result += to_float(w[r * product.in + rest]) * x[t * product.in + rest];
      product.y[(token + t) * product.y_stride + row + r] = from_float<T>(result);
    }
  }
}

// Rows [row, row_end) with kTokens tokens, four rows at a time: enough loads under way to fill the memory's bandwidth.
template <std::size_t kTokens, class T>
void dot_rows(const Product<T>& product, std::size_t row, std::size_t row_end, std::size_t token) {
  for (; row + 4 <= row_end; row += 4) dot_block<4, kTokens>(product, row, token);
  for (; row < row_end; ++row) dot_block<1, kTokens>(product, row, token);
}

// Rows [row, row_end) with tokens [token, token_end).
template <class T>
void dot_tile(const Product<T>& product, std::size_t row, std::size_t row_end, std::size_t token,
              std::size_t token_end) {
  for (; token + 4 <= token_end; token += 4) dot_rows<4>(product, row, row_end, token);
  if (token + 3 == token_end) dot_rows<3>(product, row, row_end, token);
  else if (token + 2 == token_end) dot_rows<2>(product, row, row_end, token);
  else if (token + 1 == token_end) dot_rows<1>(product, row, row_end, token);
}

}  // namespace slip::cpu
