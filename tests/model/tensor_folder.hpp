// A temporary folder for each test, and functions that write safetensors files of any kind into it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "model/safetensors.hpp"

namespace slip::test {

class TensorFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::temp_directory_path() / ("slip-tensors-" + std::to_string(::getpid()) + "-" +
                                                       testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  void write_raw(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  static std::string file_of(const std::string& json, std::size_t data_bytes) {
    std::string result;
    for (std::size_t i = 0; i < 8; ++i) result += static_cast<char>(json.size() >> (8 * i) & 0xff);
    return result + json + std::string(data_bytes, 'x');
  }
  // The error of opening a file with this header and `data_bytes` bytes of data.
  std::string refusal(const std::string& json, std::size_t data_bytes) const {
    write_raw("bad.safetensors", file_of(json, data_bytes));
    return message_of(path("bad.safetensors"));
  }
  static std::string message_of(const std::string& file) {
    try {
      static_cast<void>(TensorFiles::open(file));
    } catch (const Error& error) {
      return error.what();
    }
    return "it was read";
  }

  std::filesystem::path folder;
};

inline std::vector<std::byte> some_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> result(count);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random());
  return result;
}

}  // namespace slip::test
