// compress_files() and decompress_files().
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <type_traits>

#include "base/fail.hpp"
#include "base/json_reader.hpp"
#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "model/compressed_files.hpp"
#include "store/partial_file.hpp"

namespace slip::model {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBlocks = 1024;  // 16 or 32 MiB of weights
constexpr std::uint64_t kCopyBytes = std::uint64_t{16} << 20;

using Sizes = std::vector<std::uint64_t>;

// The header of a compressed file, with zeros for its checksum. `sizes`: sizes of the compressed tensors, in file
// order. `first`: offset of the first one.
std::string header_without_checksum(const SafetensorsHeader& original, const std::string& text,
                                    std::uint64_t file_bytes, const Sizes& sizes, std::uint64_t first) {
  std::string json =
      fmt::format(R"({}{}","slip.codec":"{}","slip.version":"{}","slip.bytes":"{}","slip.header":{})", kChecksumPrefix,
                  std::string(kChecksumDigits, '0'), kCodecName, kCodecVersion, file_bytes, base::json_string(text));
  for (const auto& [key, value] : original.metadata)
    json += fmt::format(",{}:{}", base::json_string(key), base::json_string(value));
  json += '}';
  std::uint64_t at = first;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    json += fmt::format(R"(,{}:{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})",
                        base::json_string(original.tensors[i].name), sizes[i], at, at + sizes[i]);
    at += sizes[i];
  }
  return json + '}';
}

// Bytes to reserve for the header before the tensors' compressed sizes are known: enough for any sizes. A shorter
// header is filled up with spaces, which safetensors allows.
std::uint64_t header_room(const SafetensorsHeader& original, const std::string& text, std::uint64_t file_bytes) {
  std::uint64_t max = 0;  // more bytes than the compressed tensors can take
  for (const TensorInfo& tensor : original.tensors) max += tensor.bytes + tensor.bytes / 512 + 4096;
  const Sizes sizes(original.tensors.size(), max);
  const std::uint64_t bytes = 8 + header_without_checksum(original, text, file_bytes, sizes, max).size();
  return (bytes + 63) / 64 * 64 - 8;
}

// Counts the bytes that are done, and calls FilesOptions::progress.
class Progress {
 public:
  explicit Progress(const FilesOptions& options) : options_(options) {}
  void expect(std::uint64_t bytes) { now_.total += bytes; }
  void begin(const std::string& file) { now_.file = file; }
  void add(std::uint64_t bytes) {
    now_.done += bytes;
    if (options_.progress) options_.progress(now_);
  }

 private:
  const FilesOptions& options_;
  FilesProgress now_;
};

std::size_t piece_end(const BlockTable& table, std::size_t first) {
  return std::min(table.blocks(), first + kPieceBlocks);
}
std::size_t piece_bytes(const BlockTable& table, std::size_t first) {
  return std::min(table.weights_begin(piece_end(table, first)), table.weights_bytes()) - table.weights_begin(first);
}

// Decodes the tensors of a compressed file, and calls use(tensor, offset, weights) for each piece of one.
template <class Use>
void for_each_piece(const store::File& file, const CompressedHeader& header, Progress& progress, Here here,
                    const Use& use) {
  for (const TensorInfo& tensor : header.original.tensors) {
    const CompressedTensor compressed(file, header, tensor, here);
    const BlockTable& table = compressed.table();
    std::vector<std::byte> weights;  // of one piece after the other
    for (std::size_t first = 0; first < table.blocks(); first += kPieceBlocks) {
      weights.resize(piece_bytes(table, first));
      compressed.decode(first, piece_end(table, first) - first, weights, here);
      use(tensor, table.weights_begin(first), std::span<const std::byte>(weights));
      progress.add(weights.size());
    }
  }
}

// What both directions have in common.
class FileConverter {
 public:
  FileConverter(const store::File& source, const std::string& path, Progress& progress, Here here)
      : source_(source), path_(path), progress_(progress), here_(here) {}
  const std::string& path() const { return path_; }

