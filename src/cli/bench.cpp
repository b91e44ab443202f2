// `slip bench`: what of it there is.
#include <CLI/CLI.hpp>

#include "cli/commands.hpp"

namespace slip::cli {

std::function<int()> add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure: a model with less and less memory, or collectives by size");
  bench->require_subcommand(1);
  const std::function<int()> weights = add_weights_bench(*bench), collectives = add_collective_benches(*bench);
  return [bench, weights, collectives] { return bench->got_subcommand("weights") ? weights() : collectives(); };
}

}  // namespace slip::cli
