// The reader against files that are cut short, wrong or hostile: a clear error, never a crash.
#include <fmt/format.h>

#include <functional>

#include "support.hpp"
#include "support/share.hpp"
#include "watch/trace/trace_reader.hpp"

namespace slip::test_trace_reader {
namespace {

using watch_test::contents;
using watch_test::expect_same;
using watch_test::Folder;
using watch_test::Generator;

std::string sample(std::uint64_t seed, int records) {
  const Folder folder;
  Trace trace;
  Generator(seed, 123'456'789'012'345'678).send(trace, records);
  trace.write(folder.file("t.json"));
  return contents(folder.file("t.json"));
}

std::string complaint(const std::string& text) {
  try {
    watch::parse_trace(text, "bad.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kParse) << error.what();
    return error.what();
  }
  return "";
}

std::string with(const std::string& event) { return "{\"traceEvents\":[\n" + event + "\n],\"slip\":{\"version\":1}}"; }

TEST(TraceReader, NamesTheFileLineAndByte) {
  EXPECT_NE(complaint("").find("'bad.json', line 1, byte 0: expected an object, found the end of the file"),
            std::string::npos)
      << complaint("");
  const std::string text = with("{\"ph\":\"X\",\n\"pid\":x}");
  EXPECT_NE(complaint(text).find(fmt::format("line 3, byte {}: expected a number, found 'x'", text.find('x'))),
            std::string::npos)
      << complaint(text);
}

TEST(TraceReader, RefusesWhatIsNoTrace) {
  const std::pair<std::string, const char*> kCases[] = {
      {"[]", "not a trace"},
      {"[1]", "expected an object"},
      {"[{}]", "without its phase"},
      {"[{\"a\":1}]", "without its phase"},
      {"{}", "no \"traceEvents\": not a trace"},
      {"{\"nodes\":[{\"ph\":\"X\"}]}", "not a trace"},
      {"\"text\"", "expected an object"},
      {"\x1F\x8B\x08 and so on", "gzip"},
      {"{\"traceEvents\":[{\"ph\":\"X\",\"pid\":1,\"args\":{\"seq\":[1,2]}}]}", "no \"slip\" section"},
      {"{\"traceEvents\":{},\"slip\":{\"version\":1}}", "expected an array"},
      {"{\"slip\":{\"version\":2}}", "version 2"},
      {"{\"slip\":{\"version\":1}} x", "expected the end of the file"},
      {"{\"slip\":{\"version\":1},}", "after a comma"},
      {"{\"slip\":{\"version\":1} \"a\":1}", "expected ',' or '}'"},
      {"{\"slip\" 1}", "expected ':'"},
      {"{\"slip\":{\"version\":1,\"dropped\":-1}}", "below zero"},
      {"{\"slip\":{\"version\":1,\"dropped\":1.5}}", "too many decimals"},
      {"{\"slip\":{\"version\":1,\"dropped\":18446744073709551616}}", "too many digits"},
      {"{\"slip\":{\"version\":1,\"dropped\":1e99999999999}}", "too large"},
      {"{\"slip\":{\"version\":01}}", "may not begin with 0"},
      {"{\"a\":\"x\ny\"}", "must be escaped"},
      {"{\"a\":\"\\q\"}", "unknown escape"},
      {"{\"a\":\"\\u12g4\"}", "hex digits"},
      {"{\"a\":nul}", "expected 'null'"},
      {"{\"a\":1.}", "after the decimal point"},
      {"{\"a\":1e}", "in the exponent"},
      {"{\"a\":-}", "expected a number"},
      {"{\"a\":\"never ends", "the file ends within a string"},
      {with("{\"ph\":\"X\",\"pid\":1,\"ts\":0,\"dur\":1,\"name\":\"a\",\"args\":{}}"), "\"seq\""},
      {with("{\"ph\":\"X\",\"pid\":1,\"ts\":0,\"dur\":-1,\"args\":{\"seq\":[1,2]}}"), "ends before it starts"},
      {with("{\"ph\":\"X\",\"pid\":4294967296,\"args\":{\"seq\":[1,2]}}"), "too large"},
      {with("{\"ph\":\"X\",\"pid\":1,\"ts\":9223372036854.775807,\"dur\":1,\"args\":{\"seq\":[1,2]}}"), "beyond 2^63"},
      {with("{\"ph\":\"X\",\"pid\":1,\"args\":{\"seq\":[1,2,3]}}"), "more than 2 numbers"},
      {with("{\"ph\":\"X\",\"pid\":1,\"args\":{\"seq\":[1,2],\"kind\":\"dance\"}}"), "no kind of op is called 'dance'"},
      {with("{\"ph\":\"X\",\"pid\":1,\"args\":{\"seq\":[1,2],\"reads\":[[1,2]]}}"),
       "a range is [buffer, offset, bytes]"},
      {with("{\"ph\":\"X\",\"pid\":1,\"args\":{\"seq\":[1,2],\"reads\":[[1,18446744073709551615,1]]}}"), "beyond 2^64"},
      {with("{\"ph\":\"X\",\"pid\":1,\"args\":{\"seq\":[1,2],\"place\":\"nowhere\"}}"), "file:line"},
      {with("{\"ph\":\"i\",\"pid\":1,\"args\":{\"seq\":[1],\"record\":\"run\"}}"), "by an op's event"},
      {with("{\"ph\":\"X\",\"pid\":1,\"args\":{\"seq\":[1,1]}}"), "the same place in the order (\"seq\" 1)"},
      {with("{\"ph\":\"X\",\"pid\":1,\"args\":{\"seq\":[99999999,99999999]}}"), "the same place in the order"},
  };
  for (const auto& [text, expected] : kCases) {
    const std::string found = complaint(text);
    EXPECT_NE(found.find(expected), std::string::npos) << text << "\n  " << found;
  }
}

TEST(TraceReader, TimesAreRoundedToAPicosecond) {
  const std::pair<const char*, Picos> kCases[] = {
      {"1", 1'000'000},
      {"0.000001", 1},
      {"1e-06", 1},
      {"-2.5E+1", -25'000'000},
      {"0.0000004", 0},
      {"0.0000005", 1},
      {"198.76543300000001", 198'765'433},
      {"198.76543299999999", 198'765'433},
      {"1.99999999999999999999999999999", 2'000'000},
      {"2305843009213.693951", 2'305'843'009'213'693'951},
      {"1e-999999999999", 0},
  };
  for (const auto& [text, expected] : kCases) {
    const std::string event =
        fmt::format("{{\"ph\":\"X\",\"pid\":1,\"ts\":{},\"dur\":0,\"args\":{{\"seq\":[1,2]}}}}", text);
    EXPECT_EQ(watch::parse_trace(with(event), "t").records[1].started, expected) << text;
  }
}

// The first version of the file format: ops before everything else, each with its stream and engine.
TEST(TraceReader, ReadsTheFirstForm) {
  const TraceData data = watch::parse_trace(
      with("{\"ph\":\"X\",\"pid\":1,\"tid\":5,\"ts\":4,\"dur\":1,\"cat\":\"compute\",\"name\":\"a\",\"args\":{\"kind\":"
           "\"copy\","
           "\"engine\":\"copy "
           "in\",\"stream\":5,\"position\":6,\"ran_on\":\"compute\",\"thread\":[1,2],\"seq\":[2,3]}},\n"
           "{\"ph\":\"i\",\"s\":\"t\",\"pid\":0,\"tid\":1,\"ts\":0,\"cat\":\"host\",\"name\":\"stream open\",\"args\":{"
           "\"record\":\"stream open\",\"device\":1,\"stream\":5,\"thread\":[1],\"seq\":[1]}}"),
      "t");
  ASSERT_EQ(data.records.size(), 3U);
  EXPECT_EQ(data.records[0].kind, RecordKind::kStreamOpen);
  EXPECT_EQ(data.records[0].engine, Engine::kNone);
  EXPECT_EQ(data.records[1].kind, RecordKind::kSubmit);
  EXPECT_EQ(data.records[1].op, OpKind::kCopy);
  EXPECT_EQ(data.records[1].engine, Engine::kCopyIn);
  EXPECT_EQ(data.records[1].stream, 5U);
  EXPECT_EQ(data.records[2].kind, RecordKind::kRun);
  EXPECT_EQ(data.records[2].engine, Engine::kCompute);
  EXPECT_EQ(data.records[2].thread, 2U);
  EXPECT_FALSE(data.foreign);
}

TEST(TraceReader, DeepNestingIsRefusedNotFollowed) {
  EXPECT_NE(complaint("{\"a\":" + std::string(1'000'000, '[')).find("brackets"), std::string::npos);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_NE(complaint(objects).find("brackets"), std::string::npos);
}

TEST(TraceReader, HugeStringIsRefused) {
  EXPECT_NE(complaint("{\"" + std::string((std::size_t{16} << 20) + 1, 'a') + "\":1}").find("a string of more than"),
            std::string::npos);
}

// Every way to write a character, with the end of the reader's window at every byte of it.
TEST(TraceReader, EscapesAndNumbersOfEveryKindAcrossBlocks) {
  const std::string text = with(
      "{\"ph\":\"X\",\"pid\":1,\"ts\":-12.5e-1,\"name\":\"\\u0041\\/"
      "\\ud83d\\ude80\\ud800x\\udc00\\ud800\\u0042\\ud800\\n\","
      "\"args\" : {\"seq\":[1,2],\"opaque\": true ,\"x\":[null,false,{}]}}");
  const Folder folder;
  constexpr std::size_t kBlock = std::size_t{256} << 10;
  for (std::size_t border = 0; border <= text.size(); border += test::kShare) {
    std::ofstream(folder.file("t.json")) << std::string(kBlock - border, ' ') << text;
    const TraceData data = read_trace(folder.file("t.json"));
    ASSERT_EQ(data.records.size(), 2U);
    const std::string lone = "\xEF\xBF\xBD";  // half of a pair
    EXPECT_EQ(data.records[0].name, "A/\xF0\x9F\x9A\x80" + lone + "x" + lone + lone + "B" + lone + "\n");
    EXPECT_TRUE(data.records[0].opaque);
    EXPECT_EQ(data.records[1].started, -1'250'000);
  }
}

TEST(TraceReader, MissingFileAndFolder) {
  const Folder folder;
  for (const std::string& path : {folder.file("none.json"), folder.file("")}) {
    try {
      read_trace(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
    }
  }
}

// Blocks of the file reader end anywhere: within keys, escapes and numbers.
TEST(TraceReader, LargeFileAcrossBlocks) {
  const Folder folder;
  Trace trace;
  Generator(8).send(trace, 20'000);
  trace.write(folder.file("t.json"));
  ASSERT_GT(std::filesystem::file_size(folder.file("t.json")), std::size_t{2} << 20);
  const TraceData data = read_trace(folder.file("t.json"));
  expect_same(trace.data(), data);
  for (std::size_t shift = 1; shift < 40; ++shift) {  // the same text with the borders elsewhere
    std::ofstream(folder.file("s.json")) << std::string(shift, ' ') << contents(folder.file("t.json"));
    ASSERT_EQ(read_trace(folder.file("s.json")).records.size(), data.records.size());
    shift += 12;
  }
}

TEST(TraceReaderFuzz, EveryCutIsAnError) {
  const std::string text = sample(1, 30);
  for (std::size_t length = 0; length + 2 < text.size(); length += test::kShare)
    ASSERT_NE(complaint(text.substr(0, length)), "") << "cut at " << length;
}

TEST(TraceReaderFuzz, MutatedFilesNeverCrash) {
  const std::uint64_t seed = 20'240'101;
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::string original = sample(2, 60);
  const std::string kAlphabet = "{}[]\",:\\0123456789.eE+-tfnu \n\x80\xFF";
  int accepted = 0;
  for (int round = 0; round < 6'000 / static_cast<int>(test::kShare); ++round) {
    std::string text = original;
    for (std::uint64_t change = 1 + random() % 4; change > 0; --change) {
      const std::size_t at = random() % text.size();
      const std::size_t length = std::min<std::size_t>(random() % 40, text.size() - at);
      switch (random() % 6) {
        case 0: text[at] = kAlphabet[random() % kAlphabet.size()]; break;
        case 1: text[at] = static_cast<char>(random()); break;
        case 2: text.erase(at, length); break;
        case 3: text.insert(at, text.substr(random() % text.size(), length)); break;
        case 4: text.insert(at, 1, kAlphabet[random() % kAlphabet.size()]); break;
        default: text.insert(at, std::to_string(random())); break;
      }
      if (text.empty()) text = " ";
    }
    try {
      const TraceData data = watch::parse_trace(text, "fuzz");
      ++accepted;  // whatever was read must be usable
      static_cast<void>(figures(data.spans()));
      static_cast<void>(data.edges().size() + data.streams().size());
      if (round % 16 == 0) write_trace(data, "/dev/null");
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kParse) << "seed " << seed << ", round " << round << ": " << error.what();
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace slip::test_trace_reader
