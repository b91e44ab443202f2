// Trace files: valid JSON, exact times, and the same data when read back.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <nlohmann/json.hpp>

#include "support.hpp"
#include "watch/trace/trace_reader.hpp"

namespace slip::test_trace_file {
namespace {

using watch_test::contents;
using watch_test::expect_same;
using watch_test::Folder;
using watch_test::Generator;

std::string text_of(const Trace& trace) {
  const Folder folder;
  trace.write(folder.file("t.json"));
  return contents(folder.file("t.json"));
}

TEST(TraceFile, RoundTripIsExact) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Folder folder;
    Trace trace;
    Generator(seed, seed % 2 ? 0 : 123'456'789'012'345'678).send(trace, 500);  // virtual time, and a machine's clock
    trace.write(folder.file("t.json"));
    expect_same(trace.data(), read_trace(folder.file("t.json")));
    if (HasFailure()) return;
  }
}

TEST(TraceFile, EmptyTrace) {
  const Trace trace;
  const TraceData data = watch::parse_trace(text_of(trace), "empty");
  EXPECT_TRUE(data.records.empty());
  EXPECT_TRUE(data.spans().empty());
}

TEST(TraceFile, IsValidJsonWithEveryFieldThatViewersNeed) {
  Trace trace;
  Generator(3).send(trace, 400);
  const nlohmann::json json = nlohmann::json::parse(text_of(trace));
  ASSERT_TRUE(json["traceEvents"].is_array());
  std::size_t spans = 0;
  for (const auto& event : json["traceEvents"]) {
    ASSERT_TRUE(event["ph"].is_string());
    ASSERT_TRUE(event["pid"].is_number_unsigned());
    ASSERT_TRUE(event["tid"].is_number_unsigned());
    ASSERT_TRUE(event["name"].is_string());
    const std::string phase = event["ph"];
    ASSERT_TRUE(phase == "M" || event["ts"].is_number());
    ASSERT_TRUE((phase != "s" && phase != "f") || event["id"].is_number());
    if (phase != "X" || event["pid"] == 0) continue;
    ++spans;
    ASSERT_TRUE(event["dur"].is_number());
    for (const char* key : {"position", "seq"}) ASSERT_TRUE(event["args"].contains(key)) << key;
  }
  EXPECT_GT(spans, 100U);
  EXPECT_EQ(text_of(trace).rfind("{\"traceEvents\":[", 0), 0U);  // Perfetto stops at a key that it does not know
}

TEST(TraceFile, TimesAreExactDecimals) {
  Trace trace;
  trace.on({.kind = RecordKind::kRun,
            .device = 1,
            .stream = 1,
            .position = 1,
            .thread = 1,
            .started = 1,
            .ended = 1'000'002});
  const std::string text = text_of(trace);
  EXPECT_NE(text.find("\"ts\":0.000001,\"dur\":1.000001,"), std::string::npos) << text;
}

// Clocks that start with the machine are shifted, so that viewers, which count in doubles, stay exact.
TEST(TraceFile, LateClocksStartAtZeroTogether) {
  Trace trace;
  const Picos boot = 86'400'000'000'000'001;
  for (std::uint32_t device = 1; device <= 2; ++device)
    trace.on({.kind = RecordKind::kRun,
              .device = device,
              .stream = device,
              .position = 1,
              .thread = 1,
              .started = boot + device * 10,
              .ended = boot + device * 10 + 5});
  trace.on(
      {.kind = RecordKind::kRun, .device = 3, .stream = 3, .position = 1, .thread = 1, .started = 70, .ended = 80});
  const std::string text = text_of(trace);
  EXPECT_NE(text.find("\"tid\":1,\"ts\":0.000000,"), std::string::npos) << text;
  EXPECT_NE(text.find("\"tid\":2,\"ts\":0.000010,"), std::string::npos);
  EXPECT_NE(text.find("\"tid\":3,\"ts\":0.000070,"), std::string::npos);  // virtual time as it is
  expect_same(trace.data(), watch::parse_trace(text, "t"));
}

TEST(TraceFile, ArrowsGoFromTheLastOpCoveredToTheFirstOpHeld) {
  Trace trace;
  const Op op{.engine = Engine::kCompute};
  const auto both = [&](std::uint64_t stream, std::uint64_t position, Picos started) {
    trace.on(
        {.kind = RecordKind::kSubmit, .device = 1, .stream = stream, .position = position, .thread = 1, .op = &op});
    trace.on({.kind = RecordKind::kRun,
              .device = 1,
              .stream = stream,
              .position = position,
              .thread = 2,
              .started = started,
              .ended = started + 1'000'000});
  };
  both(1, 1, 0);
  both(1, 2, 2'000'000);
  both(2, 1, 0);
  trace.on({.kind = RecordKind::kEventWait,
            .device = 1,
            .stream = 2,
            .position = 1,
            .other_stream = 1,
            .other_position = 1,
            .thread = 1});
  both(2, 2, 5'000'000);
  const nlohmann::json json = nlohmann::json::parse(text_of(trace));
  std::map<std::string, nlohmann::json> ends;
  for (const auto& event : json["traceEvents"]) {
    if (event.value("cat", "") == "edge") ends[event["ph"]] = event;
  }
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends["s"]["tid"], 1);
  EXPECT_EQ(ends["s"]["ts"], 0.999);  // inside op 1 of stream 1
  EXPECT_EQ(ends["f"]["tid"], 2);
  EXPECT_EQ(ends["f"]["ts"], 5.0);
  EXPECT_EQ(ends["f"]["bp"], "e");
  EXPECT_EQ(ends["s"]["id"], ends["f"]["id"]);
}

