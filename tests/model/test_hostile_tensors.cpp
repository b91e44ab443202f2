// Files made to break the reader, and disks that fail the writer: each gives an error with the cause and the position.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "model/tensor_folder.hpp"
#include "support/errors.hpp"

namespace slip::test_hostile_tensors {
namespace {

using test::fails;
using test::some_bytes;

class HostileTensors : public test::TensorFolder {
 protected:
  void expect_refused(const std::string& json, std::size_t data_bytes, const std::string& words) const {
    const std::string message = refusal(json, data_bytes);
    EXPECT_NE(message.find(words), std::string::npos) << json.substr(0, 300) << "\n  " << message.substr(0, 600);
    EXPECT_NE(message.find("bad.safetensors"), std::string::npos) << message.substr(0, 600);
    EXPECT_NE(message.find("parse error"), std::string::npos) << message.substr(0, 600);
  }
  // One tensor 'w' of eight bytes, with some of its fields replaced.
  static std::string tensor(const std::string& dtype, const std::string& shape, const std::string& place) {
    return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + place + "}}";
  }
  static std::string bytes_at(const std::string& name, int begin, int end) {
    return "\"" + name + R"(":{"dtype":"U8","shape":[)" + std::to_string(end - begin) + R"(],"data_offsets":[)" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
  }
  void write_shard(const std::string& name, const std::string& tensor_name) const {
    const auto data = some_bytes(8, 1);
    write_tensors(path(name), std::vector<TensorData>{{tensor_name, DataType::kF32, {2}, data}}, {{"format", "pt"}});
  }
  std::string index(const std::string& json) const {
    write_raw("model.safetensors.index.json", json);
    return message_of(path("model.safetensors.index.json"));
  }
};

TEST_F(HostileTensors, WrongTypesOfFieldsNameTheTensor) {
  EXPECT_EQ(refusal(tensor("\"F32\"", "[2]", "[0,8]"), 8), "it was read");
  for (const char* wrong : {"1", "null", "true", "[]", "{}", "\"\"", "\"f32\"", "\"F32 \""})
    expect_refused(tensor(wrong, "[2]", "[0,8]"), 8, "tensor 'w'");
  for (const char* wrong : {"2", "null", "\"2\"", "{}", "[\"2\"]", "[null]", "[[2]]", "[2,]", "[,2]", "[2", "[true]"})
    expect_refused(tensor("\"F32\"", wrong, "[0,8]"), 8, "tensor 'w'");
  for (const char* wrong : {"8", "null", "\"0,8\"", "{}", "[]", "[0]", "[0,8,8]", "[0,\"8\"]", "[[0,8]]", "[0 8]"})
    expect_refused(tensor("\"F32\"", "[2]", wrong), 8, "tensor 'w'");
  expect_refused(R"({"w":[]})", 8, "tensor 'w'");
  expect_refused(R"({"w":null})", 8, "tensor 'w'");
  expect_refused(R"({"w":{}})", 8, "tensor 'w'");
}

TEST_F(HostileTensors, NumbersThatCannotBe) {
  for (const char* wrong : {"-2", "2.5", "1e-1", "18446744073709551616", "1e20", "1e999999999999", "0x2", "02", "+2",
                            "NaN", "Infinity", "99999999999999999999999999999999"}) {
    expect_refused(tensor("\"F32\"", "[" + std::string(wrong) + "]", "[0,8]"), 8, "tensor 'w'");
    expect_refused(tensor("\"F32\"", "[2]", "[0," + std::string(wrong) + "]"), 8, "tensor 'w'");
  }
}

TEST_F(HostileTensors, SizesThatOverflow) {
  expect_refused(tensor("\"F64\"", "[2305843009213693953]", "[0,8]"), 8, "larger than 2^64");
  expect_refused(tensor("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0, "larger than 2^64");
  expect_refused(tensor("\"F32\"", "[4294967296,4294967296,0]", "[0,0]"), 0, "larger than 2^64");
  expect_refused(tensor("\"U8\"", "[18446744073709551615]", "[0,18446744073709551615]"), 8,
                 "lies at 0 to 18446744073709551615, and the file has 8 bytes");
  expect_refused(tensor("\"F32\"", "[2]", "[18446744073709551608,0]"), 8, "18446744073709551608 to 0");
  std::string shape = "[1";
  for (int i = 0; i < 100; ++i) shape += ",1";
  expect_refused(tensor("\"U8\"", shape + "]", "[0,1]"), 1, "more than 64 dimensions");
}

TEST_F(HostileTensors, PlacesThatOverlapOrLeaveHoles) {
  const auto two = [](const std::string& a, const std::string& b) { return "{" + a + "," + b + "}"; };
  EXPECT_EQ(refusal(two(bytes_at("b", 4, 8), bytes_at("a", 0, 4)), 8), "it was read") << "any order will do";
  expect_refused(two(bytes_at("a", 0, 8), bytes_at("b", 0, 8)), 8, "'b' begins 8 bytes before the end of 'a'");
  expect_refused(two(bytes_at("a", 0, 8), bytes_at("b", 2, 4)), 8, "'b' begins 6 bytes before the end of 'a'");
  expect_refused(two(bytes_at("a", 0, 8), bytes_at("b", 3, 3)), 8, "'b' begins 5 bytes before the end of 'a'");
  expect_refused(two(bytes_at("a", 0, 3), bytes_at("b", 4, 8)), 8, "'b' begins 1 bytes behind the end of 'a'");
  expect_refused(two(bytes_at("a", 0, 4), bytes_at("b", 4, 7)), 8, "the last 1 bytes belong to no tensor");
  expect_refused("{}", 8, "the last 8 bytes belong to no tensor");
  EXPECT_EQ(refusal("{}", 0), "it was read") << "no tensors are tensors, too";
}

TEST_F(HostileTensors, NamesAreUniqueAndPlain) {
  expect_refused(R"({"a\u0000b":{}})", 0, "'a\\u0000b': a name with control characters");
  expect_refused(R"({"\u001b[2J":{}})", 0, "'\\u001b[2J'");
  expect_refused("{\"a\nb\":{}}", 0, "must be escaped");
  expect_refused("{\"\xFF\":{}}", 0, "not UTF-8");
  expect_refused(tensor("\"\\u001b[2J\"", "[2]", "[0,8]"), 8, "of type '\\u001b[2J'");
  expect_refused("{" + bytes_at("a", 0, 4) + "," + bytes_at("\\u0061", 4, 8) + "}", 8, "'a' is there twice");
  expect_refused(R"({"w":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 8, "has 'dtype'");
  expect_refused(R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"extra":1}})", 8, "has 'extra'");
  const std::string message = refusal("{\"" + std::string(100'000, 'n') + "\":{}}", 0);
  EXPECT_LT(message.size(), 1000U) << "a message is for reading";
}

TEST_F(HostileTensors, MetadataIsTextsByName) {
  EXPECT_EQ(refusal(R"({"__metadata__":{"a":"b","c":""}})", 0), "it was read");
  for (const char* wrong : {R"({"a":1})", R"({"a":null})", R"({"a":{"b":"c"}})", "[]", "\"a\"", "1", R"({"a":["b"]})"})
    expect_refused(R"({"__metadata__":)" + std::string(wrong) + "}", 0, "__metadata__");
  expect_refused(R"({"__metadata__":{"a":"b","a":"c"}})", 0, "'a' twice");
  expect_refused(R"({"__metadata__":{},"__metadata__":{}})", 0, "'__metadata__' is there twice");
}

TEST_F(HostileTensors, TextThatIsNoHeader) {
  for (const char* text : {"", " ", "null", "1", "\"x\"", "[]", " {}", "\xEF\xBB\xBF{}", "x{}"})
    expect_refused(text, 0, "does not begin with '{'");
  for (const char* text : {"{", "{\"", "{\"w\"", "{\"w\":", "{\"w\":{", "{}}", "{},", "{} x", "{,}", "{\"w\":{},}"})
    expect_refused(text, 0, "bad.safetensors");
  EXPECT_EQ(refusal("{}      ", 0), "it was read") << "padded with spaces";
  expect_refused(std::string("{}\0\0\0\0", 6), 0, "0x00");
  for (const char* bracket : {"[", "{\"a\":"}) {
    std::string deep = R"({"w":{"shape":)";
    for (int i = 0; i < 200'000; ++i) deep += bracket;
    expect_refused(deep, 0, "tensor 'w'");
  }
}

TEST_F(HostileTensors, EveryCutOfAFileIsRefused) {
  const auto data = some_bytes(24, 1);
  write_tensors(path("whole.safetensors"), std::vector<TensorData>{{"a", DataType::kF32, {3, 2}, data}}, {{"k", "v"}});
  std::ifstream in(path("whole.safetensors"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  ASSERT_EQ(message_of(path("whole.safetensors")), "it was read");
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    write_raw("bad.safetensors", whole.substr(0, bytes));
    ASSERT_NE(message_of(path("bad.safetensors")).find("parse error: '" + path("bad.safetensors")), std::string::npos)
        << bytes << " bytes: " << message_of(path("bad.safetensors"));
  }
  write_raw("bad.safetensors", whole + "x");
  EXPECT_NE(message_of(path("bad.safetensors")).find("the last 1 bytes"), std::string::npos);
}

TEST_F(HostileTensors, AHeaderLengthIsCheckedBeforeItIsBelieved) {
  for (int bit = 4; bit < 64; ++bit) {
    std::string file = file_of("{}", 0);
    for (int i = 0; i < 8; ++i)
      file[static_cast<std::size_t>(i)] = static_cast<char>((std::uint64_t{1} << bit) >> 8 * i);
    write_raw("bad.safetensors", file);
    const std::string message = message_of(path("bad.safetensors"));
    EXPECT_NE(message.find(std::to_string(std::uint64_t{1} << bit)), std::string::npos) << message;
  }
}

TEST_F(HostileTensors, IndexesThatLie) {
  write_shard("one.safetensors", "a");
  write_shard("two.safetensors", "b");
  write_shard("again.safetensors", "a");
  const auto map = [](const std::string& entries) { return R"({"weight_map":{)" + entries + "}}"; };
  const std::string good = R"("a":"one.safetensors","b":"two.safetensors")";
  EXPECT_EQ(index(map(good)), "it was read");
  EXPECT_EQ(TensorFiles::open(path("model.safetensors.index.json")).metadata().size(), 1U) << "said by both, kept once";
  const std::pair<std::string, std::string> cases[] = {
      {map(R"("a":"one.safetensors","b":"missing.safetensors")"), "missing.safetensors"},
      {map(good + R"(,"c":"two.safetensors")"), "tensor 'c' is in 'two.safetensors', where it is not"},
      {map(R"("a":"one.safetensors","b":"one.safetensors")"), "tensor 'b'"},
      {map(good + R"(,"c":"again.safetensors")"), "tensor 'a' is in '"},
      {map(good + R"(,"a":"one.safetensors")"), "tensor 'a' is there twice"},
      {map(R"("a":"../one.safetensors")"), "no file's name"},
      {map(R"("a":"/etc/passwd")"), "no file's name"},
      {map(R"("a":"x/../one.safetensors")"), "no file's name"},
      {map(R"("a":"..")"), "is not a file"},
      {map(R"("a":".")"), "is not a file"},
      {map(R"("a":"")"), "no file's name"},
      {map(R"("a":"one.safetensors\u0000x")"), "no file's name"},
      {map(R"("a":1)"), "tensor 'a': expected a string"},
      {map(""), "names no tensor"},
      {R"({"weight_map":{},"weight_map":{}})", "second \"weight_map\""},
      {R"({"weight_map":[]})", "model.safetensors.index.json"},
      {R"({"metadata":{}})", "no \"weight_map\""},
      {"[]", "expected an object"},
      {"", "the end of the file"},
      {R"({"metadata":)" + std::string(100'000, '['), "brackets within each other"},
  };
  for (const auto& [json, words] : cases)
    EXPECT_NE(index(json).find(words), std::string::npos) << json.substr(0, 200) << "\n  " << index(json);
}

TEST_F(HostileTensors, PlacesThatAreNoFiles) {
  EXPECT_NE(message_of(folder.string()).find("no *.safetensors file in '" + folder.string()), std::string::npos);
  std::filesystem::create_directory(path("folder.safetensors"));
  EXPECT_NE(message_of(folder.string()).find("folder.safetensors' is not a file"), std::string::npos);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_NE(message_of(path("pipe")).find("is not a file"), std::string::npos) << "and does not wait for a writer";
  EXPECT_NE(message_of("/dev/zero").find("is not a file"), std::string::npos);
  std::filesystem::remove(path("folder.safetensors"));
  write_shard("one.safetensors", "a");
  EXPECT_EQ(message_of(folder.string()), "it was read");
  write_shard("two.safetensors", "b");
  EXPECT_NE(message_of(folder.string()).find("2 files *.safetensors ('one.safetensors', 'two.safetensors'"),
            std::string::npos);
}

TEST_F(HostileTensors, FilesThatChangeUnderTheReader) {
  const auto old_bytes = some_bytes(4096, 1), new_bytes = some_bytes(4096, 2);
  const auto write = [&](const std::vector<std::byte>& data) {
    write_tensors(path("t.safetensors"), std::vector<TensorData>{{"a", DataType::kU8, {4096}, data}});
  };
  write(old_bytes);
  const TensorFiles files = TensorFiles::open(path("t.safetensors"));
  const TensorInfo& info = files.at("a");
  write(new_bytes);  // another file by the same name: the one that was opened is still whole
  std::vector<std::byte> read(4096);
  files.read(info, read.data());
  EXPECT_EQ(read, old_bytes);

  const TensorFiles later = TensorFiles::open(path("t.safetensors"));
  std::filesystem::resize_file(path("t.safetensors"), 2000);
  EXPECT_TRUE(fails([&] { later.read(later.at("a"), read.data()); }, ErrorCode::kIo, {"t.safetensors", "cut short"}));
  EXPECT_TRUE(fails([&] { later.read(later.at("a"), 0, read.data(), 10); }, ErrorCode::kIo, {"changed", "2000"}));
  EXPECT_TRUE(
      fails([&] { files.read(info, 4000, read.data(), 97); }, ErrorCode::kInvalidValue, {"97", "4000", "4096"}));
  TensorInfo foreign = info;
  foreign.file = 7;
  EXPECT_TRUE(fails([&] { files.read(foreign, read.data()); }, ErrorCode::kInvalidValue, {"file 7"}));
  foreign = info;
  foreign.bytes = 1 << 20;
  EXPECT_TRUE(fails([&] { files.read(foreign, 0, read.data(), 10); }, ErrorCode::kInvalidValue));
}

TEST_F(HostileTensors, ADiskThatIsFullLeavesWhatWasThere) {
  const auto small = some_bytes(64, 1), large = some_bytes(1 << 20, 2);
  const std::vector<TensorData> before = {{"a", DataType::kU8, {64}, small}};
  const std::vector<TensorData> after = {{"a", DataType::kU8, {1 << 20}, large}};
  EXPECT_TRUE(fails([&] { write_tensors("/dev/full", after); }, ErrorCode::kIo, {"/dev/full", "No space left"}));
  write_tensors(path("t.safetensors"), before);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit tight{100'000, old.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // write() shall fail; the signal would end the process
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  EXPECT_TRUE(fails([&] { write_tensors(path("t.safetensors"), after); }, ErrorCode::kIo, {"t.safetensors"}));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(TensorFiles::open(path("t.safetensors")).at("a").bytes, 64U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1) << "nothing is left beside it";
}

TEST_F(HostileTensors, FoldersThatTakeNoFile) {
  const auto data = some_bytes(8, 1);
  const std::vector<TensorData> tensors = {{"a", DataType::kU8, {8}, data}};
  write_raw("file", "x");
  EXPECT_TRUE(fails([&] { write_tensors(path("file/t"), tensors); }, ErrorCode::kIo, {"file/t"}));
  EXPECT_TRUE(fails([&] { write_tensors(path("absent/t"), tensors); }, ErrorCode::kIo, {"absent/t"}));
  EXPECT_TRUE(fails([&] { write_tensors(folder.string(), tensors); }, ErrorCode::kIo, {folder.string()}));
  EXPECT_TRUE(fails([&] { write_tensors("/proc/t.safetensors", tensors); }, ErrorCode::kIo, {"/proc/t.safetensors"}))
      << "a folder that not even root writes to";
}

TEST_F(HostileTensors, WhatCannotBeReadIsNotWritten) {
  const auto data = some_bytes(8, 1);
  const auto write = [&](const std::string& name, const Shape& shape, std::size_t bytes,
                         const std::vector<std::pair<std::string, std::string>>& metadata = {}) {
    const TensorData tensor{name, DataType::kU8, shape, std::span(data).first(bytes)};
    write_tensors(path("t.safetensors"), {&tensor, 1}, metadata);
  };
  EXPECT_TRUE(fails([&] { write("a\nb", {8}, 8); }, ErrorCode::kParse, {"a\\nb", "control"}));
  EXPECT_TRUE(fails([&] { write("\xC0", {8}, 8); }, ErrorCode::kInvalidValue, {"UTF-8"}));
  EXPECT_TRUE(fails([&] { write("a", Shape(65, 1), 1); }, ErrorCode::kParse, {"64 dimensions"}));
  EXPECT_TRUE(fails(
      [&] {
        write("a", {std::uint64_t{1} << 32, std::uint64_t{1} << 32, 0}, 0);
      },
      ErrorCode::kInvalidValue, {"2^64"}));
  EXPECT_TRUE(fails([&] { write("a", {8}, 8, {{"k", "\xFF"}}); }, ErrorCode::kInvalidValue, {"UTF-8"}));
  EXPECT_TRUE(fails([&] { write("a", {8}, 8, {{"k", "1"}, {"k", "2"}}); }, ErrorCode::kParse, {"'k' twice"}));
  EXPECT_FALSE(std::filesystem::exists(path("t.safetensors")));
}

// The bytes themselves, as other programs expect them.
TEST_F(HostileTensors, TheLayoutIsTheFormats) {
  const auto narrow = some_bytes(3, 1), wide = some_bytes(16, 2);
  write_tensors(path("t.safetensors"),
                std::vector<TensorData>{{"n", DataType::kF8E4M3, {3}, narrow}, {"w", DataType::kI64, {2}, wide}},
                {{"format", "pt"}});
  std::ifstream in(path("t.safetensors"), std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(in)), {});
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(file[i]);
  ASSERT_EQ(file.size(), 8 + length + 19);
  EXPECT_EQ((8 + length) % 64, 0U);
  std::string json = file.substr(8, length);
  json.resize(json.find_last_not_of(' ') + 1);
  EXPECT_EQ(json, R"({"__metadata__":{"format":"pt"},"w":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
                  R"("n":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[16,19]}})");
  EXPECT_EQ(file.compare(8 + length, 16, reinterpret_cast<const char*>(wide.data()), 16), 0);
  EXPECT_EQ(file.compare(8 + length + 16, 3, reinterpret_cast<const char*>(narrow.data()), 3), 0);
}

}  // namespace
}  // namespace slip::test_hostile_tensors
