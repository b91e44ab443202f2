// Safetensors files: reading gives what was written, and hostile files are refused.
#include <gtest/gtest.h>

#include "model/tensor_folder.hpp"

namespace slip::test_tensors {
namespace {

using test::some_bytes;

class Tensors : public test::TensorFolder {};

TEST_F(Tensors, WhatIsWrittenIsRead) {
  const auto a = some_bytes(2 * 3 * 2, 1), b = some_bytes(5, 2), c = some_bytes(8, 3);
  const std::vector<TensorData> tensors = {{"half \"quoted\"", DataType::kBF16, {2, 3}, a},
                                           {"bytes", DataType::kU8, {5}, b},
                                           {"scalar", DataType::kF64, {}, c},
                                           {"empty", DataType::kF32, {0, 7}, {}}};
  write_tensors(path("t.safetensors"), tensors, {{"format", "pt"}});
  const TensorFiles files = TensorFiles::open(path("t.safetensors"));
  ASSERT_EQ(files.tensors().size(), 4U);
  EXPECT_EQ(files.bytes(), a.size() + b.size() + c.size());
  EXPECT_EQ(files.metadata(), (std::vector<std::pair<std::string, std::string>>{{"format", "pt"}}));
  for (const TensorData& tensor : tensors) {
    const TensorInfo& info = files.at(tensor.name);
    EXPECT_EQ(info.type, tensor.type);
    EXPECT_EQ(info.shape, tensor.shape);
    EXPECT_EQ(info.offset % bytes_of(info.type), 0U) << "aligned to its type";
    std::vector<std::byte> read(info.bytes);
    files.read(info, read.data());
    EXPECT_TRUE(std::equal(read.begin(), read.end(), tensor.bytes.begin(), tensor.bytes.end())) << tensor.name;
  }
  EXPECT_EQ(files.find("nobody"), nullptr);
  EXPECT_THROW(static_cast<void>(files.at("nobody")), Error);
}

TEST_F(Tensors, EveryTypeIsCarriedThrough) {
  std::vector<std::vector<std::byte>> data;
  std::vector<TensorData> tensors;
  for (int i = 0; i <= static_cast<int>(DataType::kF64); ++i) {
    const auto type = static_cast<DataType>(i);
    data.push_back(some_bytes(3 * bytes_of(type), static_cast<unsigned>(i)));
    EXPECT_EQ(data_type_of(data_type_name(type)), type);
  }
  for (int i = 0; i <= static_cast<int>(DataType::kF64); ++i)
    tensors.push_back(
        {data_type_name(static_cast<DataType>(i)), static_cast<DataType>(i), {3}, data[static_cast<std::size_t>(i)]});
  write_tensors(path("t.safetensors"), tensors);
  const TensorFiles files = TensorFiles::open(path("t.safetensors"));
  for (const TensorData& tensor : tensors) {
    std::vector<std::byte> read(tensor.bytes.size());
    files.read(files.at(tensor.name), read.data());
    EXPECT_TRUE(std::equal(read.begin(), read.end(), tensor.bytes.begin())) << tensor.name;
  }
}

TEST_F(Tensors, BadHeadersAreRefusedWithTheNumbers) {
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& place) {
    return "{\"w\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + place + "}}";
  };
  EXPECT_EQ(refusal(tensor("F32", "[2]", "[0,8]"), 8), "it was read");
  const std::pair<std::string, const char*> cases[] = {
      {tensor("F32", "[2]", "[0,12]"), "'w' lies at 0 to 12, and the file has 8 bytes"},
      {tensor("F32", "[2]", "[8,0]"), "'w' lies at 8 to 0"},
      {tensor("F32", "[3]", "[0,8]"), "takes 12 bytes, and 8 are set aside"},
      {tensor("F32", "[4294967296,4294967296]", "[0,8]"), "larger than 2^64"},
      {tensor("F32", "[18446744073709551616]", "[0,8]"), "parse error"},
      {tensor("F33", "[2]", "[0,8]"), "of type 'F33'"},
      {tensor("F32", "[1]", "[4,8]"), "'w' begins 4 bytes behind the end of the header"},
      {tensor("F32", "[1]", "[0,4]"), "the last 4 bytes belong to no tensor"},
      {tensor("F32", "[-2]", "[0,8]"), "parse error"},
      {tensor("F32", "[2]", "[0,8,9]"), "two numbers"},
      {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", "lacks its dtype, shape or data_offsets"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]},"
       "\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[3,8]}}",
       "'b' begins 2 bytes before the end of 'a'"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
       "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
       "'a' is there twice"},
      {"[]", "parse error"},
      {"{\"w\":", "parse error"},
      {"", "parse error"},
  };
  for (const auto& [json, expected] : cases)
    EXPECT_NE(refusal(json, 8).find(expected), std::string::npos) << json << ": " << refusal(json, 8);
}

