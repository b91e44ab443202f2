// `make bench ONLY=cuda`: the cuda device compared with raw CUDA calls. Without a GPU every bar is skipped, with the
// reason.
#include "bars.hpp"
#include "gpu.hpp"

namespace {

int run(int argc, char** argv) {
  slip::bench::Harness harness;
  slip::bench::add_submit_bars(harness);
  slip::bench::add_plan_bars(harness);
  slip::bench::add_copy_bars(harness);
  slip::bench::add_overlap_bars(harness);
  slip::bench::add_trace_bars(harness);
  return harness.run(argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  const int status = run(argc, argv);
  slip::bench::close_device();
  return status;
}
