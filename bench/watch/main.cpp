// `make bench ONLY=watch`: the cost of the race checker, the speed of the trace commands, and the timeline page.
#include "bars.hpp"
#include "page.hpp"

int main(int argc, char** argv) {
  slip::bench::Harness harness;
  slip::bench::add_checker_bars(harness);
  slip::bench::add_command_bars(harness);
  slip::bench::add_page_bars(harness);
  return harness.run(argc, argv);
}
