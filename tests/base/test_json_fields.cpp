// The strict reader of JSON files: every error names the file, the path of the key, and what is expected.
#include <gtest/gtest.h>

#include <cmath>

#include "base/json_fields.hpp"
#include "support/errors.hpp"

namespace slip::test_json_fields {
namespace {

using base::Json;
using base::JsonFields;
using base::parse_json;
using test::fails;

constexpr std::size_t kMaxBytes = 1000;

// Reads one field of the object by `read`, then ends.
template <class Read>
testing::AssertionResult refused(const std::string& text, const Read& read,
                                 std::initializer_list<std::string_view> error) {
  return fails(
      [&] {
        const Json json = parse_json(text, "f.json", kMaxBytes);
        JsonFields fields(json, "f.json");
        read(fields);
        fields.finish();
      },
      ErrorCode::kParse, error);
}

TEST(JsonFields, ReadsEachTypeOnce) {
  const Json json =
      parse_json(R"({"text": "a", "whole": -3, "count": 7, "real": 0.5, "zero": -0e-5, "yes": true, "none": null,
                                   "texts": ["x", "y"], "numbers": [1, 2], "objects": [{"n": 1}, {"n": 2}]})",
                 "f.json", kMaxBytes);
  JsonFields fields(json, "f.json");
  EXPECT_EQ(fields.text("text"), "a");
  EXPECT_EQ(fields.integer("whole", -3, 0), -3);
  EXPECT_EQ(fields.number("count", 7), 7U);
  EXPECT_EQ(fields.real("real", 0.5, 1), 0.5);
  EXPECT_FALSE(std::signbit(fields.real("zero", 0, 1)));
  EXPECT_TRUE(fields.boolean("yes"));
  EXPECT_TRUE(fields.boolean("absent", true));
  EXPECT_FALSE(fields.has("none"));  // null: the same as an absent field
  EXPECT_EQ(fields.texts("texts"), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(fields.numbers("numbers"), (std::vector<std::uint64_t>{1, 2}));
  std::uint64_t sum = 0;
  for (JsonFields& one : fields.objects("objects")) sum += one.number("n"), one.finish();
  EXPECT_EQ(sum, 3U);
  fields.finish();
}

TEST(JsonFields, UnknownAndMissingKeysAreNamed) {
  EXPECT_TRUE(refused(R"({"a": 1, "b": {"c": 2}})", [](JsonFields& fields) { fields.number("a"), fields.has("d"); },
                      {"f.json.b is {\"c\":2}", "no such field is known; known are: a, d"}));
  EXPECT_TRUE(refused(R"({"b": {"c": 2, "e": 3}})", [](JsonFields& fields) { fields.object("b").number("d"); },
                      {"f.json.b.d is missing; present are: \"c, e\""}));
  EXPECT_TRUE(refused(R"({"l": [{"c": 1}, {"c": 1, "x": null}]})",
                      [](JsonFields& fields) {
                        for (JsonFields& one : fields.objects("l")) one.number("c"), one.finish();
                      },
                      {"f.json.l[1].x is null", "known are: c"}));
}

TEST(JsonFields, KeysThatAreThereTwiceAreNamed) {
  const auto twice = [](const std::string& text, const std::string& path) {
    return fails([&] { static_cast<void>(parse_json(text, "f.json", kMaxBytes)); }, ErrorCode::kParse,
                 {path + " is there twice", "each key of an object is expected once"});
  };
  EXPECT_TRUE(twice(R"({"a": 1, "a": 1})", "f.json.a"));
  EXPECT_TRUE(twice(R"({"a": {"b": [0, [], {}, {"c": 1, "d": [1], "c": 2}]}})", "f.json.a.b[3].c"));
  EXPECT_TRUE(twice(R"([[1, 2], {"x": {}}, {"x": {"y": "]}"}, "x": 1}])", "f.json[2].x"));
  EXPECT_TRUE(twice("{\"a\\n\": 1, \"a\\n\": 2}", R"(f.json."a\n")"));
  EXPECT_EQ(parse_json(R"([{"a": 1}, {"a": 1}, {"b": {"a": {"a": 1}}}])", "f.json", kMaxBytes).size(), 3U);
}

