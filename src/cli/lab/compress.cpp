// Lab compress: how much information the bits of weights have, how small the codec makes them, and where that pays.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "base/small_floats.hpp"
#include "cli/commands.hpp"
#include "cli/lab/bench.hpp"
#include "model/codec/kernel.hpp"
#include "slip/tensors.hpp"

namespace slip::cli {
namespace {

using model::BlockTable;
using model::Split;

// Some weights of a tensor, or of tensors of the same kind.
struct Sample {
  std::string name;
  DataType type = DataType::kBF16;
  std::uint64_t tensor_bytes = 0;  // of all these tensors; the sample may have fewer
  std::vector<std::byte> weights;
};

// Widths in bits. From the highest bit: the sign, the exponent, the mantissa.
struct FieldBits {
  int exponent = 8, mantissa = 7;
};
FieldBits fields_of(DataType type) {
  return type == DataType::kBF16 ? FieldBits{8, 7} : type == DataType::kF16 ? FieldBits{5, 10} : FieldBits{8, 23};
}

double entropy(const std::vector<std::uint64_t>& counts, std::uint64_t total) {
  double bits = 0;
  for (const std::uint64_t count : counts) {
    if (count == 0 || count == total) continue;
    const double share = static_cast<double>(count) / static_cast<double>(total);
    bits -= share * std::log2(share);
  }
  return bits;
}

// Counts the values of `width` bits at `shift`. At most 8 bits: more would need more weights than a sample has.
std::vector<std::uint64_t> count_field(const Sample& sample, int shift, int width) {
  const std::size_t size = bytes_of(sample.type);
  std::vector<std::uint64_t> counts(std::size_t{1} << width);
  for (std::size_t at = 0; at + size <= sample.weights.size(); at += size) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, sample.weights.data() + at, size);
    ++counts[bits >> shift & ((1U << width) - 1)];
  }
  return counts;
}

struct Entropy {
  double sign = 0, exponent = 0, mantissa = 0;
  double bits() const { return sign + exponent + mantissa; }
};

Entropy entropy_of(const Sample& sample) {
  const FieldBits fields = fields_of(sample.type);
  const std::uint64_t total = sample.weights.size() / bytes_of(sample.type);
  const auto of = [&](int shift, int width) { return entropy(count_field(sample, shift, width), total); };
  Entropy result{of(fields.exponent + fields.mantissa, 1), of(fields.mantissa, fields.exponent), 0};
  for (int shift = 0; shift < fields.mantissa; shift += 8)
    result.mantissa += of(shift, std::min(8, fields.mantissa - shift));
  return result;
}

// --- Where weights come from ---

std::vector<std::byte> make_weights(DataType type, std::size_t count, unsigned seed, float mean, float deviation) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<std::byte> result(count * bytes_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    const float value = normal(random);
    const std::uint16_t half =
        type == DataType::kF16 ? base::from_float<base::F16>(value).bits : base::from_float<base::Bf16>(value).bits;
    if (type == DataType::kF32) std::memcpy(result.data() + 4 * i, &value, 4);
    else std::memcpy(result.data() + 2 * i, &half, 2);
  }
  return result;
}

std::vector<Sample> made_samples(std::size_t count) {
  std::vector<Sample> samples;
  const auto add = [&](const char* name, DataType type, std::vector<std::byte> weights) {
    samples.push_back({name, type, weights.size(), std::move(weights)});
  };
  for (const DataType type : {DataType::kBF16, DataType::kF16, DataType::kF32})
    add("N(0, 0.02)", type, make_weights(type, count, 1, 0, 0.02F));
  add("N(1, 0.05), as of a norm", DataType::kBF16, make_weights(DataType::kBF16, count, 2, 1, 0.05F));
  add("zeros", DataType::kBF16, std::vector<std::byte>(count * 2));
  std::vector<std::byte> noise(count * 2);
  std::mt19937 random(3);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
  add("random bits", DataType::kBF16, std::move(noise));
  return samples;
}

// "blocks.12.up.weight" and "blocks.3.up.weight" are of the same kind: "blocks.N.up.weight".
std::string kind_of(const std::string& name) {
  std::string result;
  for (const char letter : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(letter)) != 0;
    if (!digit) result += letter;
    else if (result.empty() || result.back() != 'N') result += 'N';
  }
  return result;
}

