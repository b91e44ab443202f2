#include "support/times.hpp"

#include "support/cuda_kernels.hpp"

namespace slip::test {
namespace {
void nothing(const Args&) {}
}  // namespace

void busy(StreamRef stream, Picos ms, double width) {
  static const Kernel kBusy{"busy", nothing, cuda::nothing};
  stream.launch(kBusy, {}, {.width = width, .time = ms * kMs});
}

}  // namespace slip::test
