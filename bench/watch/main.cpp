// `make bench ONLY=watch`: what watching costs, and how fast traces are read.
#include "bars.hpp"

int main(int argc, char** argv) {
  slip::bench::Harness harness;
  slip::bench::add_checker_bars(harness);
  slip::bench::add_command_bars(harness);
  return harness.run(argc, argv);
}