 protected:
  // Throws kInvalidValue unless `plain`, a file that is not compressed, has the tensors of this compressed file.
  void compare_tensors(const store::File& file, const CompressedHeader& header, const store::File& plain,
                       const char* form) const {
    for_each_piece(file, header, progress_, here_,
                   [&](const TensorInfo& tensor, std::uint64_t offset, std::span<const std::byte> weights) {
                     if (!has_bytes(plain, tensor.offset + offset, weights)) differs(form);
                   });
  }
  [[noreturn]] void differs(const char* form) const {
    base::fail(ErrorCode::kInvalidValue, here_, "'{}' exists and is not the {} form of '{}': remove it", path_, form,
               source_.path());
  }
  bool has_bytes(const store::File& plain, std::uint64_t at, std::span<const std::byte> bytes) const {
    std::vector<std::byte> there(bytes.size());
    plain.read(at, there.data(), there.size(), here_);
    return std::ranges::equal(there, bytes);
  }
  static void count(FilesResult& result, std::size_t tensors, std::uint64_t original, std::uint64_t compressed) {
    ++result.files;
    result.tensors += tensors;
    result.original_bytes += original;
    result.compressed_bytes += compressed;
  }

  const store::File& source_;
  std::string path_;
  Progress& progress_;
  Here here_;
};

class FileCompressor : public FileConverter {
 public:
  FileCompressor(const store::File& source, const std::string& path, Progress& progress, Here here)
      : FileConverter(source, path, progress, here),
        text_(read_header_text(source, here)),
        header_(parse_header(text_, source.size(), source.path(), here)),
        header_room_(header_room(header_, text_, source.size())) {
    if (is_compressed(header_)) base::fail(ErrorCode::kInvalidValue, here, "'{}' is compressed already", source.path());
    for (const auto& [key, value] : header_.metadata) {
      if (key.starts_with("slip."))
        base::fail(ErrorCode::kInvalidValue, here, "'{}': its metadata has {}, a key of compressed files",
                   source.path(), shown(key));
    }
    // The compressed file has it as a string, which a reader must accept.
    if (text_.size() > base::kMaxJsonTextBytes)
      base::fail(ErrorCode::kInvalidValue, here,
                 "'{}': its header has {} bytes, and headers above {} bytes cannot be kept in a compressed file",
                 source.path(), text_.size(), base::kMaxJsonTextBytes);
    if (header_room_ > kMaxHeaderBytes)
      base::fail(ErrorCode::kInvalidValue, here,
                 "'{}': the compressed file needs a header of {} bytes, and at most {} are "
                 "allowed",
                 source.path(), header_room_, kMaxHeaderBytes);
    for (const TensorInfo& tensor : header_.tensors) {
      naming(tensor, [&] { static_cast<void>(table_of(tensor)); });
      progress.expect(tensor.bytes);
    }
  }

  void write(FilesResult& result) {
    store::PartialFile out(path_, here_);
    std::uint64_t at = 8 + header_room_;
    Sizes sizes;
    for (const TensorInfo& tensor : header_.tensors) {
      const std::optional<std::uint64_t> kept = size_if_there(out, tensor, at);
      result.kept += kept ? 1 : 0;
      sizes.push_back(kept ? *kept : compress(out, tensor, at));
      at += sizes.back();
    }
    source_.require_unchanged(here_);
    out.truncate(at);
    std::string json = header_without_checksum(header_, text_, source_.size(), sizes, 0);
    json.resize(header_room_, ' ');
    json.replace(kChecksumPrefix.size(), kChecksumDigits, fmt::format("{:016x}", header_checksum(json)));
    json.insert(0, length_text(header_room_));
    out.write(0, std::as_bytes(std::span(json)));
    out.finish();
    count_file(result);
  }

