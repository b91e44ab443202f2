// `make bench ONLY=codec`: how small weights become, and how fast they are encoded and decoded.
#include "bars.hpp"

int main(int argc, char** argv) {
  slip::bench::Harness harness;
  slip::bench::add_cpu_bars(harness);
  slip::bench::add_gpu_bars(harness);
  return harness.run(argc, argv);
}