TEST(TraceFile, StringsSurviveAndBadUtf8IsReplaced) {
  const std::pair<std::string, std::string> kCases[] = {
      {"plain", "plain"},
      {"quote \" back \\ slash / newline \n tab \t cr \r bell \x07 del \x7F",
       "quote \" back \\ slash / newline \n tab \t cr \r bell \x07 del \x7F"},
      {std::string("zero \0 inside", 13), std::string("zero \0 inside", 13)},
      {"\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x9A\x80", "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x9A\x80"},
      {"cut \xE2\x82", "cut \xEF\xBF\xBD\xEF\xBF\xBD"},
      {"overlong \xC0\xAF", "overlong \xEF\xBF\xBD\xEF\xBF\xBD"},
      {"surrogate \xED\xA0\x80.", "surrogate \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD."},
      {"\xFF\xFE latin \xE9t\xE9", "\xEF\xBF\xBD\xEF\xBF\xBD latin \xEF\xBF\xBDt\xEF\xBF\xBD"},
      {"</script><img src=x onerror=alert(1)>", "</script><img src=x onerror=alert(1)>"},
  };
  for (const auto& [name, expected] : kCases) {
    Trace trace;
    trace.on({.kind = RecordKind::kRun, .device = 1, .stream = 1, .position = 1, .thread = 1, .name = Name(name)});
    trace.on({.kind = RecordKind::kStreamOpen, .device = 1, .stream = 1, .thread = 1, .name = Name(name)});
    const std::string text = text_of(trace);
    ASSERT_TRUE(nlohmann::json::accept(text)) << text;
    const TraceData data = watch::parse_trace(text, "t");
    EXPECT_EQ(data.spans()[0].name, expected);
    EXPECT_EQ(data.streams()[0].name, expected);
  }
}

TEST(TraceFile, ReadsWhatAnotherToolReformatted) {
  Trace trace;
  Generator(5).send(trace, 200);
  const std::string text = text_of(trace);
  const auto json = nlohmann::ordered_json::parse(text);
  expect_same(trace.data(), watch::parse_trace(json.dump(2), "indented"));  // times as doubles, some with exponents
  expect_same(trace.data(), watch::parse_trace(nlohmann::json::parse(text).dump(-1, ' ', true), "sorted, ASCII"));
}

// --- when it cannot be written ---

ErrorCode code_of(const std::function<void()>& call, std::string& message) {
  try {
    call();
  } catch (const Error& error) {
    message = error.what();
    return error.code();
  }
  return ErrorCode::kOk;
}

TEST(TraceWriteErrors, FullDisk) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  const Folder folder;
  std::filesystem::create_symlink("/dev/full", folder.file("full.json"));
  Trace trace;
  std::string message;
  EXPECT_EQ(code_of([&] { trace.write(folder.file("full.json")); }, message), ErrorCode::kIo);
  EXPECT_NE(message.find(folder.file("full.json")), std::string::npos) << message;
  EXPECT_NE(message.find("No space left"), std::string::npos) << message;
}

// A disk that fills up half way: the file that was there stays, nothing else is left.
TEST(TraceWriteErrors, FileTooLargeLeavesWhatWasThere) {
  const Folder folder;
  const std::string path = folder.file("t.json");
  std::ofstream(path) << "old";
  Trace trace;
  Generator(1).send(trace, 20'000);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{std::size_t{1} << 20, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  const ErrorCode code = code_of([&] { trace.write(path); }, message);
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(code, ErrorCode::kIo);
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(folder.names().size(), 1U);
}

TEST(TraceWriteErrors, FolderThatIsNotThere) {
  const Folder folder;
  Trace trace;
  std::string message;
  EXPECT_EQ(code_of([&] { trace.write(folder.file("no/such/t.json")); }, message), ErrorCode::kIo);
  EXPECT_NE(message.find("No such file or directory"), std::string::npos) << message;
  EXPECT_EQ(code_of([&] { trace.write("/dev/null/t.json"); }, message), ErrorCode::kIo);
  EXPECT_NE(message.find("Not a directory"), std::string::npos) << message;
  EXPECT_EQ(code_of([&] { trace.write(folder.file("")); }, message), ErrorCode::kIo);
  EXPECT_EQ(code_of([&] { trace.write(""); }, message), ErrorCode::kIo);
  std::filesystem::create_directory(folder.file("dir"));
  EXPECT_EQ(code_of([&] { trace.write(folder.file("dir")); }, message), ErrorCode::kIo);
  EXPECT_NE(message.find("Is a directory"), std::string::npos) << message;
}

TEST(TraceWriteErrors, FolderWithoutPermission) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  const Folder folder;
  std::filesystem::create_directory(folder.file("dir"));
  ::chmod(folder.file("dir").c_str(), 0500);
  Trace trace;
  std::string message;
  EXPECT_EQ(code_of([&] { trace.write(folder.file("dir/t.json")); }, message), ErrorCode::kIo);
  EXPECT_NE(message.find("Permission denied"), std::string::npos) << message;
}

TEST(TraceWriteErrors, DevicesAreWrittenNotReplaced) {
  Trace trace;
  trace.write("/dev/null");
  struct stat status {};
  ASSERT_EQ(::stat("/dev/null", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
}

TEST(TraceWriteErrors, LinkToAFileStaysALink) {
  const Folder folder;
  std::ofstream(folder.file("real.json")) << "old";
  std::filesystem::create_symlink("real.json", folder.file("link.json"));
  Trace trace;
  trace.write(folder.file("link.json"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link.json")));
  EXPECT_TRUE(read_trace(folder.file("real.json")).records.empty());
  EXPECT_EQ(folder.names().size(), 2U);
}

}  // namespace
}  // namespace slip::test_trace_file
