// Descriptions: valid ones, malformed ones with their error texts, and hostile ones.
#include <fmt/format.h>

#include <random>

#include "backend/sim/description.hpp"
#include "sim/support.hpp"

namespace slip::test::test_description {
namespace {

using sim::Dimension;
using sim::parse_quantity;

TEST(SimQuantity, ReadsExactly) {
  EXPECT_EQ(parse_quantity("55.4 GB/s", Dimension::kBytesPerSecond), 55'400'000'000u);
  EXPECT_EQ(parse_quantity("3.9 us", Dimension::kTime), 3'900'000u);
  EXPECT_EQ(parse_quantity("0.001 ns", Dimension::kTime), 1u);
  EXPECT_EQ(parse_quantity("16 GiB", Dimension::kBytes), std::uint64_t{16} << 30);
  EXPECT_EQ(parse_quantity("787 TFLOP/s", Dimension::kFlops), 787'000'000'000'000u);
  EXPECT_EQ(parse_quantity("0 ps", Dimension::kTime), 0u);
}

TEST(SimQuantity, RefusesWhatIsNotOne) {
  for (const char* text : {"",
                           " ",
                           "5",
                           "GB",
                           "5GB",
                           " 5 GB",
                           "5 GB ",
                           "-5 GB",
                           "+5 GB",
                           "5. GB",
                           ".5 GB",
                           "5..0 GB",
                           "1e3 GB",
                           "5 gb",
                           "5 GB/s",
                           "0.1 B",
                           "nan GB",
                           "inf GB",
                           "99999999999999999999 GB",
                           "999999999999999 PB"})
    EXPECT_FALSE(parse_quantity(text, Dimension::kBytes)) << text;
  EXPECT_FALSE(parse_quantity("0.0001 ns", Dimension::kTime));  // a tenth of a picosecond
}

TEST(SimQuantity, WritesWhatItReads) {
  for (const std::uint64_t value :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3'900'000}, std::uint64_t{1} << 40})
    EXPECT_EQ(parse_quantity(sim::write_quantity(value, Dimension::kTime), Dimension::kTime), value);
}

TEST(SimDescription, TheOnesInTheLibraryAreGood) {
  std::vector<std::string> names;
  for (const base::EmbeddedFile& file : sim::embedded_devices()) {
    SCOPED_TRACE(file.name);
    EXPECT_NO_THROW(sim::parse_description(file.text, file.name));
    names.emplace_back(file.name);
    Device device = Device::open(fmt::format("sim:{}", file.name));
    EXPECT_TRUE(device.info().virtual_time);
    EXPECT_FALSE(device.info().description.empty());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a100", "h200", "laptop"}));
}

TEST(SimDescription, MayBeGivenAsText) {
  Device device = Device::open("sim:" + exact_text({.queues = 3}));
  EXPECT_EQ(device.info().name, "sim:exact");
  EXPECT_EQ(device.info().queues, 3);
  try {
    Device::open(R"(sim:{"name": "a/b.json", "memory": "5 bananas"})");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kParse);
    EXPECT_NE(std::string(error.what()).find("description.memory is \"5 bananas\""), std::string::npos) << error.what();
  }
}

std::string error_of(const std::string& text) {
  try {
    sim::parse_description(text, "test.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kParse);
    return error.what();
  }
  return "no error";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(SimDescription, ErrorsNameFileFieldValueAndRange) {
  const std::string good = exact_text({.peers = R"({"form": "ring", "bandwidth": "1 GB/s"})"});
  EXPECT_EQ(error_of(good), "no error");
  const struct {
    const char *from, *to;
    std::vector<const char*> words;
  } cases[] = {
      {R"("1 GB")", R"("1 KB")", {"test.json.memory", "\"1 KB\"", "1 MB", "1 PB"}},
      {R"("1 GB")", "1000000000", {"test.json.memory", "1000000000", "141 GB"}},
      {R"("queues": 8)", R"("queues": 0)", {"test.json.queues", "is 0", "from 1 to 128"}},
      {R"("queues": 8)", R"("queues": 1e400)", {"test.json"}},
      {R"("queues": 8)", R"("queues": 8.5)", {"test.json.queues", "8.5"}},
      {R"("queues": 8)", R"("queues": 18446744073709551615)", {"test.json.queues", "18446744073709551615"}},
      {R"("queues": 8)", R"("queues": -9223372036854775808)", {"test.json.queues"}},
      {R"("queues": 8)", R"("queues": NaN)", {"test.json", "parse error"}},
      {R"("queues": 8)", R"("queues": 8, "queues": 8)", {"test.json.queues is there twice"}},
      {R"("queues": 8)", R"("queue": 8)", {"test.json", "queue", "no such field"}},
      {R"("name": "exact", )", "", {"test.json.name is missing"}},
      {R"("1 GFLOP/s")", R"("1 GB/s")", {"test.json.compute.flops", "TFLOP/s"}},
      {R"("in": "1 GB/s")", R"("in": "0 GB/s")", {"test.json.copies.in", "0 GB/s", "1 MB/s"}},
      {R"("in": "1 GB/s")", R"("in": "1 GB/s", "engines": 3)", {"copies.engines", "from 0 to 2"}},
      {R"("in": "1 GB/s")",
       R"("in": "1 GB/s", "kernel_slowdown_ppm": 1000000001)",
       {"copies.kernel_slowdown_ppm", "from 0 to 1000000000"}},
      {R"("record": "0 ps")", R"("query": "0 ps")", {"host.query", "1 ps"}},
      {R"("record": "0 ps")", R"("record": "2 s")", {"host.record", "1 s"}},
      {R"("form": "ring")", R"("form": "star")", {"peers.form", "star", "switch"}},
      {R"("form": "ring")", R"("form": "ring", "shared": 1)", {"peers.shared", "true or false"}},
      {R"({"name")", R"([{"name")", {"test.json", "parse error"}},
  };
  for (const auto& each : cases) {
    const std::string text = error_of(replaced(good, each.from, each.to));
    for (const char* word : each.words) EXPECT_NE(text.find(word), std::string::npos) << each.to << ": " << text;
  }
  EXPECT_NE(error_of("[]").find("an object"), std::string::npos);
  EXPECT_NE(error_of("").find("test.json"), std::string::npos);
}

TEST(SimDescription, ListedPathsAreChecked) {
  const auto with = [](const std::string& paths) {
    return error_of(exact_text({.peers = R"({"form": "links", "links": {"a": "1 GB/s"}, "paths": [)" + paths + "]}"}));
  };
  EXPECT_EQ(with(R"({"from": 0, "to": 1, "links": ["a"]})"), "no error");
  EXPECT_NE(with(R"({"from": 0, "to": 0, "links": ["a"]})").find("paths[0].to"), std::string::npos);
  EXPECT_NE(with(R"({"from": 0, "to": 4096, "links": ["a"]})").find("4095"), std::string::npos);
  EXPECT_NE(with(R"({"from": 0, "to": 1, "links": ["b"]})").find("\"b\""), std::string::npos);
  EXPECT_NE(with(R"({"from": 0, "to": 1, "links": ["a", "a"]})").find("already"), std::string::npos);
  EXPECT_NE(with(R"({"from": 0, "to": 1, "links": []})").find("at least one"), std::string::npos);
  EXPECT_NE(with(R"({"from": -1, "to": 1, "links": ["a"]})").find("from"), std::string::npos);
}

// A description made by code instead of text.
sim::Description typed() {
  return {.name = "typed",
          .memory = 1'000'000'000,
          .compute = {.flops = 1'000'000'000, .bandwidth = 1'000'000'000},
          .copies = {.in = 1'000'000'000, .out = 1'000'000'000}};
}

TEST(SimDescription, MayBeATypedValue) {
  sim::Description description = typed();
  description.queues = 3;
  const std::vector<Device> devices = sim::open_devices(description, 2, {.memory_limit = 1 << 20});
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[1].info().name, "sim:typed");
  EXPECT_EQ(devices[1].info().queues, 3);
  EXPECT_EQ(devices[1].info().memory_bytes, 1u << 20);
  EXPECT_EQ(devices[0].info().world, devices[1].info().world);
}

TEST(SimDescription, ErrorsOfTypedValuesNameFieldAndValue) {
  const auto error_with = [](auto change) -> std::string {
    sim::Description description = typed();
    change(description);
    try {
      sim::open_device(description);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidValue);
      return error.what();
    }
    return "no error";
  };
  const auto expect = [](const std::string& text, std::vector<const char*> words) {
    for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << word << ": " << text;
  };
  expect(error_with([](sim::Description&) {}), {"no error"});
  expect(error_with([](sim::Description& d) { d.copies.kernel_slowdown_ppm = 1'800'000'000; }),
         {"copies.kernel_slowdown_ppm", "1800000000", "from 0 to 1000000000"});
  expect(error_with([](sim::Description& d) { d.copies.in = 1; }), {"copies.in", "1 B/s", "1 MB/s"});
  expect(error_with([](sim::Description& d) { d.host.query = 0; }), {"host.query", "0 ps"});
  expect(error_with([](sim::Description& d) { d.compute.launch = -1; }), {"compute.launch", "-1 ps"});
  const auto with_route = [&](sim::PeerDescription::Route route) {
    return error_with([&](sim::Description& d) {
      d.peers = {.form = sim::PeerDescription::Form::kLinks, .links = {{"a", 1'000'000'000}}, .routes = {route}};
    });
  };
  expect(with_route({0, 1, 0, {"a"}}), {"no error"});
  expect(with_route({0, 0, 0, {"a"}}), {"peers.paths[0].to"});
  expect(with_route({0, 1, 0, {"b"}}), {"peers.paths[0].links", "\"b\""});
  expect(with_route({0, 1, 0, {"a", "a"}}), {"already"});
  expect(with_route({0, 1, 0, {}}), {"at least one"});
  expect(with_route({0, 4096, 0, {"a"}}), {"4095"});
}

TEST(SimDescription, HostileTextIsRefused) {
  EXPECT_NE(error_of(std::string(100'000, '[')).find("nested deeper"), std::string::npos);
  std::string nested;
  for (int i = 0; i < 50'000; ++i) nested += R"({"a":)";
  EXPECT_NE(error_of(nested).find("nested deeper"), std::string::npos);
  EXPECT_NE(error_of(std::string(2 << 20, ' ')).find("at most"), std::string::npos);
  EXPECT_NE(error_of(std::string("\0\xff\xfe{", 4)).find("test.json"), std::string::npos);
  EXPECT_NE(error_of(R"({"name": ")" + std::string(1000, 'x') + "\"}").find("at most 200"), std::string::npos);
  EXPECT_NE(error_of(R"({"name": ["\ud800"]})").find("test.json"), std::string::npos);
}

// Mutations of good descriptions: each is either read or refused with kParse, never anything else.
TEST(SimDescription, MutationsNeverCrash) {
  constexpr unsigned kSeed = 4711;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  std::mt19937 random(kSeed);
  std::vector<std::string> corpus;
  for (const base::EmbeddedFile& file : sim::embedded_devices()) corpus.emplace_back(file.text);
  corpus.push_back(exact_text({.peers = R"({"form": "links", "links": {"a": "1 GB/s", "b": "2 GB/s"}, "paths": [
    {"from": 0, "to": 1, "links": ["a", "b"]}, {"from": "host", "to": 1, "links": ["a"]}]})"}));
  const std::vector<std::string> pieces = {
      "{",          "}",        "[",       "]",       "\"",   ",",       ":",
      "null",       "true",     "-1",      "1e999",   "\"\"", "\\u0000", "18446744073709551616",
      "\"9 PB/s\"", "\"host\"", "{\"a\":", "\xc3\x28"};
  int good = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = corpus[random() % corpus.size()];
    for (unsigned change = 1 + random() % 4; change > 0; --change) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, 1 + random() % 20); break;
        case 2: text.insert(at, pieces[random() % pieces.size()]); break;
        default: text.insert(at, text.substr(random() % text.size(), random() % 40)); break;
      }
      if (text.empty()) text = "{";
    }
    try {
      sim::parse_description(text, "fuzz");
      ++good;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kParse) << text;
    }
  }
  EXPECT_GT(good, 0);
}

}  // namespace
}  // namespace slip::test::test_description
