// `make bench ONLY=predict`: predictions compared with published tables, with the plan and with hand calculations, and
// the time that they take.
#include "bars.hpp"

int main(int argc, char** argv) {
  slip::bench::Harness harness;
  slip::bench::add_table_bars(harness);
  slip::bench::add_plan_bars(harness);
  slip::bench::add_scale_bars(harness);
  slip::bench::add_relay_bars(harness);
  return harness.run(argc, argv);
}