// Up to `blocks` blocks of each tensor, evenly spread.
std::vector<Sample> model_samples(const std::string& path, std::size_t blocks) {
  const TensorFiles files = TensorFiles::open(path);
  std::map<std::pair<std::string, DataType>, Sample> kinds;
  for (const TensorInfo& tensor : files.tensors()) {
    if (model::split_of(tensor.type) == Split::kBytes || tensor.bytes == 0) continue;
    Sample& sample = kinds[{kind_of(tensor.name), tensor.type}];
    sample.name = kind_of(tensor.name);
    sample.type = tensor.type;
    sample.tensor_bytes += tensor.bytes;
    const std::uint64_t block = 8192 * bytes_of(tensor.type), count = (tensor.bytes + block - 1) / block;
    const std::uint64_t step = std::max<std::uint64_t>(1, count / blocks);
    for (std::uint64_t i = 0; i < count; i += step) {
      const std::uint64_t bytes = std::min(block, tensor.bytes - i * block);
      const std::size_t at = sample.weights.size();
      sample.weights.resize(at + bytes);
      files.read(tensor, i * block, sample.weights.data() + at, bytes);
    }
  }
  std::vector<Sample> samples;
  for (auto& [kind, sample] : kinds) samples.push_back(std::move(sample));
  std::ranges::sort(samples, std::greater(), &Sample::tensor_bytes);
  if (samples.empty()) throw UsageError("'" + path + "' has no weights of bf16, f16 or f32");
  return samples;
}

// --- The tables ---

struct Compressed {
  const Sample* sample = nullptr;
  BlockTable table;
  model::EncodedBlocks blocks;
  double ratio() const { return static_cast<double>(table.weights_bytes()) / static_cast<double>(table.bytes()); }
};

Compressed compress(const Sample& sample) {
  Compressed result{
      &sample, BlockTable(model::split_of(sample.type), sample.weights.size() / bytes_of(sample.type)), {}};
  result.blocks = model::encode_blocks(result.table, 0, result.table.blocks(), sample.weights);
  return result;
}

Cell real(double value, const char* format) { return {fmt::format(fmt::runtime(format), value), value}; }

Table fields_table(const std::vector<Compressed>& all) {
  Table table("bits of information in a weight, by field; and what the codec makes of it",
              {"weights=name", "type", "bytes", "sign=sign_bits", "exponent=exponent_bits", "mantissa=mantissa_bits",
               "bound=bound", "ratio=ratio", "raw blocks=raw_blocks"});
  for (const Compressed& one : all) {
    const Entropy bits = entropy_of(*one.sample);
    const double width = 8.0 * static_cast<double>(bytes_of(one.sample->type));
    std::size_t raw = 0;
    for (std::size_t i = 0; i < one.table.blocks(); ++i) raw += one.table.is_raw(i) ? 1 : 0;
    table.row({word(one.sample->name), word(data_type_name(one.sample->type)), bytes(one.sample->tensor_bytes),
               real(bits.sign, "{:.2f}"), real(bits.exponent, "{:.2f}"), real(bits.mantissa, "{:.2f}"),
               bits.bits() > 0.01 ? times(width / bits.bits()) : none(), real(one.ratio(), "{:.3f}x"), number(raw)});
  }
  return table;
}

// Codes of `width` bits, one of which is an escape; an escape costs four more bits, and eight more if 15 further
// exponents do not suffice.
Table layouts_table(const Sample& sample) {
  const FieldBits fields = fields_of(sample.type);
  std::vector<std::uint64_t> counts = count_field(sample, fields.mantissa, fields.exponent);
  const std::size_t weights = sample.weights.size() / bytes_of(sample.type);
  const auto total = static_cast<double>(weights);
  const double bits = entropy(counts, weights);
  std::ranges::sort(counts, std::greater());
  const double others = 8.0 * static_cast<double>(bytes_of(sample.type)) - fields.exponent;
  Table table(fmt::format("codes for the exponents of {} {}", sample.name, data_type_name(sample.type)),
              {"code", "escapes=escapes_percent", "bits of an exponent=exponent_bits", "ratio"});
  const auto ratio = [&](double exponent) { return (others + fields.exponent) / (others + exponent); };
  const auto left_after = [&](std::size_t named) {
    double left = total;
    for (std::size_t i = 0; i < std::min(named, counts.size()); ++i) left -= static_cast<double>(counts[i]);
    return left / total;
  };
  for (const unsigned width : {2U, 3U, 4U}) {
    const std::size_t named = (std::size_t{1} << width) - 1;
    const double escapes = left_after(named), far = left_after(named + 15);
    const double exponent = width + 4 * escapes + 8 * far;
    table.row({word(fmt::format("{} bits{}", width, width == 3 ? ", the codec's" : "")), percent(100 * escapes),
               real(exponent, "{:.2f}"), real(ratio(exponent), "{:.3f}x")});
  }
  table.row({word("any length (entropy)"), none(), real(bits, "{:.2f}"), real(ratio(bits), "{:.3f}x")});
  return table;
}

struct Rates {
  double ratio = 1;
  double link = 0, decode = 0;  // bytes of uncompressed weights per second
  bool ok = false;              // the decoded weights equal the original ones
  // How many times as many weights per second arrive over a link of this rate if they are compressed.
  double gain(double of_link) const { return std::min(of_link * ratio, decode) / of_link; }
};

double rate_of(std::uint64_t bytes, Picos time) {
  return static_cast<double>(bytes) * 1e12 / static_cast<double>(time);
}

