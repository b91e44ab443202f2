// `make bench ONLY=weights`: weight streaming compared with resident execution, raw copies and other libraries.
#include <cstdlib>
#include <string>
#include <string_view>

#include "case.hpp"

namespace {

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--profile") return slip::bench::profile_gpu(argv[2]);
  if (argc == 4 && std::string_view(argv[1]) == "--cold") return slip::bench::run_cold(argv[2], std::stoull(argv[3]));
  slip::bench::Harness harness;
  slip::bench::add_cpu_bars(harness);
  slip::bench::add_gpu_bars(harness, from_environment("SLIP_BENCH_COSTS"), from_environment("SLIP_BENCH_TORCH"));
  slip::bench::add_compressed_bars(harness, from_environment("SLIP_BENCH_COSTS"));
  return harness.run(argc, argv);
}