  // Compares a file that exists already with the source. Throws kInvalidValue if it differs.
  void compare(FilesResult& result) {
    try {
      compare_all(result);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kParse) throw;  // the source was parsed before
      base::fail(ErrorCode::kInvalidValue, here_, "'{}' is there already, and is not '{}' compressed: remove it ({})",
                 path_, source_.path(), base::bare_text(error));
    }
  }

 private:
  void compare_all(FilesResult& result) {
    const store::File file = store::File::open(path_, here_);
    const CompressedHeader found = read_compressed_header(file, here_);
    if (found.original_text != text_ || found.original_bytes != source_.size()) differs("compressed");
    compare_tensors(file, found, source_, "compressed");
    result.kept += header_.tensors.size();
    count_file(result);
  }

  void count_file(FilesResult& result) const {
    count(result, header_.tensors.size(), source_.size(), fs::file_size(path_));
  }

  // The size of this tensor in a partial file, if the file has all of it and it decodes to the source's bytes.
  std::optional<std::uint64_t> size_if_there(const store::PartialFile& out, const TensorInfo& tensor,
                                             std::uint64_t at) const {
    std::byte fixed[BlockTable::kFixedBytes];
    if (out.size() <= at || !out.read(at, fixed)) return std::nullopt;
    try {
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, fixed + 16, sizeof bytes);  // of the whole tensor: a field of its head
      if (bytes > out.size() - at) return std::nullopt;
      std::vector<std::byte> head(BlockTable::head_bytes_of(fixed, bytes, path_, here_));
      if (!out.read(at, head)) return std::nullopt;
      const BlockTable table = BlockTable::parse(head, bytes, path_, here_);
      if (table.split() != split_of(tensor.type) || table.weights_bytes() != tensor.bytes) return std::nullopt;
      for (std::size_t first = 0; first < table.blocks(); first += kPieceBlocks) {
        const std::size_t end = piece_end(table, first);
        std::vector<std::byte> blocks(table.begin(end) - table.begin(first)), weights(piece_bytes(table, first));
        if (!out.read(at + head.size() + table.begin(first), blocks)) return std::nullopt;
        decode_blocks(table, first, end - first, blocks, weights, path_, here_);
        if (!has_bytes(source_, tensor.offset + table.weights_begin(first), weights)) return std::nullopt;
      }
      progress_.add(tensor.bytes);
      return bytes;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kParse) throw;
      return std::nullopt;  // an earlier process ended while it wrote this tensor
    }
  }

  BlockTable table_of(const TensorInfo& tensor) const {
    const Split split = split_of(tensor.type);
    return {split, tensor.bytes / weight_bytes(split), here_};
  }
  // Adds the names of the file and the tensor to errors of the codec, which does not know them.
  template <class Call>
  std::invoke_result_t<Call> naming(const TensorInfo& tensor, const Call& call) const {
    try {
      return call();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidValue) throw;
      base::fail(ErrorCode::kInvalidValue, here_, "'{}': tensor {}: {}", source_.path(), shown(tensor.name),
                 base::bare_text(error));
    }
  }

  std::uint64_t compress(store::PartialFile& out, const TensorInfo& tensor, std::uint64_t at) {
    out.truncate(std::min(out.size(), at));
    BlockTable table = table_of(tensor);
    std::vector<std::byte> weights;  // of one piece after the other
    for (std::size_t first = 0; first < table.blocks(); first += kPieceBlocks) {
      weights.resize(piece_bytes(table, first));
      source_.read(tensor.offset + table.weights_begin(first), weights.data(), weights.size(), here_);
      const EncodedBlocks blocks =
          naming(tensor, [&] { return encode_blocks(table, first, piece_end(table, first) - first, weights, here_); });
      out.write(at + table.head_bytes() + table.begin(first), blocks);
      progress_.add(weights.size());
    }
    out.write(at, table.head());  // last: while the head is missing, the tensor counts as not complete
    return table.bytes();
  }

  std::string text_;
  SafetensorsHeader header_;
  std::uint64_t header_room_;  // bytes of the compressed file's header
};

class FileDecompressor : public FileConverter {
 public:
  FileDecompressor(const store::File& source, const std::string& path, Progress& progress, Here here)
      : FileConverter(source, path, progress, here), header_(read_compressed_header(source, here)) {
    for (const TensorInfo& tensor : header_.original.tensors) progress.expect(tensor.bytes);
  }

  void write(FilesResult& result) {
    store::PartialFile out(path_, here_);
    try {
      out.truncate(std::min(out.size(), header_.original_bytes));
      const std::string head = length_text(header_.original_text.size()) + header_.original_text;
      put(out, 0, std::as_bytes(std::span(head)));
      for_each_piece(source_, header_, progress_, here_,
                     [&](const TensorInfo& tensor, std::uint64_t offset, std::span<const std::byte> weights) {
                       put(out, tensor.offset + offset, weights);
                     });
      source_.require_unchanged(here_);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kParse) out.discard();  // the source is damaged: there is nothing to continue
      throw;
    }
    out.finish();
    count(result, header_.original.tensors.size(), header_.original_bytes, source_.size());
  }

  void compare(FilesResult& result) {
    const store::File file = store::File::open(path_, here_);
    if (file.size() != header_.original_bytes || read_header_text(file, here_) != header_.original_text)
      differs("decompressed");
    compare_tensors(source_, header_, file, "decompressed");
    result.kept += header_.original.tensors.size();
    count(result, header_.original.tensors.size(), header_.original_bytes, source_.size());
  }

 private:
  // Writes the bytes, unless the file has them already.
  static void put(store::PartialFile& out, std::uint64_t at, std::span<const std::byte> bytes) {
    if (out.size() >= at + bytes.size()) {
      std::vector<std::byte> there(bytes.size());
      if (out.read(at, there) && std::ranges::equal(there, bytes)) return;
    }
    out.write(at, bytes);
  }

  CompressedHeader header_;
};

