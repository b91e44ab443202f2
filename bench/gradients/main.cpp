// `make bench ONLY=gradients`: what plans for gradients expose on simulated machines, what the scheduler costs, steps
// of two ranks over a slow link, and steps of two ranks on one GPU.
#include "models.hpp"

int main(int argc, char** argv) {
  if (slip::bench::is_link_rank(argc, argv)) return slip::bench::run_link_rank(argc, argv);
  slip::bench::Harness harness;
  slip::bench::add_sim_bars(harness);
  slip::bench::add_host_bars(harness);
  slip::bench::add_link_bars(harness);
  slip::bench::add_gpu_bars(harness);
  return harness.run(argc, argv);
}
