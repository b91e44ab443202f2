// `slip model stack`: writes random models for trying out weight streaming.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/commands.hpp"
#include "cli/text.hpp"
#include "model/folder.hpp"
#include "model/stack.hpp"

namespace slip::cli {
namespace {

struct ModelOptions {
  model::StackOptions stack;
  std::string type = "f32", folder;
  std::size_t shards = 1;
};

int make_stack(const ModelOptions& wanted) {
  model::StackOptions options = wanted.stack;
  options.type = wanted.type == "bf16" ? DataType::kBF16 : DataType::kF32;
  const Graph graph = model::stack_graph(options, {});
  const model::FillWeight fill = [&](Value weight, std::uint64_t offset, std::span<std::byte> into) {
    model::fill_stack_weight(graph, options, weight, offset, into);
  };
  model::write_model(graph, wanted.folder, fill, wanted.shards, {});
  const TensorFiles written = TensorFiles::open(wanted.folder, {});
  fmt::print("{}: {} blocks, {} ops, {} weights of {} in {}\n", wanted.folder, options.blocks, graph.ops().size(),
             written.tensors().size(), base::format_bytes(written.bytes()), counted(written.paths().size(), "file"));
  return kSuccess;
}

}  // namespace

std::function<int()> add_model(CLI::App& app) {
  auto wanted = std::make_shared<ModelOptions>();
  CLI::App* model = app.add_subcommand("model", "Write a model with random weights: slip model stack");
  model->require_subcommand(1);
  CLI::App* stack = model->add_subcommand(
      "stack", "Write a folder with graph.json and random weights: a stack of decoder-like blocks");
  stack->footer(
      "\nA block: rms_norm; linears q, k, v, their sum, linear o, residual add; rms_norm; linears gate and up,\n"
      "silu(gate) * up, linear down, residual add. The sum replaces attention, which has no weights.");
  stack->option_defaults()->always_capture_default();
  const auto size = CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 24);
  stack->add_option("--blocks", wanted->stack.blocks, "Number of blocks")->check(size);
  stack->add_option("--hidden", wanted->stack.hidden, "Elements of a token")->check(size);
  stack->add_option("--intermediate", wanted->stack.intermediate, "Rows of gate and up")->check(size);
  stack->add_option("--tokens", wanted->stack.tokens, "Tokens per step")->check(size);
  stack->add_option("--type", wanted->type, "Type of all values: f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
  stack->add_option("--seed", wanted->stack.seed, "Seed of the weights");
  stack->add_flag("--uneven", wanted->stack.uneven, "Every second block has 4 times the intermediate size");
  stack->add_option("--shards", wanted->shards, "Number of weight files; several get an index")
      ->check(CLI::Range(std::size_t{1}, std::size_t{99999}));
  stack->add_option("-o,--output", wanted->folder, "Folder to write; it must not contain a model")->required();
  return [wanted] { return make_stack(*wanted); };
}

}  // namespace slip::cli
