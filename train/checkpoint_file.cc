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
constexpr std::int64_t kMostHeader = 256 << 20;

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
    seal_.crc = static_cast<std::uint32_t>(
        ::crc32_z(seal_.crc, static_cast<const Bytef*>(data), static_cast<std::size_t>(bytes)));
    seal_.bytes += bytes;
    while (bytes > 0) {
      const ssize_t length = ::write(fd_, at, static_cast<std::size_t>(bytes));
      if (length < 0) {
        throw Failure(ErrorCode::kSystem, tool::cannot_write(path_, errno).message +
                                              "; make room or give another folder, what was saved before is kept");
      }
      at += length;
      bytes -= length;
    }
  }
  FileSeal finish() {
    if (::fsync(fd_) != 0) throw Failure(tool::cannot_write(path_, errno));
    return seal_;
  }
  // False: it ends before.
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
  FileSeal seal() const {
    FileSeal seal;
    std::vector<char> piece(1 << 20);
    while (true) {
      const ssize_t length = ::pread(fd_, piece.data(), piece.size(), seal.bytes);
      if (length < 0) throw Failure(tool::cannot_read(path_, errno));
      if (length == 0) return seal;
      seal.crc = static_cast<std::uint32_t>(
          ::crc32_z(seal.crc, reinterpret_cast<const Bytef*>(piece.data()), static_cast<std::size_t>(length)));
      seal.bytes += length;
    }
  }

 private:
  std::string path_;
  int fd_;
  FileSeal seal_;
};

Json described(const StoredPiece& stored, std::int64_t offset) {
  const Piece& piece = stored.piece;
  return {{"name", piece.name},   {"kind", stored.kind},          {"whole", piece.whole},
          {"part", piece.part},   {"split_dim", piece.split_dim}, {"split_index", stored.split_index},
          {"begin", piece.begin}, {"length", piece.length},       {"offset", offset}};
}

StoredPiece piece_of(const Json& json) {
  StoredPiece stored;
  json.at("name").get_to(stored.piece.name);
  json.at("kind").get_to(stored.kind);
  json.at("whole").get_to(stored.piece.whole);
  json.at("part").get_to(stored.piece.part);
  json.at("split_dim").get_to(stored.piece.split_dim);
  json.at("split_index").get_to(stored.split_index);
  json.at("begin").get_to(stored.piece.begin);
  json.at("length").get_to(stored.piece.length);
  json.at("offset").get_to(stored.offset);
  return stored;
}

}  // namespace

FileSeal write_pieces(const std::string& path, const std::vector<StoredPiece>& pieces) {
  Json list = Json::array();
  std::int64_t offset = 0;
  for (const StoredPiece& stored : pieces) {
    list.push_back(described(stored, offset));
    offset += static_cast<std::int64_t>(stored.elements.nbytes());
  }
  const std::string header = list.dump();
  const auto header_bytes = static_cast<std::int64_t>(header.size());
  File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  file.write(kMagic, kMagicBytes);
  file.write(&header_bytes, sizeof(header_bytes));
  file.write(header.data(), header_bytes);
  for (const StoredPiece& stored : pieces) {
    const Tensor plain = stored.elements.contiguous();
    file.write(plain.data_ptr(), static_cast<std::int64_t>(plain.nbytes()));
  }
  return file.finish();
}

std::vector<StoredPiece> read_pieces(const std::string& path, const FileSeal& seal) {
  const File file(path, O_RDONLY);
  const FileSeal found = file.seal();
  if (found.bytes != seal.bytes || found.crc != seal.crc) failed(path, "is torn: it is not what was written");
  char magic[kMagicBytes];
  std::int64_t header_bytes = 0;
  const std::int64_t start = kMagicBytes + static_cast<std::int64_t>(sizeof(header_bytes));
  if (!file.read(magic, kMagicBytes, 0) || std::memcmp(magic, kMagic, kMagicBytes) != 0 ||
      !file.read(&header_bytes, sizeof(header_bytes), kMagicBytes) || header_bytes < 0 || header_bytes > kMostHeader) {
    failed(path, "is no part of a checkpoint of tutti train");
  }
  std::string header(static_cast<std::size_t>(header_bytes), '\0');
  if (!file.read(header.data(), header_bytes, start)) failed(path, "is cut short");
  std::vector<StoredPiece> pieces;
  try {
    for (const Json& json : Json::parse(header)) {
      pieces.push_back(piece_of(json));
      StoredPiece& stored = pieces.back();
      stored.offset += start + header_bytes;
      const std::int64_t end = stored.offset + 4 * stored.piece.length;
      if (stored.piece.length < 0 || stored.offset < start || end > seal.bytes)
        failed(path, "has a piece beyond its end");
    }
  } catch (const Json::exception& error) {
    failed(path, fmt::format("has a header that cannot be read: {}", error.what()));
  }
  return pieces;
}

Tensor read_elements(const std::string& path, const StoredPiece& piece) {
  const File file(path, O_RDONLY);
  Tensor elements = torch::empty({piece.piece.length}, torch::kFloat32);
  if (!file.read(elements.data_ptr(), 4 * piece.piece.length, piece.offset)) failed(path, "is cut short");
  return elements;
}

std::uint32_t crc_of(const std::string& text) {
  return static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
}

void write_text(const std::string& path, const std::string& text) {
  File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  file.write(text.data(), static_cast<std::int64_t>(text.size()));
  file.finish();
}

std::string read_text(const std::string& path) {
  const File file(path, O_RDONLY);
  const FileSeal seal = file.seal();
  std::string text(static_cast<std::size_t>(std::min<std::int64_t>(seal.bytes, kMostHeader)), '\0');
  if (!file.read(text.data(), static_cast<std::int64_t>(text.size()), 0)) failed(path, "is cut short");
  return text;
}

}  // namespace tutti::train
