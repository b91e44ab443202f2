// Damaged and hostile safetensors files and indexes. Each is either refused with kParse or read. Every tensor that was
// read lies within its file, overlaps no other, and is the same when it is written again.
//
// usage: fuzz_tensors SECONDS SEED
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "fuzz/fuzz_loop.hpp"
#include "fuzz/mutator.hpp"
#include "fuzz/scratch_folder.hpp"
#include "model/safetensors.hpp"

namespace slip {
namespace {

constexpr std::size_t kDataBytes = 96;

constexpr const char* kPlain =
    R"({"__metadata__":{"format":"pt","who \u00e9":"\"x\""},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
"b":{"dtype":"BF16","shape":[4,2],"data_offsets":[24,40]},
"none":{"dtype":"F16","shape":[0,7],"data_offsets":[40,40]},
"s":{"dtype":"F64","shape":[],"data_offsets":[40,48]},
"q":{"dtype":"F8_E4M3","shape":[16,1,3],"data_offsets":[48,96]}}
        )";
constexpr const char* kOne = R"({"a":{"data_offsets":[0,96],"shape":[96],"dtype":"U8"}})";
constexpr const char* kIndex = R"({"metadata":{"total_size":96,"more":[1,{"x":null}]},
"weight_map":{"w":"fuzz_shard_1","b":"fuzz_shard_1",
"none":"fuzz_shard_1","s":"fuzz_shard_1",
"q":"fuzz_shard_1",
"a":"fuzz_shard_2"}})";

std::string file_of(const std::string& json) {
  std::string result;
  for (std::size_t i = 0; i < 8; ++i) result += static_cast<char>(json.size() >> (8 * i) & 0xff);
  result += json;
  for (std::size_t i = 0; i < kDataBytes; ++i) result += static_cast<char>(i * 37);
  return result;
}

// A new file each time: some file systems flush a file that replaces another at once, which costs milliseconds.
void put(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  if (!(out << bytes).flush()) throw std::logic_error("cannot write " + path);
}

void require(bool truth, const std::string& what) {
  if (!truth) throw std::logic_error(what);
}

// Checks what the format promises, by another method than the reader's.
void require_sound(const model::SafetensorsHeader& header, std::uint64_t begin, std::uint64_t end) {
  std::uint64_t at = begin;
  for (const TensorInfo& tensor : header.tensors) {
    require(tensor.offset == at, fmt::format("'{}' lies at {}, not at {}", tensor.name, tensor.offset, at));
    std::uint64_t bytes = bytes_of(tensor.type);
    for (const std::uint64_t size : tensor.shape) {
      require(size == 0 || bytes <= ~std::uint64_t{0} / size, "a shape of more than 2^64 bytes");
      bytes *= size;
    }
    require(bytes == tensor.bytes, fmt::format("'{}' has wrong bytes", tensor.name));
    at += tensor.bytes;
  }
  require(at == end, fmt::format("the tensors end at {}, the file at {}", at, end));
}

// Reads all of it, writes it again and compares.
void use(const TensorFiles& files, const std::string& path) {
  std::vector<std::vector<std::byte>> data;
  std::vector<TensorData> tensors;
  for (const TensorInfo& tensor : files.tensors()) {
    files.read(tensor, data.emplace_back(tensor.bytes).data());
    require(files.find(tensor.name) == &tensor, "a tensor is not found by its name");
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    const TensorInfo& tensor = files.tensors()[i];
    tensors.push_back({tensor.name, tensor.type, tensor.shape, data[i]});
  }
  std::filesystem::remove(path);
  // Shards may contradict each other in their metadata; one file may not.
  using Texts = std::vector<std::pair<std::string, std::string>>;
  write_tensors(path, tensors, files.paths().size() == 1 ? files.metadata() : Texts{});
  const TensorFiles again = TensorFiles::open(path);
  require(again.tensors().size() == tensors.size(), "written and read again there are fewer");
  for (const TensorData& tensor : tensors) {
    const TensorInfo& found = again.at(tensor.name);
    std::vector<std::byte> bytes(found.bytes);
    again.read(found, bytes.data());
    require(found.type == tensor.type && found.shape == tensor.shape &&
                std::equal(bytes.begin(), bytes.end(), tensor.bytes.begin(), tensor.bytes.end()),
            fmt::format("written and read again '{}' differs", tensor.name));
  }
}

