// Topology files for ranks of a test.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "slip/communicator.hpp"

namespace slip::test {

inline std::string data_file(const std::string& name) { return SLIP_SOURCE_DIR "/tests/topo/data/" + name; }

// A temporary folder, removed with the object.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / fmt::format("slip-places-{}", std::random_device{}())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
    return path_ / name;
  }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Ranks of `hosts` hosts by name, each of which has `each`.
inline std::vector<CommunicatorOptions> options_of(int hosts, int each, const std::string& file) {
  std::vector<CommunicatorOptions> result(static_cast<std::size_t>(hosts * each));
  for (std::size_t rank = 0; rank < result.size(); ++rank) {
    result[rank].topology = file;
    if (hosts > 1) result[rank].host = fmt::format("host {}", rank / static_cast<std::size_t>(each));
    result[rank].init_timeout = std::chrono::seconds(20);
    result[rank].timeout = result[rank].silence = std::chrono::seconds(30);
  }
  return result;
}

}  // namespace slip::test
