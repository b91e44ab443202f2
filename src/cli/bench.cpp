// `slip bench`: what of it there is.
#include <CLI/CLI.hpp>

#include "cli/commands.hpp"

namespace slip::cli {

std::function<int()> add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure: a model with less and less memory, or collectives by size");
  bench->require_subcommand(1);
  bench->footer(
      "\nCollectives and sendrecv start ranks on this host, or are the ranks that a launcher started:\n"
      "  slip bench all_reduce -n 4 -b 8 -e 256M -f 4          by size, in the columns of nccl-tests\n"
      "  slip bench sendrecv -n 2 --transport net              over TCP, though memory could be shared\n"
      "  slip bench all_reduce --algorithm ring --html r.html  one algorithm, as a page with plots\n"
      "  slip launch -n 8 slip bench all_gather                ranks that are started elsewhere\n"
      "Each has more to say: slip bench NAME --help.");
  const std::function<int()> weights = add_weights_bench(*bench), collectives = add_collective_benches(*bench);
  return [bench, weights, collectives] { return bench->got_subcommand("weights") ? weights() : collectives(); };
}

}  // namespace slip::cli
