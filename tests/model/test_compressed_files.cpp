// Compressed safetensors files: the original files come back byte for byte, interrupted work continues, damage is
// found, and no file is replaced.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "model/compressed_files.hpp"
#include "model/tensor_folder.hpp"
#include "store/partial_file.hpp"
#include "support/compressed_tensor.hpp"
#include "support/errors.hpp"
#include "support/weights_to_compress.hpp"

namespace slip::test_compressed_files {
namespace {

namespace fs = std::filesystem;
using model::FilesOptions;
using model::FilesResult;
using test::fails;
using Bytes = std::vector<std::byte>;

class CompressedFiles : public test::TensorFolder {
 protected:
  void SetUp() override {
    TensorFolder::SetUp();
    fs::create_directories(path("model"));
    write("a.safetensors", 1);
    write("b.safetensors", 2);
    write_raw("model/config.json", "{\"x\": 1}");
  }
  void write(const std::string& name, std::uint64_t seed) const {
    const Bytes bf16 = test::normal_weights(DataType::kBF16, 20'000, seed);
    const Bytes f16 = test::normal_weights(DataType::kF16, 8192, seed + 10);
    const Bytes f32 = test::normal_weights(DataType::kF32, 9001, seed + 20);
    const Bytes noise = test::random_bits(5003, seed + 30);
    const std::string prefix = name.substr(0, 1) + ".";
    write_tensors(path("model/" + name),
                  std::vector<TensorData>{{prefix + "w", DataType::kBF16, {200, 100}, bf16},
                                          {prefix + "h", DataType::kF16, {8192}, f16},
                                          {prefix + "f \"quoted\" \xC3\xA9", DataType::kF32, {9001}, f32},
                                          {prefix + "noise", DataType::kI8, {5003}, noise},
                                          {prefix + "none", DataType::kBF16, {0, 7}, {}}},
                  {{"format", "pt"}, {"who", "a \"test\""}});
  }
  FilesResult compress(const FilesOptions& options = {}) const {
    return model::compress_files(path("model"), path("small"), options, {});
  }
  FilesResult decompress(const FilesOptions& options = {}) const {
    return model::decompress_files(path("small"), path("back"), options, {});
  }
  std::string bytes_in(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void expect_back() const {
    for (const char* name : {"a.safetensors", "b.safetensors", "config.json"})
      EXPECT_EQ(bytes_in(std::string("model/") + name), bytes_in(std::string("back/") + name)) << name;
  }
};

TEST_F(CompressedFiles, TheOriginalFilesComeBack) {
  const FilesResult small = compress();
  EXPECT_EQ(small.files, 2U);
  EXPECT_EQ(small.tensors, 10U);
  EXPECT_LT(small.compressed_bytes, small.original_bytes);
  EXPECT_EQ(small.compressed_bytes,
            fs::file_size(path("small/a.safetensors")) + fs::file_size(path("small/b.safetensors")));
  EXPECT_EQ(decompress().tensors, 10U);
  expect_back();
}

TEST_F(CompressedFiles, EveryReaderOpensThem) {
  compress();
  const store::File file = store::File::open(path("small/a.safetensors"), {});
  const model::SafetensorsHeader header = model::read_header(file, {});
  ASSERT_EQ(header.tensors.size(), 5U);
  const TensorInfo& tensor = *std::ranges::find(header.tensors, "a.w", &TensorInfo::name);
  EXPECT_EQ(tensor.type, DataType::kU8);
  EXPECT_EQ(tensor.offset % 16, 0U);
  Bytes bytes(tensor.bytes);
  file.read(tensor.offset, bytes.data(), bytes.size(), {});
  EXPECT_EQ(test::decompress_tensor(bytes, "w"), test::normal_weights(DataType::kBF16, 20'000, 1));
  const auto has = [&](const char* key, const char* value) {
    return std::ranges::count(header.metadata, std::pair<std::string, std::string>(key, value)) == 1;
  };
  EXPECT_TRUE(has("slip.codec", "slip weights"));
  EXPECT_TRUE(has("slip.version", "1"));
  EXPECT_TRUE(has("format", "pt"));
}

TEST_F(CompressedFiles, TensorFilesDecodesThem) {
  compress();
  const TensorFiles files = TensorFiles::open(path("small/a.safetensors"));
  ASSERT_EQ(files.tensors().size(), 5U);
  const TensorInfo& tensor = files.at("a.w");
  EXPECT_EQ(tensor.type, DataType::kBF16);
  const Bytes wanted = test::normal_weights(DataType::kBF16, 20'000, 1);
  ASSERT_EQ(tensor.bytes, wanted.size());
  // Whole, and from and to places within blocks of 16,384 bytes.
  for (const auto& [from, bytes] : {std::pair<std::size_t, std::size_t>{0, wanted.size()},
                                    {1, 5},
                                    {16'380, 8},
                                    {16'384, 16'384},
                                    {100, 39'000},
                                    {39'999, 1},
                                    {40'000, 0}}) {
    Bytes read(bytes);
    files.read(tensor, from, read.data(), bytes);
    EXPECT_TRUE(std::equal(read.begin(), read.end(), wanted.begin() + static_cast<std::ptrdiff_t>(from))) << from;
  }
  EXPECT_EQ(std::ranges::count(files.metadata(), std::pair<std::string, std::string>("format", "pt")), 1);
}

TEST_F(CompressedFiles, NothingIsReplaced) {
  compress();
  EXPECT_TRUE(fails([&] { compress(); }, ErrorCode::kInvalidValue, {"small", "--resume"}));
  for (const bool resume : {false, true}) {
    EXPECT_TRUE(fails([&] { model::compress_files(path("model"), path("model/."), {.resume = resume}, {}); },
                      ErrorCode::kInvalidValue, {"is the folder of the model itself"}));
  }
  EXPECT_TRUE(fails([&] { model::compress_files(path("small"), path("other"), {}, {}); }, ErrorCode::kInvalidValue,
                    {"compressed already"}));
  EXPECT_TRUE(fails([&] { model::decompress_files(path("model"), path("other2"), {}, {}); }, ErrorCode::kParse,
                    {"a.safetensors", "not compressed"}));
  EXPECT_FALSE(fs::exists(path("other2")));
  // A folder with the name of a file that is copied.
  fs::remove(path("small/config.json"));
  fs::create_directories(path("small/config.json"));
  EXPECT_TRUE(fails([&] { compress({.resume = true}); }, ErrorCode::kIo, {"small/config.json", "not a file"}));
  fs::remove(path("small/config.json"));
  // Other weights under the same names.
  write("b.safetensors", 99);
  EXPECT_TRUE(
      fails([&] { compress({.resume = true}); }, ErrorCode::kInvalidValue, {"small/b.safetensors", "remove it"}));
  // A file that is no safetensors file, and links that lead nowhere.
  write_raw("small/b.safetensors", "precious");
  EXPECT_TRUE(
      fails([&] { compress({.resume = true}); }, ErrorCode::kInvalidValue, {"small/b.safetensors", "remove it"}));
  EXPECT_EQ(bytes_in("small/b.safetensors"), "precious");
  for (const char* name : {"small/b.safetensors", "small/config.json"}) {
    fs::remove_all(path("small"));
    fs::create_directories(path("small"));
    fs::create_symlink(path("nowhere"), path(name));
    EXPECT_TRUE(fails([&] { compress({.resume = true}); }, ErrorCode::kIo, {name}));
    EXPECT_TRUE(fs::is_symlink(path(name)));
    EXPECT_FALSE(fs::exists(path("nowhere")));
  }
}

// Files are converted in the order of their names. A file that cannot be converted is found before the first is
// written.
TEST_F(CompressedFiles, AFileThatCannotBeConvertedLeavesNoOutput) {
  compress();
  const auto refused = [&](std::initializer_list<std::string_view> words) {
    EXPECT_TRUE(
        fails([&] { model::compress_files(path("model"), path("other"), {}, {}); }, ErrorCode::kInvalidValue, words));
    EXPECT_FALSE(fs::exists(path("other")));
    fs::remove(path("model/c.safetensors"));
  };
  fs::copy_file(path("small/b.safetensors"), path("model/c.safetensors"));
  refused({"c.safetensors", "compressed already"});
  const Bytes weights(8);
  write_tensors(path("model/c.safetensors"), std::vector<TensorData>{{"w", DataType::kF32, {2}, weights}},
                {{"slip.x", "y"}});
  refused({"c.safetensors", "slip.x"});
  // A header that the reader of the compressed file would refuse: it is a string there.
  write_raw("model/c.safetensors",
            file_of(R"({"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})" + std::string(17 << 20, ' '), 3));
  refused({"c.safetensors", "its header has 17825"});
  // A sparse file.
  const std::string header = R"({"w":{"dtype":"U8","shape":[68719476736],"data_offsets":[0,68719476736]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  write_raw("model/c.safetensors", length + header);
  fs::resize_file(path("model/c.safetensors"), 8 + header.size() + (std::uint64_t{1} << 36));
  refused({"c.safetensors", "tensor 'w'", "64 GiB"});
  EXPECT_NO_THROW(model::compress_files(path("model"), path("other"), {}, {}));
}

TEST_F(CompressedFiles, InterruptedWorkContinues) {
  struct Interrupted {};
  compress();
  const std::string whole = bytes_in("small/a.safetensors"), other = bytes_in("small/b.safetensors");
  fs::remove_all(path("small"));
  for (int calls = 1; calls < 9; ++calls) {
    int seen = 0;
    const auto stop = [&](const model::FilesProgress& progress) {
      EXPECT_LE(progress.done, progress.total);
      if (++seen == calls) throw Interrupted();
    };
    EXPECT_THROW(compress({.resume = calls > 1, .progress = stop}), Interrupted) << calls;
  }
  const FilesResult rest = compress({.resume = true});
  EXPECT_GE(rest.kept, 4U);
  EXPECT_EQ(bytes_in("small/a.safetensors"), whole);
  EXPECT_EQ(bytes_in("small/b.safetensors"), other);
  EXPECT_EQ(compress({.resume = true}).kept, 10U);

  int seen = 0;
  EXPECT_THROW(decompress({.progress =
                               [&](const model::FilesProgress&) {
                                 if (++seen == 5) throw Interrupted();
                               }}),
               Interrupted);
  EXPECT_TRUE(fails([&] { decompress(); }, ErrorCode::kInvalidValue, {"--resume"}));
  decompress({.resume = true});
  expect_back();
  EXPECT_FALSE(fs::exists(path("back/a.safetensors.partial")));
  EXPECT_EQ(decompress({.resume = true}).kept, 10U);
}

TEST_F(CompressedFiles, DamageOfAPartialFileIsWrittenAgain) {
  struct Interrupted {};
  int seen = 0;
  EXPECT_THROW(compress({.progress =
                             [&](const model::FilesProgress&) {
                               if (++seen == 4) throw Interrupted();
                             }}),
               Interrupted);
  const std::string partial = store::PartialFile::partial_path(path("small/a.safetensors"));
  ASSERT_TRUE(fs::exists(partial));
  {
    std::fstream file(partial, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(fs::file_size(partial) / 2));
    file.put('\x7E');
  }
  compress({.resume = true});
  decompress();
  expect_back();
}

TEST_F(CompressedFiles, TwoProcessesCannotWriteTheSameFile) {
  fs::create_directories(path("small"));
  const store::PartialFile other(path("small/a.safetensors"), {});
  EXPECT_TRUE(fails([&] { compress({.resume = true}); }, ErrorCode::kIo, {"a.safetensors.partial", "another process"}));
}

// Any bit, anywhere in the file: the length, the header, its padding, heads, tables, blocks.
TEST_F(CompressedFiles, AnyFlippedBitOfAFileIsFound) {
  fs::remove(path("model/b.safetensors"));
  const Bytes weights = test::normal_weights(DataType::kBF16, 1500, 5);
  write_tensors(path("model/a.safetensors"), std::vector<TensorData>{{"w", DataType::kBF16, {1500}, weights}});
  compress();
  const std::string good = bytes_in("small/a.safetensors");
  ASSERT_LT(good.size(), 4000U);
  const auto read_all = [&] {
    const store::File file = store::File::open(path("small/a.safetensors"));
    const model::CompressedHeader header = model::read_compressed_header(file, {});
    const model::CompressedTensor tensor(file, header, header.original.tensors.at(0), {});
    Bytes into(tensor.table().weights_bytes());
    tensor.decode(0, tensor.table().blocks(), into, {});
  };
  EXPECT_NO_THROW(read_all());
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    fs::remove(path("small/a.safetensors"));  // some file systems flush a file that replaces another, in milliseconds
    write_raw("small/a.safetensors", bad);
    EXPECT_TRUE(fails(read_all, ErrorCode::kParse, {"a.safetensors"})) << "bit " << bit << " of " << 8 * good.size();
    if (bit % 301 != 0) continue;
    EXPECT_TRUE(fails([&] { decompress({.resume = true}); }, ErrorCode::kParse, {"a.safetensors"})) << bit;
    EXPECT_FALSE(fs::exists(path("back/a.safetensors")));
    EXPECT_FALSE(fs::exists(path("back/a.safetensors.partial")));
  }
}

TEST_F(CompressedFiles, FaultsNameFileTensorAndBlock) {
  compress();
  const model::SafetensorsHeader header = model::read_header(store::File::open(path("small/b.safetensors"), {}), {});
  const TensorInfo tensor = *std::ranges::find(header.tensors, "b.w", &TensorInfo::name);
  std::string bad = bytes_in("small/b.safetensors");
  bad[tensor.offset + tensor.bytes - 20] = static_cast<char>(bad[tensor.offset + tensor.bytes - 20] ^ 8);
  write_raw("small/b.safetensors", bad);
  EXPECT_TRUE(
      fails([&] { decompress(); }, ErrorCode::kParse, {"b.safetensors", "tensor 'b.w'", "block 2 of 3", "checksum"}));
  write_raw("small/b.safetensors", bad.substr(0, bad.size() - 100));
  EXPECT_TRUE(fails([&] { decompress({.resume = true}); }, ErrorCode::kParse, {"b.safetensors"}));
}

}  // namespace
}  // namespace slip::test_compressed_files
