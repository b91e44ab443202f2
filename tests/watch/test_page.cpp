// The timeline page: its data, read back as the page's scripts read them.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "slip/analysis.hpp"
#include "slip/page.hpp"
#include "slip/slip.hpp"
#include "watch/page/page_data.hpp"
#include "watch/support.hpp"

namespace slip::test_page {
namespace {

using watch_test::contents;
using watch_test::Folder;

std::string from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char digit : text) {
    if (digit == '=') break;
    bits = bits << 6 | static_cast<std::uint32_t>(kDigits.find(digit));
    count += 6;
    if (count >= 8) bytes.push_back(static_cast<char>(bits >> (count -= 8) & 255));
  }
  return bytes;
}

std::vector<double> decoded(const nlohmann::json& place, const std::string& bytes) {
  const std::string type = place.at("type");
  const std::size_t at = place.at("at"), count = place.at("count");
  const double base = place.at("base"), scale = place.at("scale");
  std::vector<double> values(count, base);
  const auto read = [&](auto stored) {
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(&stored, bytes.data() + at + i * sizeof stored, sizeof stored);
      values[i] = base + scale * static_cast<double>(stored);
    }
  };
  EXPECT_EQ(at % 8, 0U);
  if (type == "u8") read(std::uint8_t{});
  else if (type == "u16") read(std::uint16_t{});
  else if (type == "u32") read(std::uint32_t{});
  else if (type == "f64") read(double{});
  else EXPECT_EQ(type, "same");
  return values;
}

// The parts of a page.
struct Page {
  std::string html, bytes;
  nlohmann::json json;

  explicit Page(const std::string& path) : html(contents(path)) {
    json = nlohmann::json::parse(block("slip-data"));
    bytes = from_base64(block("slip-columns"));
  }
  std::string block(const std::string& id) const {
    const std::size_t begin = html.find('>', html.find("id=\"" + id + "\"")) + 1;
    return html.substr(begin, html.find("</script>", begin) - begin);
  }
  std::vector<double> column(const std::string& key) const { return decoded(json.at("columns").at(key), bytes); }
  std::string text(const char* table, double number) const {
    return json.at(table).at(static_cast<std::size_t>(number));
  }
};

Page page_of(const TraceData& trace, const PageOptions& options = {}) {
  const Folder folder;
  write_page(trace, folder.file("page.html"), options);
  EXPECT_EQ(folder.names().size(), 1U) << "nothing but the page is left";
  return Page(folder.file("page.html"));
}

const Kernel kTouch{"touch", [](const Args&) {}};

// Two streams in virtual time that use one buffer, with or without the event that orders them.
TraceData two_streams(bool ordered) {
  const Device device = Device::open("sim:h200");
  const Stream a = device.stream(), b = device.stream();
  const Buffer shared = device.alloc(1024, MemoryKind::kDevice, "shared");
  Trace trace;
  a.launch(kTouch, {.writes = {shared}, .name = "load"}, {.bytes = 1 << 20, .flops = 77});
  if (ordered) b.wait(a.record());
  b.launch(kTouch, {.reads = {shared.slice(512, 64)}, .name = "add"});
  b.launch(kTouch, {.name = "add"});
  device.sync();
  trace.stop();
  return trace.data();
}

TraceRecord run_record(std::uint64_t stream, std::string_view name, Picos started, Picos ended) {
  TraceRecord record;
  record.kind = RecordKind::kRun;
  record.device = 1;
  record.stream = stream;
  record.name = name;
  record.started = started;
  record.ended = ended;
  return record;
}

// Ops as another tool records them: no submissions.
TraceData runs_only(std::vector<TraceRecord> records) {
  TraceData data;
  data.records = std::move(records);
  for (std::size_t i = 0; i < data.records.size(); ++i) data.records[i].sequence = data.records[i].position = i + 1;
  return data;
}

