#include "train/data.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>

#include "tools/common/messages.h"
#include "train/models.h"

namespace tutti::train {
namespace {

constexpr char kImages[] = "/usr/share/datasets/fashion-mnist";
constexpr char kTexts[] = "/usr/share/common-licenses";
constexpr std::int64_t kMostImages = 1'000'000;
constexpr std::int64_t kPixels = 28 * 28;

[[noreturn]] void bad_file(const std::string& path, const std::string& why) {
  throw Failure(ErrorCode::kSystem, path + " " + why);
}

// Reads a whole file, and decompresses it if it is a gzip file.
std::vector<std::uint8_t> read_gzip(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(::gzopen(path.c_str(), "rb"), ::gzclose);
  if (file == nullptr) {
    throw Failure(ErrorCode::kSystem, tool::cannot_open(path, errno).message +
                                          ": install the data set with `apt-get install dataset-fashion-mnist` "
                                          "(scripts/setup --train does), or give its folder with --data-dir");
  }
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint8_t> piece(1 << 20);
  while (true) {
    const int length = ::gzread(file.get(), piece.data(), static_cast<unsigned>(piece.size()));
    if (length < 0) bad_file(path, "is damaged or cut short: install the package again");
    if (length == 0) break;
    bytes.insert(bytes.end(), piece.begin(), piece.begin() + length);
    if (bytes.size() > 2 * static_cast<std::size_t>(kMostImages * kPixels)) bad_file(path, "is too long");
  }
  int error = Z_OK;
  ::gzerror(file.get(), &error);
  if (error != Z_OK && error != Z_STREAM_END) bad_file(path, "is damaged or cut short: install the package again");
  return bytes;
}

std::int64_t big_endian(const std::vector<std::uint8_t>& bytes, std::size_t at) {
  return std::int64_t{bytes[at]} << 24 | bytes[at + 1] << 16 | bytes[at + 2] << 8 | bytes[at + 3];
}

// Reads an IDX file: bytes 0 and 0, the type (8: unsigned bytes) and the number of dimensions; then the length of
// each dimension, big-endian; then the values. `row` is the expected shape of one element.
Tensor read_idx(const std::string& path, const std::vector<std::int64_t>& row) {
  const std::vector<std::uint8_t> bytes = read_gzip(path);
  const std::size_t dimensions = row.size() + 1;
  const std::size_t header = 4 + 4 * dimensions;
  if (bytes.size() < header || bytes[0] != 0 || bytes[1] != 0 || bytes[2] != 8 || bytes[3] != dimensions) {
    bad_file(path, "is not an IDX file of bytes in " + std::to_string(dimensions) + " dimensions");
  }
  std::vector<std::int64_t> shape = {big_endian(bytes, 4)};
  std::int64_t count = shape[0];
  for (std::size_t i = 0; i < row.size(); ++i) {
    shape.push_back(big_endian(bytes, 8 + 4 * i));
    if (shape.back() != row[i]) bad_file(path, "contains images of another size than 28 x 28");
    count *= row[i];
  }
  if (shape[0] < 1 || shape[0] > kMostImages || bytes.size() != header + static_cast<std::size_t>(count)) {
    bad_file(path, "does not contain as many values as its header states: install the package again");
  }
  return torch::from_blob(const_cast<std::uint8_t*>(bytes.data() + header), shape, torch::kUInt8).clone();
}

Samples read_images(const std::string& folder, const std::string& prefix) {
  const Tensor images = read_idx(folder + "/" + prefix + "-images-idx3-ubyte.gz", {28, 28});
  const Tensor classes = read_idx(folder + "/" + prefix + "-labels-idx1-ubyte.gz", {});
  if (images.size(0) != classes.size(0)) bad_file(folder, "has different numbers of images and classes in " + prefix);
  if (classes.max().item<int>() > 9) bad_file(folder, "has classes beyond 9 in " + prefix);
  // 0.2860 and 0.3530 are the mean and the standard deviation of the pixels of the training set, with which this data
  // set is usually normalized.
  return {images.to(torch::kFloat32).div_(255).sub_(0.2860).div_(0.3530).unsqueeze_(1), classes.to(torch::kInt64)};
}

// Divides a text into consecutive windows of kContext bytes. The targets of a window are its bytes shifted by one,
// because the model predicts the next byte. Every tenth window is test data. `tests`: return the test data; otherwise
// the training data.
Samples windows(const std::string& text, bool tests) {
  std::vector<std::int64_t> inputs;
  std::vector<std::int64_t> targets;
  std::int64_t window = 0;
  for (std::size_t at = 0; at + kContext + 1 <= text.size(); at += kContext, ++window) {
    if ((window % 10 == 9) != tests) continue;
    for (std::size_t i = 0; i < kContext; ++i) {
      inputs.push_back(static_cast<std::uint8_t>(text[at + i]));
      targets.push_back(static_cast<std::uint8_t>(text[at + i + 1]));
    }
  }
  const auto rows = static_cast<std::int64_t>(inputs.size()) / kContext;
  return {torch::tensor(inputs).view({rows, kContext}), torch::tensor(targets).view({rows, kContext})};
}

std::string read_texts(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file() && !entry.is_symlink()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::string text;
  for (const auto& path : paths) {
    std::ostringstream all;
    all << std::ifstream(path, std::ios::binary).rdbuf();
    text += all.str();
  }
  if (text.size() < 20 * kContext) {
    bad_file(folder,
             "holds no texts: give a folder of text files with --data-dir; the default is that of the licences "
             "in Debian's package base-files");
  }
  return text;
}

Samples generated_images(std::int64_t count, std::uint64_t seed) {
  auto random = torch::make_generator<at::CPUGeneratorImpl>(seed);
  // The patterns of the ten classes are the same for every seed, so that training and test data have the same
  // classes.
  auto pattern = torch::make_generator<at::CPUGeneratorImpl>(20'061);
  const Tensor patterns = torch::randn({10, 1, 28, 28}, pattern);
  const Tensor classes = torch::randint(10, {count}, random, torch::kInt64);
  const Tensor noise = torch::randn({count, 1, 28, 28}, random);
  return {patterns.index_select(0, classes).mul_(0.7).add_(noise.mul_(0.7)), classes};
}

// Generates words of a small vocabulary, in which each word is followed by one of four words. So a model can learn
// which words can follow a word.
std::string generated_text(std::size_t length, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::mt19937_64 grammar(20'061);
  std::vector<std::string> words;
  for (int i = 0; i < 60; ++i) {
    std::string word;
    for (std::uint64_t letters = 2 + grammar() % 6; letters > 0; --letters)
      word += static_cast<char>('a' + grammar() % 26);
    words.push_back(word + " ");
  }
  std::string text;
  for (std::size_t word = 0; text.size() < length; word = (word * 7 + random() % 4) % words.size()) text += words[word];
  return text;
}

Data generate(const DataConfig& config) {
  const std::int64_t count = config.samples > 0 ? config.samples : 4096;
  if (!config.text) return {generated_images(count, config.seed), generated_images(1000, config.seed + 1'000'000)};
  const std::int64_t windows_needed = count + count / 9 + 10;  // `count` training windows, and at least one test window
  const std::string text = generated_text(static_cast<std::size_t>(windows_needed * kContext + 1), config.seed);
  return {windows(text, false), windows(text, true)};
}

}  // namespace

Data load_data(const DataConfig& config) {
  const std::string name = !config.name.empty() ? config.name : config.text ? "text" : "fashion-mnist";
  constexpr std::array<std::string_view, 3> kNames = {"fashion-mnist", "text", "generated"};
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
    throw Failure(tool::wrong_option("--data", tool::not_one_of(name, kNames)));
  }
  if (name != "generated" && config.text != (name == "text")) {
    throw Failure(ErrorCode::kInvalidArgument,
                  config.text ? "this model reads text: give it --data text or generated"
                              : "this model classifies images: give it --data fashion-mnist or generated");
  }
  Data data;
  if (name == "generated") {
    data = generate(config);
  } else if (name == "text") {
    const std::string text = read_texts(config.folder.empty() ? kTexts : config.folder);
    data = {windows(text, false), windows(text, true)};
  } else {
    const std::string folder = config.folder.empty() ? kImages : config.folder;
    data = {read_images(folder, "train"), read_images(folder, "t10k")};
  }
  if (config.samples > 0 && config.samples < data.train.size()) {
    data.train = {data.train.inputs.narrow(0, 0, config.samples), data.train.targets.narrow(0, 0, config.samples)};
  }
  return data;
}

Sampler::Sampler(std::int64_t samples, std::int64_t batch, std::uint64_t seed)
    : samples_(samples), batch_(std::min(batch, samples)), seed_(seed) {}

std::vector<std::int64_t> Sampler::batch(std::int64_t step) {
  const std::int64_t epoch = epoch_of(step);
  if (epoch != epoch_) {
    order_.resize(static_cast<std::size_t>(samples_));
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
    std::mt19937_64 random(seed_ * 1'000'003 + static_cast<std::uint64_t>(epoch));
    for (std::size_t i = order_.size() - 1; i > 0; --i) std::swap(order_[i], order_[random() % (i + 1)]);
    epoch_ = epoch;
  }
  const std::int64_t begin = step % batches() * batch_;
  const std::int64_t end = std::min(begin + batch_, samples_);
  return {order_.begin() + begin, order_.begin() + end};
}

IndexRange share_of(std::int64_t batch, const std::vector<double>& weights, std::int32_t rank) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto cut = [&](std::int32_t up_to) {
    if (up_to == static_cast<std::int32_t>(weights.size())) return batch;
    const double before = std::accumulate(weights.begin(), weights.begin() + up_to, 0.0);
    return std::min(batch, static_cast<std::int64_t>(std::llround(static_cast<double>(batch) * before / total)));
  };
  return {cut(rank), cut(rank + 1) - cut(rank)};
}

Samples pick(const Samples& samples, const std::vector<std::int64_t>& indices, IndexRange part, torch::Device device) {
  const Tensor which =
      torch::from_blob(const_cast<std::int64_t*>(indices.data()) + part.begin, {part.length}, torch::kInt64);
  return {samples.inputs.index_select(0, which).to(device), samples.targets.index_select(0, which).to(device)};
}

}  // namespace tutti::train
