#include "bars.hpp"
namespace slip::bench {
void add_link_bars(Harness&) {}
bool is_link_rank(int, char**) { return false; }
int run_link_rank(int, char**) { return 0; }
}  // namespace slip::bench