// Copies the weights, and decodes their blocks on the device.
Rates measure(const Bench& bench, const Compressed& of) {
  const Device device = bench.open();
  const Stream stream = device.stream();
  const std::uint64_t size = of.table.weights_bytes();
  // The blocks of a few weights, and the report, may be larger than the weights.
  const std::uint64_t largest = std::max({size, of.blocks.size(), of.table.blocks() * 8, sizeof(std::uint64_t)});
  Buffer pinned = device.alloc(largest, MemoryKind::kPinned, "pinned");
  const auto upload = [&](const void* from, std::size_t count, const char* name) {
    Buffer memory = device.alloc(count, MemoryKind::kDevice, name);
    {
      const auto view = pinned.host_write<std::byte>();
      std::copy_n(static_cast<const std::byte*>(from), count, view.begin());
    }
    device.copy(memory, pinned.slice(0, count));
    return memory;
  };
  const Buffer blocks = upload(of.blocks.data(), of.blocks.size(), "blocks");
  const Buffer checksums = upload(of.table.checksums().data(), of.table.blocks() * 8, "checksums");
  const Buffer ends = upload(of.table.ends().data(), of.table.blocks() * 4, "ends");
  const std::uint64_t none = 0;
  const Buffer report = upload(&none, sizeof none, "report");
  const Buffer weights = device.alloc(size, MemoryKind::kDevice, "weights");
  const std::vector<Scalar> scalars = model::DecompressSizes::of(of.table).scalars();
  Rates rates{.ratio = of.ratio()};
  rates.link = rate_of(
      size, bench.measure(device, {stream}, [&] { stream.copy(weights, pinned.slice(0, size)); }).figures.total);
  const auto decode = [&] {
    stream.launch(model::decompress_kernel(), {{blocks, checksums, ends}, {weights, report}, scalars},
                  {.bytes = of.table.bytes() + size});
  };
  rates.decode = rate_of(size, bench.measure(device, {stream}, decode).figures.total);
  device.copy(pinned.slice(0, size), weights);
  {
    const auto view = pinned.host_read<std::byte>(0, size);
    rates.ok = std::equal(view.begin(), view.end(), of.sample->weights.begin());
  }
  device.copy(pinned.slice(0, sizeof none), report);
  rates.ok = rates.ok && pinned.host_read<std::uint64_t>(0, sizeof none)[0] == 0;
  return rates;
}

constexpr std::pair<const char*, double> kLinks[] = {
    {"a disk of 3.5 GB/s", 3.5e9}, {"PCIe 3.0 x16", 12.5e9}, {"PCIe 4.0 x16", 25e9},
    {"PCIe 5.0 x16", 55e9},        {"NVLink-C2C", 400e9},    {"device memory of 4.8 TB/s", 4.8e12}};

Table links_table(const Rates& rates, std::size_t& paying) {
  Table table("where it pays: weights per second over a link, with this device's decoder",
              {"link", "as they are=raw_rate", "compressed=compressed_rate", "gain", "it pays=pays"});
  const auto row = [&](std::string name, double link) {
    const double gain = rates.gain(link);
    paying += gain > 1.02 ? 1 : 0;
    table.row({word(std::move(name)), rate(link), rate(link * gain), times(gain), yes_no(gain > 1.02)});
  };
  row("this device's", rates.link);
  for (const auto& [name, link] : kLinks) row(name, link);
  return table;
}

}  // namespace

void lab_compress(const Bench& bench, Report& report) {
  const std::string& path = bench.options().model;
  report.ask(
      "How many bytes do weights need? The exponents of weights repeat: most are among a few. The codec gives the "
      "seven most frequent exponents of a block codes of 3 bits, and keeps all other bits as they are. Look at "
      "`exponent`, the bits of information in that field, at `bound`, which no code of single fields can exceed, and "
      "at `ratio`. Then a link moves compressed weights, and the device decodes them while the next ones come: the "
      "slower of the two decides.");
  const std::size_t blocks = bench.quick() ? 16 : 256;
  const std::vector<Sample> samples = path.empty() ? made_samples(blocks * 8192) : model_samples(path, blocks / 8);
  std::vector<Compressed> all;
  for (const Sample& sample : samples) all.push_back(compress(sample));
  report.show(fields_table(all));
  report.show(layouts_table(samples.front()));
  const Rates rates = measure(bench, all.front());
  std::size_t paying = 0;
  report.show(links_table(rates, paying));
  double original = 0, compressed = 0;
  for (const Compressed& one : all) {
    original += static_cast<double>(one.sample->tensor_bytes);
    compressed += static_cast<double>(one.sample->tensor_bytes) / one.ratio();
  }
  report.conclude(fmt::format(
      "{} {} become {:.3f} times smaller{}. This device decodes {}, and the bits are {}. Compression pays where the "
      "decoder is faster than the link: on {} of {} links, and over this device's own link by {}.",
      samples.front().name, data_type_name(samples.front().type), all.front().ratio(),
      path.empty() ? "" : fmt::format(", the whole model {:.3f} times", original / compressed),
      base::format_rate(rates.decode), rates.ok ? "the same" : "WRONG", paying, std::size(kLinks) + 1,
      base::format_times(rates.gain(rates.link))));
}

}  // namespace slip::cli
