// Costs as JSON. Reading is strict: each field must occur once, and each number must be in the range that a measurement
// can give.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "backend/sim/description.hpp"
#include "base/json_reader.hpp"
#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "slip/costs.hpp"
#include "store/file.hpp"

namespace slip {
namespace {

constexpr Picos kMax = Picos{1} << 62;

double slowdown_of(const CostSample& sample) {
  return sample.beside > 0 ? static_cast<double>(sample.beside) / static_cast<double>(sample.time) - 1 : 0;
}

class CostsReader {
 public:
  CostsReader(const std::string& path, JsonReader::Source source, Here here) : json_(path, std::move(source), here) {}

  Costs read() {
    Costs costs;
    object("the costs",
           {{"device", [&] { costs.device = name("device"); }},
            {"load", [&] { read_link(costs.load); }},
            {"unload", [&] { read_link(costs.unload); }},
            {"read", [&] { read_link(costs.read); }},
            {"kernel_slowdown", [&] { costs.kernel_slowdown = number("kernel_slowdown", sim::kMaxSlowdown); }},
            {"load_slowdown", [&] { costs.load_slowdown = number("load_slowdown", sim::kMaxSlowdown); }},
            {"samples", [&] { read_samples(costs.samples); }}});
    json_.finish();
    return costs;
  }

 private:
  struct Field {
    std::string_view key;
    std::function<void()> read;
    bool seen = false;
  };

  void object(const char* what, std::vector<Field> fields) {
    json_.begin_object();
    std::string_view key;
    while (json_.next_key(key)) {
      Field* found = nullptr;
      for (Field& field : fields) {
        if (field.key == key) found = &field;
      }
      if (!found || found->seen) json_.fail(fmt::format("'{}' in {} is not known or occurs twice", key, what));
      found->seen = true;
      found->read();
    }
    for (const Field& field : fields) {
      if (!field.seen) json_.fail(fmt::format("{} lack '{}'", what, field.key));
    }
  }

  void read_link(LinkCost& link) {
    object("a link", {{"bytes_per_second", [&] { link.bytes_per_second = number("bytes_per_second", 1e18); }},
                      {"latency_ps", [&] { link.latency = time("latency_ps", 0); }}});
  }

  void read_samples(std::vector<CostSample>& samples) {
    json_.begin_array();
    while (json_.next_item()) {
      CostSample sample;
      object("a sample", {{"kernel", [&] { sample.kernel = name("kernel"); }},
                          {"weight_bytes", [&] { sample.weight_bytes = json_.unsigned_number(); }},
                          {"flops", [&] { sample.flops = json_.unsigned_number(); }},
                          {"bytes", [&] { sample.bytes = json_.unsigned_number(); }},
                          {"time_ps", [&] { sample.time = time("time_ps", 1); }},
                          {"beside_ps", [&] { sample.beside = time("beside_ps", 0); }}});
      if (slowdown_of(sample) > sim::kMaxSlowdown)
        json_.fail(fmt::format("beside_ps is {} where time_ps is {}: at most {} times as long is expected",
                               sample.beside, sample.time, 1 + sim::kMaxSlowdown));
      samples.push_back(std::move(sample));
    }
  }

  // A text that is not UTF-8 could not be written again.
  std::string name(const char* what) {
    std::string text(json_.text());
    if (!is_utf8(text)) json_.fail(fmt::format("{} is a text that is not UTF-8", what));
    return text;
  }
  double number(const char* what, double max) {
    const double value = json_.real();
    if (!(value >= 0 && value <= max)) json_.fail(fmt::format("{} is {}: 0 to {} is expected", what, value, max));
    return value;
  }
  Picos time(const char* what, Picos min) {
    const Picos value = json_.signed_number();
    if (value < min || value > kMax) json_.fail(fmt::format("{} is {}: {} to {} is expected", what, value, min, kMax));
    return value;
  }

  JsonReader json_;
};

class CostsWriter {
 public:
  std::string write(const Costs& costs) {
    put("{{\n  \"device\": ");
    append_string(out_, costs.device);
    put_link("load", costs.load);
    put_link("unload", costs.unload);
    put_link("read", costs.read);
    put(",\n  \"kernel_slowdown\": {},\n  \"load_slowdown\": {},\n  \"samples\": [", costs.kernel_slowdown,
        costs.load_slowdown);
    const char* before = "\n    ";
    for (const CostSample& sample : costs.samples) {
      put("{}{{\"kernel\": ", before);
      append_string(out_, sample.kernel);
      put(", \"weight_bytes\": {}, \"flops\": {}, \"bytes\": {}, \"time_ps\": {}, \"beside_ps\": {}}}",
          sample.weight_bytes, sample.flops, sample.bytes, sample.time, sample.beside);
      before = ",\n    ";
    }
    put("\n  ]\n}}\n");
    return fmt::to_string(out_);
  }

 private:
  template <class... Values>
  void put(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }
  void put_link(const char* key, const LinkCost& link) {
    put(",\n  \"{}\": {{\"bytes_per_second\": {}, \"latency_ps\": {}}}", key, link.bytes_per_second, link.latency);
  }

  fmt::memory_buffer out_;
};

// Refuses values that reading would refuse: the program that writes them gets the error.
void require_writable(const Costs& costs, Here here) {
  for (const double value : {costs.load.bytes_per_second, costs.unload.bytes_per_second, costs.read.bytes_per_second,
                             costs.kernel_slowdown, costs.load_slowdown}) {
    if (!std::isfinite(value) || value < 0)
      throw Error(Code::kInvalidValue, fmt::format("costs with a rate or slowdown of {}: 0 or more is expected", value),
                  here);
  }
  double slowdown = std::max(costs.kernel_slowdown, costs.load_slowdown);
  for (const CostSample& sample : costs.samples) slowdown = std::max(slowdown, slowdown_of(sample));
  if (!(slowdown <= sim::kMaxSlowdown))
    throw Error(Code::kInvalidValue,
                fmt::format("costs with a slowdown of {}: at most {} is expected", slowdown, sim::kMaxSlowdown), here);
  bool texts = is_utf8(costs.device);
  for (const CostSample& sample : costs.samples) texts = texts && is_utf8(sample.kernel);
  if (!texts) throw Error(Code::kInvalidValue, "costs with the name of a device or kernel that is not UTF-8", here);
}

}  // namespace

Costs read_costs(const std::string& path, Here here) {
  const File file = File::open(path, here);
  std::uint64_t at = 0;
  return CostsReader(
             path,
             [&](char* into, std::size_t bytes) {
               const std::size_t count = std::min<std::uint64_t>(bytes, file.size() - at);
               if (count > 0) file.read(at, into, count, here);
               at += count;
               return count;
             },
             here)
      .read();
}

void write_costs(const Costs& costs, const std::string& path, Here here) {
  require_writable(costs, here);
  OutputFile file(path, here);
  file.write(CostsWriter().write(costs));
  file.finish();
}

}  // namespace slip
