// `make bench ONLY=watch`: what watching costs, how fast traces are read, and the timeline page.
#include "bars.hpp"
#include "page.hpp"

int main(int argc, char** argv) {
  slip::bench::Harness harness;
  slip::bench::add_checker_bars(harness);
  slip::bench::add_command_bars(harness);
  slip::bench::add_page_bars(harness);
  return harness.run(argc, argv);
}
