#include "train/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "train/checkpoint_file.h"

namespace tutti::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kKept = 2;
constexpr char kManifest[] = "manifest.json";

std::string part_name(std::int64_t rank) { return fmt::format("rank-{}.part", rank); }
std::string model_text(const ModelConfig& model) {
  return fmt::format("{} (width {}, blocks {})", model.name, model.width, model.blocks);
}

// The step of a folder by its name; nothing: it is none of ours.
std::optional<std::int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename();
  constexpr std::string_view kStart = "step-";
  std::int64_t step = 0;
  const char* const end = name.data() + name.size();
  if (!name.starts_with(kStart) || name.size() < kStart.size() + 8) return std::nullopt;
  const auto [last, wrong] = std::from_chars(name.data() + kStart.size(), end, step);
  return wrong == std::errc() && last == end ? std::optional(step) : std::nullopt;
}

// Checkpoints of a folder, the newest first.
std::vector<fs::path> checkpoints_in(const std::string& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (step_of(entry.path())) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return *step_of(a) > *step_of(b); });
  return found;
}

// What the order of samples comes from: steps of another one would be other samples.
std::string batches_text(const TrainOptions& options, const Learner& learner) {
  return fmt::format("{} of {} samples by seed {}", options.batch, learner.samples(), options.seed);
}

bool keeps_shards(const TrainOptions& options, Mesh& mesh, Learner& learner) {
  if (learner.replicas().replicated()) return mesh.data.rank() == 0;
  return options.strategy != Strategy::kMics || mesh.across.rank() == 0;
}

// What this rank alone has, or has to write for others that have the same.
std::vector<StoredPiece> pieces_to_store(const TrainOptions& options, Mesh& mesh, Learner& learner) {
  std::vector<StoredPiece> pieces;
  const auto store = [&](const Piece& piece, const char* kind, const Tensor& flat) {
    pieces.push_back({.piece = piece,
                      .split_index = piece.split_dim < 0 ? 0 : mesh.tensor.rank(),
                      .kind = kind,
                      .elements = flat.narrow(0, piece.at, piece.length).to(torch::kCPU)});
  };
  auto& shards = learner.shards();
  for (std::size_t i = 0; i < shards.size() && keeps_shards(options, mesh, learner); ++i) {
    for (const Piece& piece : shards[i].pieces) {
      if (piece.split_dim < 0 && mesh.tensor.rank() != 0) continue;
      store(piece, "value", shards[i].values);
      const auto& moments = learner.optimizer().state()[i];
      for (std::size_t m = 0; m < moments.size(); ++m) store(piece, m == 0 ? "moment0" : "moment1", moments[m]);
    }
  }
  if (mesh.data.rank() != 0 || mesh.tensor.rank() != 0) return pieces;
  for (std::size_t layer = 0; layer < learner.row().size(); ++layer) {
    for (const auto& item : learner.row()[layer]->named_buffers()) {
      const Tensor flat = item.value().to(torch::kFloat32).reshape({-1}).contiguous();
      const std::vector<std::int64_t> shape = item.value().sizes().vec();
      store({.name = fmt::format("layer.{}/{}", learner.first_layer() + layer, item.key()),
             .whole = shape,
             .part = shape,
             .length = flat.numel()},
            "buffer", flat);
    }
  }
  return pieces;
}

// All ranks' words, in their order; at most kMostWords bytes of each.
constexpr std::int64_t kMostWords = 400;
std::vector<std::string> tell_all(Comm& world, const std::string& words) {
  Tensor mine = torch::zeros({kMostWords}, torch::kUInt8);
  std::copy_n(words.begin(), std::min<std::size_t>(words.size(), kMostWords), mine.data_ptr<std::uint8_t>());
  Tensor all = torch::zeros({world.size() * kMostWords}, torch::kUInt8);
  world.all_gather(mine, all);
  std::vector<std::string> heard;
  for (std::int32_t rank = 0; rank < world.size(); ++rank) {
    const char* const start = reinterpret_cast<const char*>(all.data_ptr<std::uint8_t>()) + rank * kMostWords;
    heard.emplace_back(start, ::strnlen(start, kMostWords));
  }
  return heard;
}

// Runs `work`; where it fails on a rank all of them fail, with the first one's words.
template <class Work>
void together(Comm& world, const Work& work) {
  std::string trouble;
  try {
    work();
  } catch (const Failure& failure) {
    trouble = failure.error().message;
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  const std::vector<std::string> all = tell_all(world, trouble);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    throw Failure(ErrorCode::kSystem, fmt::format("rank {}: {}", rank, all[rank]));
  }
}

void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

Json manifest_of(const TrainOptions& options, Learner& learner, const Progress& progress,
                 const std::vector<FileSeal>& seals) {
  Json files = Json::array();
  for (const FileSeal& seal : seals) files.push_back({{"bytes", seal.bytes}, {"crc32", seal.crc}});
  return {{"format", 2},
          {"model", model_text(options.model)},
          {"optimizer", name_of(options.optimizer)},
          {"batches", batches_text(options, learner)},
          {"strategy", name_of(options.strategy)},
          {"ranks", options.ranks},
          {"step", progress.step},
          {"best_loss", progress.best_loss},
          {"tests_without_better", progress.tests_without_better},
          {"optimizer_steps", learner.optimizer().steps()},
          {"scale", learner.scaler().scale()},
          {"good_steps", learner.scaler().good_steps()},
          {"files", files}};
}