MutatorWords words() {
  MutatorWords words;
  words.originals = {kPlain, kOne};
  words.values = {"NaN",
                  "Infinity",
                  "1e400",
                  "1e-400",
                  "-1",
                  "0",
                  "-0",
                  "18446744073709551615",
                  "18446744073709551616",
                  "18446744073709551592",
                  "9223372036854775807",
                  "4294967296",
                  "4294967295",
                  "null",
                  "true",
                  "[]",
                  "{}",
                  "[0,0]",
                  "[0,96]",
                  "[96,0]",
                  "[40,40]",
                  "[4294967296,4294967296]",
                  "[4294967296,4294967296,0]",
                  "[0,4294967296,4294967296]",
                  "[[1,2]]",
                  "\"\"",
                  "\"U8\"",
                  "\"I64\"",
                  "\"BOOL\"",
                  "\"F8_E5M2\"",
                  "\"F4\"",
                  "\"\\ud800\"",
                  "\"\\u0000\"",
                  "\"\xFF\xC0\x80\"",
                  "\"fuzz_shard_1\"",
                  "\"fuzz_shard_2\"",
                  "\"../fuzz_shard_1\"",
                  "\"fuzz_shard_1\\u0000\"",
                  "\"..\"",
                  "00",
                  "1.",
                  ".5",
                  "96.0",
                  "1e1"};
  words.pieces = {"[", "{\"a\":", "[{\"shape\":", "{\"w\":{\"dtype\":", "[[1,"};
  words.deep_begin = "{\"w\":{\"shape\":";
  return words;
}

class Fuzzer {
 public:
  Fuzzer() {
    indexes_.originals = {kIndex};
    put(folder_.at("fuzz_shard_1"), file_of(kPlain));
    put(folder_.at("fuzz_shard_2"), file_of(kOne));
  }

  bool one(std::uint64_t seed, std::string& input) const {
    std::optional<TensorFiles> files;
    try {
      files = open(seed, input);
    } catch (const Error& error) {
      // kIo: an index that names a file which is not there.
      if (error.code() != ErrorCode::kParse && (seed % 4 != 0 || error.code() != ErrorCode::kIo)) throw;
      return false;
    }
    if (files) use(*files, folder_.at("again.safetensors"));
    return true;
  }

 private:
  // Three of four inputs are headers, most of them never on disk; the fourth is an index.
  std::optional<TensorFiles> open(std::uint64_t seed, std::string& input) const {
    if (seed % 4 == 0) {
      input = Mutator(seed, indexes_).make();
      put(folder_.at("index.json"), input);
      return TensorFiles::open(folder_.at("index.json"));
    }
    input = Mutator(seed, headers_).make();
    const std::uint64_t begin = 8 + input.size(), end = begin + kDataBytes;
    std::optional<model::SafetensorsHeader> header;
    if (seed % 16 != 1) {
      header = model::parse_header(input, end, "mutated", {});
      require_sound(*header, begin, end);
    }
    std::string file = file_of(input);
    if (seed % 16 == 1) file = Mutator(seed, {{file}, headers_.values, headers_.pieces, {}}).make();  // the length, too
    put(folder_.at("bad.safetensors"), file);
    TensorFiles files = TensorFiles::open(folder_.at("bad.safetensors"));
    if (header)
      require(files.tensors().size() == header->tensors.size(), "the file says another thing than its header");
    return files;
  }

  ScratchFolder folder_{"fuzz_tensors"};
  MutatorWords headers_ = words(), indexes_ = words();
};

}  // namespace
}  // namespace slip

int main(int argc, char** argv) {
  const slip::Fuzzer fuzzer;
  return slip::fuzz_main(argc, argv, "fuzz_tensors",
                         [&](std::uint64_t seed, std::string& input) { return fuzzer.one(seed, input); });
}
