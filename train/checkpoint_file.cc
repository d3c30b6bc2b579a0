#include "train/checkpoint_file.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "tools/common/messages.h"

namespace tutti::train {
namespace {

using Json = nlohmann::json;

constexpr char kMagic[] = "TUTTICP1";
constexpr std::int64_t kMagicBytes = 8;
// Maximum length of a header, and of a text that read_text() reads, in bytes. So a file with a wrong length cannot make
// the reader allocate all memory.
constexpr std::int64_t kMaxHeaderBytes = 256 << 20;

[[noreturn]] void failed(const std::string& path, const std::string& what) {
  throw Failure(ErrorCode::kSystem, fmt::format("{}: {}", path, what));
}

class File {
 public:
  File(const std::string& path, int flags) : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) throw Failure(tool::cannot_open(path, errno));
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void write(const void* data, std::int64_t bytes) {
    const char* at = static_cast<const char*>(data);
    checksum_.crc = static_cast<std::uint32_t>(
        ::crc32_z(checksum_.crc, static_cast<const Bytef*>(data), static_cast<std::size_t>(bytes)));
    checksum_.bytes += bytes;
    while (bytes > 0) {
      const ssize_t length = ::write(fd_, at, static_cast<std::size_t>(bytes));
      if (length < 0) {
        throw Failure(ErrorCode::kSystem, tool::cannot_write(path_, errno).message +
                                              "; free some space or give another folder. Earlier checkpoints are kept");
      }
      at += length;
      bytes -= length;
    }
  }
  FileChecksum finish() {
    if (::fsync(fd_) != 0) throw Failure(tool::cannot_write(path_, errno));
    return checksum_;
  }
  // Reads `bytes` bytes at offset `from`. Returns false if the file ends before the last of them.
  bool read(void* data, std::int64_t bytes, std::int64_t from) const {
    char* at = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t length = ::pread(fd_, at, static_cast<std::size_t>(bytes), from);
      if (length < 0) throw Failure(tool::cannot_read(path_, errno));
      if (length == 0) return false;
      at += length;
      from += length;
      bytes -= length;
    }
    return true;
  }
  // Length and CRC-32 of the whole present contents of the file, which this function reads.
  FileChecksum checksum() const {
    FileChecksum checksum;
    std::vector<char> slice(1 << 20);
    while (true) {
      const ssize_t length = ::pread(fd_, slice.data(), slice.size(), checksum.bytes);
      if (length < 0) throw Failure(tool::cannot_read(path_, errno));
      if (length == 0) return checksum;
      checksum.crc = static_cast<std::uint32_t>(
          ::crc32_z(checksum.crc, reinterpret_cast<const Bytef*>(slice.data()), static_cast<std::size_t>(length)));
      checksum.bytes += length;
    }
  }

 private:
  std::string path_;
  int fd_;
  FileChecksum checksum_;
};

Json described(const StoredSlice& stored, std::int64_t offset) {
  const ParameterSlice& slice = stored.slice;
  return {{"name", slice.name},   {"kind", stored.kind},          {"whole", slice.whole},
          {"part", slice.part},   {"split_dim", slice.split_dim}, {"split_index", stored.split_index},
          {"begin", slice.begin}, {"length", slice.length},       {"offset", offset}};
}

StoredSlice slice_of(const Json& json) {
  StoredSlice stored;
  json.at("name").get_to(stored.slice.name);
  json.at("kind").get_to(stored.kind);
  json.at("whole").get_to(stored.slice.whole);
  json.at("part").get_to(stored.slice.part);
  json.at("split_dim").get_to(stored.slice.split_dim);
  json.at("split_index").get_to(stored.split_index);
  json.at("begin").get_to(stored.slice.begin);
  json.at("length").get_to(stored.slice.length);
  json.at("offset").get_to(stored.offset);
  return stored;
}

}  // namespace

FileChecksum write_slices(const std::string& path, const std::vector<StoredSlice>& slices) {
  Json list = Json::array();
  std::int64_t offset = 0;
  for (const StoredSlice& stored : slices) {
    list.push_back(described(stored, offset));
    offset += static_cast<std::int64_t>(stored.elements.nbytes());
  }
  const std::string header = list.dump();
  const auto header_bytes = static_cast<std::int64_t>(header.size());
  File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  file.write(kMagic, kMagicBytes);
  file.write(&header_bytes, sizeof(header_bytes));
  file.write(header.data(), header_bytes);
  for (const StoredSlice& stored : slices) {
    const Tensor plain = stored.elements.contiguous();
    file.write(plain.data_ptr(), static_cast<std::int64_t>(plain.nbytes()));
  }
  return file.finish();
}

std::vector<StoredSlice> read_slices(const std::string& path, const FileChecksum& checksum) {
  const File file(path, O_RDONLY);
  const FileChecksum found = file.checksum();
  if (found.bytes != checksum.bytes || found.crc != checksum.crc)
    failed(path, "is damaged: its length or checksum is not that of the manifest");
  char magic[kMagicBytes];
  std::int64_t header_bytes = 0;
  const std::int64_t start = kMagicBytes + static_cast<std::int64_t>(sizeof(header_bytes));
  if (!file.read(magic, kMagicBytes, 0) || std::memcmp(magic, kMagic, kMagicBytes) != 0 ||
      !file.read(&header_bytes, sizeof(header_bytes), kMagicBytes) || header_bytes < 0 ||
      header_bytes > kMaxHeaderBytes) {
    failed(path, "is not a checkpoint file of tutti train");
  }
  std::string header(static_cast<std::size_t>(header_bytes), '\0');
  if (!file.read(header.data(), header_bytes, start)) failed(path, "is cut short");
  std::vector<StoredSlice> slices;
  try {
    for (const Json& json : Json::parse(header)) {
      slices.push_back(slice_of(json));
      StoredSlice& stored = slices.back();
      stored.offset += start + header_bytes;
      const std::int64_t end = stored.offset + 4 * stored.slice.length;
      if (stored.slice.length < 0 || stored.offset < start || end > checksum.bytes)
        failed(path, "is damaged: its header names elements beyond its end");
    }
  } catch (const Json::exception& error) {
    failed(path, fmt::format("is damaged: its header cannot be parsed: {}", error.what()));
  }
  return slices;
}

Tensor read_elements(const std::string& path, const StoredSlice& slice) {
  const File file(path, O_RDONLY);
  Tensor elements = torch::empty({slice.slice.length}, torch::kFloat32);
  if (!file.read(elements.data_ptr(), 4 * slice.slice.length, slice.offset)) failed(path, "is cut short");
  return elements;
}

std::uint32_t crc_of(std::string_view bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(::crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

void write_text(const std::string& path, const std::string& text) {
  File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  file.write(text.data(), static_cast<std::int64_t>(text.size()));
  file.finish();
}

std::string read_text(const std::string& path) {
  const File file(path, O_RDONLY);
  const FileChecksum checksum = file.checksum();
  std::string text(static_cast<std::size_t>(std::min<std::int64_t>(checksum.bytes, kMaxHeaderBytes)), '\0');
  if (!file.read(text.data(), static_cast<std::int64_t>(text.size()), 0)) failed(path, "is cut short");
  return text;
}

}  // namespace tutti::train