TEST(PageColumns, Base64) {
  const std::pair<const char*, const char*> known[] = {{"", ""},        {"f", "Zg=="},        {"fo", "Zm8="},
                                                       {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xFF\xFE\xFD", "//79"}};
  for (const auto& [bytes, text] : known) EXPECT_EQ(watch::base64(bytes), text);
}

TEST(PageColumns, NumbersComeBackInTheNarrowestForm) {
  const struct {
    const char* type;
    std::vector<std::int64_t> values;
  } cases[] = {{"same", {7, 7, 7}},
               {"same", {}},
               {"u8", {-5, 250, 0}},
               {"u16", {1'000'000, 1'000'256, 1'000'001}},
               {"u32", {-2'000'000'000, -1'999'999'999, 2'000'000'001}},
               {"u32", {0, 4'000'000'000'000, 1000}},  // nanoseconds
               {"u8", {0, 1'000'000'000'000}},
               {"f64", {0, 1, 4'000'000'000'001}},
               {"f64", {0, 1, 9'007'199'254'740'992}}};
  for (const auto& [type, values] : cases) {
    watch::Columns columns;
    columns.integers("x", values);
    const auto directory =
        nlohmann::json::parse("{" + std::string(columns.directory().data(), columns.directory().size()) + "}");
    EXPECT_EQ(directory.at("x").at("type"), type);
    EXPECT_EQ(decoded(directory.at("x"), columns.bytes()), std::vector<double>(values.begin(), values.end()));
  }
}

TEST(PageColumns, TimesThatMakeNoSenseAreKeptAsWellAsADoubleCan) {
  watch::Columns columns;
  columns.integers("x", {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()});
  const auto directory =
      nlohmann::json::parse("{" + std::string(columns.directory().data(), columns.directory().size()) + "}");
  const std::vector<double> values = decoded(directory.at("x"), columns.bytes());
  EXPECT_EQ(values.at(0), -9223372036854775808.0);
}

TEST(Page, HoldsEveryOpWithItsTimesPlaceCostAndRanges) {
  const TraceData trace = two_streams(true);
  const std::vector<TraceSpan> spans = trace.spans();
  const Analysis analysis = analyse(trace, spans);
  const Page page = page_of(trace, {.title = "a <title>"});
  EXPECT_EQ(page.json.at("title"), "a <title>");
  ASSERT_EQ(page.json.at("spans"), 3);
  const auto start = page.column("span.start"), duration = page.column("span.duration");
  EXPECT_EQ(start.at(0), 0) << "times count from the first start";
  for (std::size_t i = 0; i < 3; ++i) {  // in virtual time they ran in the order issued
    SCOPED_TRACE(i);
    EXPECT_EQ(page.text("names", page.column("span.name")[i]), spans[i].name);
    EXPECT_EQ(start[i], static_cast<double>(spans[i].started - spans[0].started));
    EXPECT_EQ(duration[i], static_cast<double>(spans[i].ended - spans[i].started));
    EXPECT_EQ(page.column("span.queued")[i], static_cast<double>(spans[i].queued - spans[0].started));
    EXPECT_EQ(page.column("span.slack")[i], static_cast<double>(analysis.slack[i]));
    EXPECT_EQ(page.text("causes", page.column("span.cause")[i]), start_cause_name(analysis.starts[i].cause));
    EXPECT_EQ(page.column("span.after")[i], analysis.starts[i].after == kNoSpan ? 0 : analysis.starts[i].after + 1);
    EXPECT_EQ(page.text("files", page.column("span.file")[i]), spans[i].file);
    EXPECT_EQ(page.column("span.line")[i], spans[i].line);
    EXPECT_EQ(page.column("span.position")[i], static_cast<double>(spans[i].position));
  }
  EXPECT_EQ(page.column("span.cost_flops"), (std::vector<double>{77, 0, 0}));
  EXPECT_EQ(page.column("span.reads"), (std::vector<double>{0, 1, 0}));
  EXPECT_EQ(page.column("span.writes"), (std::vector<double>{1, 0, 0}));
  EXPECT_EQ(page.column("range.offset"), (std::vector<double>{512, 0})) << "reads first, then writes";
  EXPECT_EQ(page.column("range.bytes"), (std::vector<double>{64, 1024}));
  EXPECT_EQ(page.json.at("buffers").at(static_cast<std::size_t>(page.column("range.buffer")[0]) - 1).at("name"),
            "shared");
  EXPECT_EQ(page.column("arrow.from"), std::vector<double>{0});
  EXPECT_EQ(page.column("arrow.to"), std::vector<double>{1});
  EXPECT_TRUE(page.json.at("findings").empty());
  const Figures expected = figures(spans);
  EXPECT_EQ(page.json.at("figures").at(0).at("total"), expected.total);
  EXPECT_EQ(page.json.at("figures").at(0).at("bound"), expected.bound);
}

TEST(Page, AFindingMarksItsOps) {
  const Page page = page_of(two_streams(false));
  ASSERT_EQ(page.json.at("findings").size(), 1U);
  const auto& finding = page.json.at("findings").at(0);
  EXPECT_EQ(finding.at("kind"), "race");
  EXPECT_NE(finding.at("detail").get<std::string>().find("Record an event after 'load'"), std::string::npos);
  std::vector<std::string> names;
  for (const std::size_t place : finding.at("spans"))
    names.push_back(page.text("names", page.column("span.name").at(place)));
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"add", "load"}));
}

TEST(Page, OpsWithoutSubmissionsNestTheLongerFirst) {
  const Page page = page_of(runs_only(
      {run_record(7, "inner", 1000, 2000), run_record(7, "outer", 1000, 9000), run_record(7, "later", 3000, 4000)}));
  std::vector<std::string> names;
  for (const double name : page.column("span.name")) names.push_back(page.text("names", name));
  EXPECT_EQ(names, (std::vector<std::string>{"outer", "inner", "later"}));
  EXPECT_EQ(page.column("span.submitted"), std::vector<double>(3, 0));
  EXPECT_EQ(page.column("span.duration"), (std::vector<double>{8000, 1000, 1000}));
}

// Ops that overlap in one stream cannot have followed each other: nothing is known about their order.
TEST(Page, OfAnotherProgramsTraceNoCauseIsClaimed) {
  TraceData trace = runs_only({run_record(7, "outer", 1000, 9000), run_record(7, "inner", 2000, 3000)});
  trace.foreign = true;
  const Page page = page_of(trace);
  EXPECT_EQ(page.json.at("foreign"), true);
  for (const double cause : page.column("span.cause")) EXPECT_EQ(page.text("causes", cause), "unknown");
  EXPECT_EQ(page.column("span.after"), std::vector<double>(2, 0));
  EXPECT_TRUE(page.column("critical").empty());
}

TEST(Page, PredictedOpsAreMatchedByStreamAndTheNthOfTheirName) {
  const TraceData measured = runs_only({run_record(3, "a", 100, 200), run_record(3, "b", 200, 400),
                                        run_record(3, "a", 400, 500), run_record(9, "a", 100, 150)});
  const TraceData prediction = runs_only({run_record(40, "a", 7000, 7090), run_record(40, "a", 7100, 7150),
                                          run_record(40, "other", 7200, 7250), run_record(41, "a", 7000, 7010)});
  const Page page = page_of(measured, {.prediction = &prediction});
  EXPECT_EQ(page.json.at("matched"), 3);
  std::map<std::string, double> predicted;  // by name and measured duration, which distinguish them
  const auto of = page.column("prediction.span");
  for (std::size_t row = 0; row < of.size(); ++row) {
    const auto place = static_cast<std::size_t>(of[row]);
    predicted[page.text("names", page.column("span.name")[place]) + " at " +
              std::to_string(static_cast<int>(page.column("span.start")[place])) + " stream " +
              page.json.at("streams").at(static_cast<std::size_t>(page.column("span.stream")[place])).at("id").dump()] =
        page.column("prediction.start")[row] * 1000 + page.column("prediction.duration")[row];
  }
  const std::map<std::string, double> expected = {
      {"a at 0 stream 3", 90}, {"a at 300 stream 3", 100'050}, {"a at 0 stream 9", 10}};
  EXPECT_EQ(predicted, expected);
}

// The run on the cpu has one stream more than the prediction, and other ids: streams are matched by name.
TEST(Page, PredictionsAreMatchedByTheNamesOfStreams) {
  const auto named = [](std::uint64_t stream, std::string_view name) {
    TraceRecord record;
    record.kind = RecordKind::kStreamOpen;
    record.device = 1;
    record.stream = stream;
    record.name = name;
    return record;
  };
  const TraceData measured =
      runs_only({named(3, "free places"), named(4, "compute"), named(9, "loads"), run_record(3, "write", 0, 1),
                 run_record(4, "add", 10, 20), run_record(9, "load", 0, 10), run_record(12, "other", 1, 2)});
  const TraceData prediction =
      runs_only({named(1, "loads"), named(2, "compute"), named(3, "stream 3"), run_record(1, "load", 0, 8),
                 run_record(2, "add", 8, 30), run_record(3, "other", 1, 2)});
  const Page page = page_of(measured, {.prediction = &prediction});
  EXPECT_EQ(page.json.at("matched"), 3);
  const auto of = page.column("prediction.span"), names = page.column("span.name");
  const auto lengths = page.column("prediction.duration");
  ASSERT_EQ(of.size(), 3U);
  for (std::size_t row = 0; row < of.size(); ++row) {
    const std::string name = page.text("names", names[static_cast<std::size_t>(of[row])]);
    EXPECT_EQ(lengths[row], name == "load" ? 8 : name == "add" ? 22 : 1) << name;
  }
}

TEST(Page, NamesCannotLeaveTheirElement) {
  const std::string_view names[] = {"</script><script>alert(1)</script>",
                                    "<!--<script>",
                                    "<img src=x onerror=alert(1)>",
                                    "\xFF\xFE not UTF-8",
                                    "quote \" back \\ line\n",
                                    "\xE2\x80\xA8"};
  std::vector<TraceRecord> records;
  for (const std::string_view name : names)
    records.push_back(
        run_record(1, name, static_cast<Picos>(records.size()) * 10, static_cast<Picos>(records.size()) * 10 + 5));
  const Page page = page_of(runs_only(records), {.title = "</title><script>alert(1)</script>"});
  EXPECT_EQ(page.block("slip-data").find('<'), std::string::npos);
  for (std::size_t i = 0; i < std::size(names); ++i) {
    const std::string shown = page.text("names", page.column("span.name").at(i));
    EXPECT_EQ(shown, i == 3 ? "\xEF\xBF\xBD\xEF\xBF\xBD not UTF-8" : names[i]);
  }
  // As many scripts as there are files, and the two blocks of data.
  std::size_t scripts = 0;
  for (std::size_t at = 0; (at = page.html.find("<script", at)) != std::string::npos; ++at) ++scripts;
  EXPECT_EQ(scripts, watch::embedded_page().size() - 2 + 2) << "all files but page.html and style.css are scripts";
}

// A script that ended its own element would be cut there.
TEST(Page, ItsOwnFilesFitIntoTheirElements) {
  ASSERT_GT(watch::embedded_page().size(), 2U);
  for (const base::EmbeddedFile& file : watch::embedded_page()) {
    EXPECT_EQ(file.sha256.size(), 64U);
    if (file.name == "page") continue;
    for (const char* end : {"</script", "<!--", "</style"})
      EXPECT_EQ(file.text.find(end), std::string_view::npos) << file.name << " has " << end;
  }
}

TEST(Page, AnEmptyTraceIsAPageToo) {
  const Page page = page_of(TraceData{});
  EXPECT_EQ(page.json.at("spans"), 0);
  EXPECT_TRUE(page.column("span.start").empty());
}

TEST(Page, APathThatCannotBeWrittenIsSaid) {
  const Folder folder;
  const std::string path = folder.file("no/such/folder.html");
  try {
    write_page(TraceData{}, path);
    FAIL() << "it cannot be written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace slip::test_page