// A checkpoint that was found whole, as this rank has read it.
struct Found {
  fs::path path;
  Json manifest;
  std::vector<std::vector<StoredPiece>> files;
};

// The manifest's text with its own checksum behind it, and back.
std::string sealed(const Json& manifest) {
  const std::string text = manifest.dump(1);
  return fmt::format("{}\n{:08x}\n", text, crc_of(text));
}

Json unsealed(const fs::path& path) {
  const std::string all = read_text(path);
  constexpr std::size_t kSeal = 10;  // with its newlines
  const std::string text = all.substr(0, all.size() - std::min(kSeal, all.size()));
  if (all != fmt::format("{}\n{:08x}\n", text, crc_of(text))) {
    throw Failure(ErrorCode::kSystem, fmt::format("{} is torn: it is not what was written", path.string()));
  }
  return Json::parse(text);
}

Found open_checkpoint(const fs::path& path) {
  Found found = {path, {}, {}};
  try {
    found.manifest = unsealed(path / kManifest);
    std::size_t rank = 0;
    for (const Json& file : found.manifest.at("files")) {
      const FileSeal seal = {file.at("bytes").get<std::int64_t>(), file.at("crc32").get<std::uint32_t>()};
      found.files.push_back(read_pieces(path / part_name(static_cast<std::int64_t>(rank++)), seal));
    }
  } catch (const Json::exception& error) {
    throw Failure(ErrorCode::kSystem, fmt::format("{}: its manifest is torn: {}", path.string(), error.what()));
  }
  return found;
}

// The whole parameter (or its moments) out of the pieces of all files.
Tensor assemble(const Found& found, const std::string& name, const std::string& kind,
                const std::vector<std::int64_t>& whole) {
  Tensor result = torch::zeros(whole, torch::kFloat32);
  std::map<std::int64_t, Tensor> parts;
  std::int64_t elements = 0;
  for (std::size_t file = 0; file < found.files.size(); ++file) {
    for (const StoredPiece& stored : found.files[file]) {
      const Piece& piece = stored.piece;
      if (piece.name != name || stored.kind != kind) continue;
      if (piece.whole != whole) break;
      Tensor& part = parts.try_emplace(stored.split_index, torch::zeros(piece.part, torch::kFloat32)).first->second;
      part.view({-1})
          .narrow(0, piece.begin, piece.length)
          .copy_(read_elements(found.path / part_name(static_cast<std::int64_t>(file)), stored));
      elements += piece.length;
      if (piece.split_dim < 0) result = part;
      if (piece.split_dim >= 0) {
        const std::int64_t length = piece.part.at(static_cast<std::size_t>(piece.split_dim));
        result.narrow(piece.split_dim, stored.split_index * length, length).copy_(part);
      }
    }
  }
  if (elements != result.numel()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{} has not all of {} ({}): it is of another model", found.path.string(), name, kind));
  }
  return result;
}

// Elements of `piece` out of the whole parameter.
Tensor elements_of(const Tensor& whole, const Piece& piece, std::int64_t tensor_rank) {
  Tensor part = whole;
  if (piece.split_dim >= 0) {
    const std::int64_t length = piece.part.at(static_cast<std::size_t>(piece.split_dim));
    part = whole.narrow(piece.split_dim, tensor_rank * length, length);
  }
  return part.reshape({-1}).narrow(0, piece.begin, piece.length);
}

void check_fits(const Found& found, const TrainOptions& options, const Learner& learner) {
  const auto differs = [&](const char* what, const std::string& there, const std::string& here) {
    if (there == here) return;
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{} is of {} {}, and this training has {}: give the same, or another --checkpoint folder",
                              found.path.string(), what, there, here));
  };
  differs("model", found.manifest.at("model"), model_text(options.model));
  differs("optimizer", found.manifest.at("optimizer"), name_of(options.optimizer));
  differs("batches", found.manifest.at("batches"), batches_text(options, learner));
}

// All is read into spare tensors before any of it counts.
struct Restored {
  std::vector<std::pair<Tensor, Tensor>> copies;  // to, from
  void apply() {
    const torch::NoGradGuard no_grad;
    for (auto& [to, from] : copies) to.copy_(from);
  }
};

Restored read_state(const Found& found, Mesh& mesh, Learner& learner) {
  Restored restored;
  auto& shards = learner.shards();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto& moments = learner.optimizer().state()[i];
    for (const Piece& piece : shards[i].pieces) {
      const auto restore = [&](const char* kind, const Tensor& flat) {
        restored.copies.emplace_back(
            flat.narrow(0, piece.at, piece.length),
            elements_of(assemble(found, piece.name, kind, piece.whole), piece, mesh.tensor.rank()));
      };
      restore("value", shards[i].values);
      for (std::size_t m = 0; m < moments.size(); ++m) restore(m == 0 ? "moment0" : "moment1", moments[m]);
    }
  }
  for (std::size_t layer = 0; layer < learner.row().size(); ++layer) {
    for (const auto& item : learner.row()[layer]->named_buffers()) {
      const std::string name = fmt::format("layer.{}/{}", learner.first_layer() + layer, item.key());
      restored.copies.emplace_back(item.value(), assemble(found, name, "buffer", item.value().sizes().vec()));
    }
  }
  return restored;
}