// The names of the files of a source: safetensors files, and the others.
struct Source {
  std::string folder;
  std::vector<std::string> tensors, others;
};

Source source_of(const std::string& from, Here here) {
  if (!store::is_folder(from)) {
    const fs::path path(from);
    return {path.has_parent_path() ? path.parent_path().string() : ".", {path.filename().string()}, {}};
  }
  Source source{from, store::files_in(from, ".safetensors", here), {}};
  if (source.tensors.empty()) base::fail(ErrorCode::kIo, here, "no *.safetensors file in '{}'", from);
  for (const std::string& name : store::files_in(from, "", here)) {
    std::error_code ignored;
    if (!name.ends_with(".safetensors") && !name.ends_with(".partial") &&
        fs::is_regular_file(fs::path(from) / name, ignored))
      source.others.push_back(name);
  }
  return source;
}

// Also true for a link that leads nowhere, which is not replaced either.
bool is_there(const std::string& path) { return fs::exists(fs::symlink_status(path)); }

void prepare_target(const Source& source, const std::string& to, bool resume, Here here) {
  std::error_code error;
  fs::create_directories(to, error);
  if (error) base::fail(ErrorCode::kIo, here, "cannot make the folder '{}': {}", to, error.message());
  if (fs::equivalent(to, source.folder, error))
    base::fail(ErrorCode::kInvalidValue, here, "'{}' is the folder of the model itself: name another one to write", to);
  const bool empty = fs::is_empty(to, error);
  if (error) base::fail(ErrorCode::kIo, here, "cannot read the folder '{}': {}", to, error.message());
  if (!resume && !empty)
    base::fail(ErrorCode::kInvalidValue, here,
               "'{}' is not empty: name another folder, or continue an interrupted call with --resume", to);
}

void copy_file(const std::string& from, const std::string& to, Here here) {
  const store::File source = store::File::open(from, here);
  const bool exists = is_there(to);
  std::optional<store::File> there;
  if (exists) there = store::File::open(to, here);
  if (there && there->size() != source.size())
    base::fail(ErrorCode::kInvalidValue, here, "'{}' exists and is not a copy of '{}': remove it", to, from);
  std::optional<base::OutputFile> out;
  if (!exists) out.emplace(to, here);
  for (std::uint64_t at = 0; at < source.size(); at += kCopyBytes) {
    std::string piece(std::min(kCopyBytes, source.size() - at), '\0'), other(exists ? piece.size() : 0, '\0');
    source.read(at, piece.data(), piece.size(), here);
    if (out) out->write(piece);
    else there->read(at, other.data(), other.size(), here);
    if (exists && other != piece)
      base::fail(ErrorCode::kInvalidValue, here, "'{}' exists and is not a copy of '{}': remove it", to, from);
  }
  if (out) out->finish();
}

template <class Worker>
FilesResult convert(const std::string& from, const std::string& to, const FilesOptions& options, Here here) {
  const Source source = source_of(from, here);
  std::deque<store::File> files;  // workers refer to them: they must not move
  std::deque<Worker> workers;
  Progress progress(options);
  // Makes all workers before it writes anything: they read and check the headers, so that a file that cannot be
  // converted leaves no output behind.
  for (const std::string& name : source.tensors) {
    files.push_back(store::File::open(fmt::format("{}/{}", source.folder, name), here));
    workers.emplace_back(files.back(), fmt::format("{}/{}", to, name), progress, here);
  }
  prepare_target(source, to, options.resume, here);
  FilesResult result;
  for (Worker& worker : workers) {
    progress.begin(worker.path());
    if (is_there(worker.path())) worker.compare(result);
    else worker.write(result);
  }
  for (const std::string& name : source.others)
    copy_file((fs::path(source.folder) / name).string(), (fs::path(to) / name).string(), here);
  return result;
}

}  // namespace

FilesResult compress_files(const std::string& from, const std::string& to, const FilesOptions& options, Here here) {
  return convert<FileCompressor>(from, to, options, here);
}

FilesResult decompress_files(const std::string& from, const std::string& to, const FilesOptions& options, Here here) {
  return convert<FileDecompressor>(from, to, options, here);
}

}  // namespace slip::model