TEST(JsonFields, WrongTypesAndRangesAreNamed) {
  const auto number = [](JsonFields& fields) { fields.number("n", 9); };
  const auto integer = [](JsonFields& fields) { fields.integer("n", -9, 9); };
  const auto real = [](JsonFields& fields) { fields.real("n", 0, 9); };
  for (const char* value : {"\"1\"", "1.5", "-1", "10", "null", "true", "[]", "18446744073709551616", "1e3"}) {
    const std::string text = std::string("{\"n\": ") + value + "}";
    EXPECT_TRUE(refused(text, number, {"f.json.n is ", "a whole number from 0 to 9 is expected"})) << value;
  }
  for (const char* value : {"\"1\"", "1.5", "-10", "10", "9223372036854775808", "18446744073709551615"}) {
    const std::string text = std::string("{\"n\": ") + value + "}";
    EXPECT_TRUE(refused(text, integer, {"f.json.n is ", "a whole number from -9 to 9 is expected"})) << value;
  }
  for (const char* value : {"\"1\"", "9.01", "-0.01", "{}"}) {
    const std::string text = std::string("{\"n\": ") + value + "}";
    EXPECT_TRUE(refused(text, real, {"f.json.n is ", "a number from 0 to 9 is expected"})) << value;
  }
  EXPECT_TRUE(
      refused(R"({"n": 1})", [](JsonFields& fields) { fields.text("n"); }, {"f.json.n is 1", "a text of at most"}));
  EXPECT_TRUE(refused(R"({"n": "abc"})", [](JsonFields& fields) { fields.text("n", 2); },
                      {"f.json.n is \"abc\"", "at most 2 bytes"}));
  EXPECT_TRUE(
      refused(R"({"n": 1})", [](JsonFields& fields) { fields.boolean("n"); }, {"f.json.n is 1", "true or false"}));
  EXPECT_TRUE(refused(R"({"n": [1, 2]})", [](JsonFields& fields) { fields.numbers("n", 1); },
                      {"f.json.n is [1,2]", "at most 1 items"}));
  EXPECT_TRUE(refused(R"({"n": [1, 20]})", [](JsonFields& fields) { fields.numbers("n", 2, 9); },
                      {"f.json.n[1] is 20", "0 to 9"}));
  EXPECT_TRUE(
      refused(R"({"n": ["a", 1]})", [](JsonFields& fields) { fields.texts("n"); }, {"f.json.n[1] is 1", "a text"}));
  EXPECT_TRUE(
      refused(R"({"n": [{}, 1]})", [](JsonFields& fields) { fields.objects("n"); }, {"f.json.n[1] is 1", "an object"}));
  EXPECT_TRUE(refused("[1]", [](JsonFields&) {}, {"f.json is [1]", "an object"}));
}

TEST(JsonFields, TextsThatAreNoJsonAreRefused) {
  const auto no_json = [](const std::string& text, std::string_view error) {
    return fails([&] { static_cast<void>(parse_json(text, "f.json", kMaxBytes)); }, ErrorCode::kParse,
                 {"f.json", error});
  };
  EXPECT_TRUE(no_json("", "parse error"));
  EXPECT_TRUE(no_json("{\"a\": 1", "line 1"));
  EXPECT_TRUE(no_json("{} x", "line 1"));
  EXPECT_TRUE(no_json("{\"a\": 1e999}", "f.json:"));
  EXPECT_TRUE(no_json("{\"a\": \"\xff\"}", "UTF-8"));
  EXPECT_TRUE(no_json(std::string(17, '['), "nested deeper than 16"));
  EXPECT_TRUE(no_json(std::string(kMaxBytes + 1, ' '), "at most 1000"));
}

}  // namespace
}  // namespace slip::test_json_fields