// What jobs that were killed while they saved have left, of whatever step.
void remove_partial(const fs::path& folder) {
  fs::create_directories(folder);
  std::vector<fs::path> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const fs::path& path = entry.path();
    if (path.extension() == ".partial" && step_of(path.stem())) left.push_back(path);
  }
  for (const fs::path& path : left) fs::remove_all(path);
}

}  // namespace

void refuse_checkpoints(const std::string& folder, Mesh& mesh) {
  together(mesh.world, [&] {
    if (mesh.world.rank() != 0) return;
    const std::vector<fs::path> all = checkpoints_in(folder);
    if (all.empty()) return;
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{} is there already: go on with it by --resume, or give --checkpoint another folder",
                              all.front().string()));
  });
}

void check_folder(const std::string& folder) {
  const std::string file = folder + "/.tutti-can-write";
  try {
    fs::create_directories(folder);
    write_text(file, "yes\n");
    fs::remove(file);
  } catch (const std::exception& error) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("--checkpoint {}: nothing can be written there: {}", folder, error.what()));
  }
}

void save_checkpoint(const std::string& folder, const TrainOptions& options, Mesh& mesh, Learner& learner,
                     const Progress& progress) {
  const fs::path done = fs::path(folder) / fmt::format("step-{:08}", progress.step);
  const fs::path partial = done.string() + ".partial";
  const std::int32_t rank = mesh.world.rank();
  FileSeal seal;
  try {
    together(mesh.world, [&] {
      for (const Shard& shard : learner.shards()) {
        if (shard.values.isfinite().all().item<bool>()) continue;
        throw Failure(ErrorCode::kInvalidArgument,
                      "a parameter is not finite: training has diverged, and is not saved. Lower --lr, give --warmup "
                      "or --clip, or go on from the checkpoint before");
      }
      if (rank == 0) remove_partial(folder);
      if (rank == 0) fs::create_directories(partial);
    });
    together(mesh.world,
             [&] { seal = write_pieces(partial / part_name(rank), pieces_to_store(options, mesh, learner)); });
    std::vector<FileSeal> seals;
    for (const std::string& words : tell_all(mesh.world, fmt::format("{} {}", seal.bytes, seal.crc))) {
      FileSeal other;
      std::istringstream(words) >> other.bytes >> other.crc;
      seals.push_back(other);
    }
    together(mesh.world, [&] {
      if (rank != 0) return;
      write_text(partial / kManifest, sealed(manifest_of(options, learner, progress, seals)));
      sync_folder(partial);
      fs::remove_all(done);
      fs::rename(partial, done);
      sync_folder(folder);
      const std::vector<fs::path> all = checkpoints_in(folder);
      for (std::size_t i = kKept; i < all.size(); ++i) fs::remove_all(all[i]);
    });
  } catch (const Failure&) {
    std::error_code ignored;
    if (rank == 0) fs::remove_all(partial, ignored);
    throw;
  }
}

Progress load_checkpoint(const std::string& folder, const TrainOptions& options, Mesh& mesh, Learner& learner,
                         std::vector<std::string>& notes) {
  // Rank 0 says which one: the first that it finds whole. The others see for themselves that they do, too.
  std::string chosen;
  if (mesh.world.rank() == 0) {
    for (const fs::path& path : checkpoints_in(folder)) {
      try {
        open_checkpoint(path);
        chosen = path.filename();
        break;
      } catch (const Failure& failure) {
        notes.push_back(fmt::format("passed over: {}", failure.error().message));
      }
    }
  }
  chosen = tell_all(mesh.world, chosen).front();
  if (chosen.empty()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("there is no whole checkpoint in {}: start without --resume{}", folder,
                              notes.empty() ? "" : fmt::format(" ({})", fmt::join(notes, "; "))));
  }
  Found found;
  Restored restored;
  together(mesh.world, [&] {
    found = open_checkpoint(fs::path(folder) / chosen);
    check_fits(found, options, learner);
    restored = read_state(found, mesh, learner);
  });
  restored.apply();
  if (mesh.world.rank() == 0) {
    std::error_code ignored;
    for (const fs::path& path : checkpoints_in(folder)) {
      if (*step_of(path) > *step_of(chosen)) fs::remove_all(path, ignored);
    }
  }
  learner.optimizer().set_steps(found.manifest.at("optimizer_steps"));
  learner.scaler().restore(found.manifest.at("scale"), found.manifest.at("good_steps"));
  learner.replicas().publish();
  return {.step = found.manifest.at("step"),
          .best_loss = found.manifest.at("best_loss"),
          .tests_without_better = found.manifest.at("tests_without_better")};
}

}  // namespace tutti::train
