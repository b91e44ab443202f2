// `slip compress`, `slip decompress` and `slip lab compress`.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/program.hpp"

namespace slip::cli_test::test_compress {
namespace {

using nlohmann::json;

TEST(CliCompress, AModelComesBack) {
  const std::string model = scratch("compress-model"), small = scratch("compress-small"),
                    back = scratch("compress-back"), sizes = scratch("compress.json");
  ASSERT_EQ(run("model stack --blocks 2 --hidden 256 --intermediate 512 --tokens 2 --type bf16 --shards 2 -o " + model)
                .status,
            0);
  const Outcome done = run("compress " + model + " -o " + small + " --json " + sizes);
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(lines(done.out), 1U) << done.out;
  EXPECT_TRUE(done.err.empty()) << done.err;
  const json found = json::parse(read_file(sizes));
  EXPECT_GT(found.at("ratio").get<double>(), 1.2);
  EXPECT_EQ(found.at("files"), 2);
  const Outcome again = run("compress " + model + " -o " + small);
  EXPECT_EQ(again.status, 1);
  EXPECT_NE(again.err.find("--resume"), std::string::npos) << again.err;
  EXPECT_EQ(run("compress " + model + " -o " + small + " --resume").status, 0);
  ASSERT_EQ(run("decompress " + small + " -o " + back).status, 0);
  for (const auto& entry : std::filesystem::directory_iterator(model)) {
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(read_file(entry.path().string()), read_file(back + "/" + name)) << name;
  }
  const std::string progress = on_terminal("decompress " + small + " -o " + scratch("compress-other"), 70);
  EXPECT_NE(progress.find("100 %"), std::string::npos) << progress;
  // Each part that overwrites the one before fits the terminal's line: the path is cut.
  for (std::size_t end = 0; (end = progress.find(" %, ", end + 1)) != std::string::npos;) {
    const std::size_t begin = progress.rfind("\033[K", end) + 3;
    EXPECT_LT(progress.find('\033', end) - begin, 70U) << progress;
  }
  const json tables = lab_tables("compress", "sim:h200", "--quick --model " + model);
  EXPECT_FALSE(tables.at(0).at("rows").empty());
  for (const std::string& folder : {model, small, back, scratch("compress-other")}) std::filesystem::remove_all(folder);
}

TEST(CliCompress, WrongArgumentsAreNamed) {
  EXPECT_EQ(run("compress").status, 2);
  EXPECT_EQ(run("compress somewhere").status, 2);
  const Outcome none = run("compress /nowhere -o /tmp/slip-nothing");
  EXPECT_EQ(none.status, 1);
  EXPECT_NE(none.err.find("/nowhere"), std::string::npos) << none.err;
}

// A raw block is padded to 16 bytes, so it is larger than a tensor of two.
TEST(CliCompress, LabTakesAModelOfOneWeight) {
  const std::string model = scratch("compress-one.safetensors");
  const std::string header = R"({"w":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  std::ofstream(model, std::ios::binary) << length << header << "ab";
  const json tables = lab_tables("compress", "cpu", "--quick --model " + model);
  EXPECT_EQ(tables.at(0).at("rows").size(), 1U);
  std::filesystem::remove(model);
}

TEST(CliCompress, LabShowsTheInformationByField) {
  const json tables = lab_tables("compress", "sim:h200", "--quick");
  ASSERT_EQ(tables.size(), 3U);
  const json& fields = tables.at(0).at("rows");
  EXPECT_EQ(fields.at(0).at("type"), "BF16");
  EXPECT_NEAR(fields.at(0).at("exponent_bits").get<double>(), 2.55, 0.15);
  EXPECT_NEAR(fields.at(0).at("mantissa_bits").get<double>(), 6.97, 0.05);
  EXPECT_NEAR(fields.at(0).at("sign_bits").get<double>(), 1.0, 0.01);
  EXPECT_GT(fields.at(0).at("ratio").get<double>(), 1.43);
  EXPECT_EQ(fields.at(0).at("raw_blocks"), 0);
  EXPECT_LT(fields.back().at("ratio").get<double>(), 1.0);  // random bits
  const json& layouts = tables.at(1).at("rows");
  ASSERT_EQ(layouts.size(), 4U);
  EXPECT_LT(layouts.at(1).at("escapes_percent").get<double>(), 3.0);
  // Device memory is faster than a decoder that reads and writes it.
  const json& links = tables.at(2).at("rows");
  EXPECT_TRUE(links.at(0).at("pays"));
  EXPECT_FALSE(links.back().at("pays"));
}

}  // namespace
}  // namespace slip::cli_test::test_compress