TEST_F(Tensors, FilesThatAreNoneAreRefused) {
  write_raw("short", "1234");
  EXPECT_NE(message_of(path("short")).find("4 bytes are no safetensors file"), std::string::npos);
  write_raw("huge", std::string(16, '\xff'));
  EXPECT_NE(message_of(path("huge")).find("at most 100000000"), std::string::npos);
  write_raw("cut", file_of(std::string(100, ' '), 0).substr(0, 50));
  EXPECT_NE(message_of(path("cut")).find("cut short"), std::string::npos);
  EXPECT_NE(message_of(path("absent")).find("absent"), std::string::npos);
}

TEST_F(Tensors, ShardsAreOneModel) {
  const auto a = some_bytes(8, 1), b = some_bytes(4, 2);
  write_tensors(path("model-00001-of-00002.safetensors"), std::vector<TensorData>{{"a", DataType::kF32, {2}, a}});
  write_tensors(path("model-00002-of-00002.safetensors"), std::vector<TensorData>{{"b", DataType::kF32, {1}, b}});
  const auto index = [&](const std::string& map) {
    write_raw("model.safetensors.index.json", "{\"metadata\":{\"total_size\":12},\"weight_map\":" + map + "}");
    return message_of(folder.string());
  };
  EXPECT_EQ(index("{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\"}"),
            "it was read");
  const TensorFiles files = TensorFiles::open(folder.string());
  EXPECT_EQ(files.paths().size(), 2U);
  std::vector<std::byte> read(4);
  files.read(files.at("b"), read.data());
  EXPECT_EQ(read, b);
  EXPECT_NE(index("{\"c\":\"model-00001-of-00002.safetensors\"}").find("tensor 'c'"), std::string::npos);
  EXPECT_NE(index("{\"b\":\"model-00001-of-00002.safetensors\",\"a\":\"model-00002-of-00002.safetensors\"}")
                .find("where it is not"),
            std::string::npos);
  EXPECT_NE(index("{\"a\":\"absent.safetensors\"}").find("absent.safetensors"), std::string::npos);
  EXPECT_NE(index("{\"a\":\"../x.safetensors\"}").find("no file's name"), std::string::npos);
}

TEST_F(Tensors, AFileThatChangesIsNoticed) {
  const auto a = some_bytes(4096, 1);
  write_tensors(path("t.safetensors"), std::vector<TensorData>{{"a", DataType::kU8, {4096}, a}});
  const TensorFiles files = TensorFiles::open(path("t.safetensors"));
  std::vector<std::byte> read(4096);
  std::filesystem::resize_file(path("t.safetensors"), 2000);
  EXPECT_THROW(files.read(files.at("a"), read.data()), Error);
}

TEST_F(Tensors, BadTensorsAreNotWritten) {
  const auto a = some_bytes(8, 1);
  const auto write = [&](std::vector<TensorData> tensors) { write_tensors(path("t"), tensors); };
  EXPECT_THROW(write({{"a", DataType::kF32, {3}, a}}), Error);
  EXPECT_THROW(write({{"a", DataType::kF32, {2}, a}, {"a", DataType::kF32, {2}, a}}), Error);
  EXPECT_THROW(write({{"__metadata__", DataType::kF32, {2}, a}}), Error);
  EXPECT_FALSE(std::filesystem::exists(path("t")));
}

}  // namespace
}  // namespace slip::test_tensors
